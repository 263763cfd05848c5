"""Membership from generated samples: candidates near them are more likely members."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.adversary.forms import forms_of
from fdaudit.config import Config
from fdaudit.goals.membership import Membership
from fdaudit.models.conditional import shared_network
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._target_model import shared_model
from .._uploads import with_payload

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

__all__ = ["GeneratorLeakage", "GeneratorLeakageConfig", "distances", "proximity"]

_BATCH = 4096


class GeneratorLeakageConfig(Config):
    """Settings of generator leakage."""

    samples: int = Field(10_000, ge=1)
    """Samples drawn from the victim's generator, or the last recorded ones."""
    rule: Literal["nearest", "monte-carlo"] = "nearest"
    """Score by the distance to the nearest sample, or by the share of samples within ε of the candidate."""
    space: Literal["both", "features", "pixels"] = "both"
    """Space of distances: pixels, a task encoder's features, or the mean of both in standard scores."""


@reads_forms
class GeneratorLeakage:
    """Scores a candidate by its distance to generated samples.

    A generator that repeats its training records places samples next to them. Samples come from the victim's generator,
    else from the shared one, or are those that the server sent. With `monte-carlo` the score is the share of samples
    within ε. ε is the median over candidates of the distance to the nearest sample. Each sample counts by its nearness
    (Hilprecht 2019, Eq. 4 and the median heuristic). The nearest sample breaks ties. A realistic generator is near
    every image, so only the difference between members and non-members counts, here and in the figures of the generated
    sets. A generator of features is compared with the candidates' features in the last shared model.
    """

    card = AttackCard(
        name="generator-leakage",
        work={"once": 1400, "each": 2400, "grows": ("samples",)},
        goal="membership",
        needs=("generator_parameters", "generated_samples"),
        assumes=("encoder",),
        oracle=None,
        source="Hilprecht, Härterich & Bernau 2019, Monte Carlo attacks",
        tasks=("single-label", "multi-label"),
        profiles={
            "quick": {"samples": 1000},
            "standard": {"samples": 10000},
            "full": {"samples": 100000},
        },
        control={"on": "generated"},
    )
    Config: ClassVar[type[GeneratorLeakageConfig]] = GeneratorLeakageConfig

    def __init__(self, config: GeneratorLeakageConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a generator or generated samples in view."""
        if not task.challenges:
            return Applicability(False, "no challenge was issued for the victims")
        if self.config.space != "pixels" and knowledge.encode is None:
            return Applicability(False, "no feature extractor is known; space: pixels needs none")
        if with_payload(view.select(kind="generated_samples")) or _generators(view, knowledge):
            return Applicability(True)
        if _generators(view, knowledge, "features"):
            if knowledge.train is None or shared_model(view) is None:
                reason = "the generator in view makes features, and no model in view tells which of an image"
                return Applicability(False, reason)
            return Applicability(True)
        return Applicability(False, "neither a generator that can be built nor generated samples are in view")

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """Return one `Membership` for each challenge, with the generated samples (k, c, h, w) behind it."""
        guesses = []
        if not with_payload(view.select(kind="generated_samples")) and not _generators(view, knowledge):
            # A generator of features: near which of them the shared model puts a candidate.
            model = shared_model(view)
            card = knowledge.generator
            train = knowledge.train
            messages = _generators(view, knowledge, "features")
            if model is None or card is None or train is None:
                raise ValueError("generator-leakage: run on a view to which it does not apply: no model.")
            samples = card.drawn(view.tensors(messages[-1]), self.config.samples, generator, _BATCH)
            module = shared_network(train.network(view.tensors(model))).eval()
            for name, challenge in task.challenges.items():
                features = list[Tensor]()
                with torch.no_grad():
                    for part in challenge.x.split(_BATCH):
                        features.append(module.features(part.to(train.device)).cpu())
                points = torch.cat(features).flatten(1)
                scores = proximity(points, samples.flatten(1), self.config.rule)
                guesses.append(Membership(target=name, scores=scores))
            return tuple(guesses)
        for name, challenge in task.challenges.items():
            x = challenge.x
            samples = self._generated(view, knowledge, name, generator)
            scores = self._scores(x, samples, knowledge)
            guesses.append(Membership(target=name, scores=scores, generated=samples))
        return tuple(guesses)

    def _generated(self, view: View, knowledge: Knowledge, client: str, generator: torch.Generator) -> Tensor:
        """Return samples (k, c, h, w) of the victim's generator, of the shared one, or from the record."""
        own = None
        shared = None
        for m in _generators(view, knowledge):
            if m.sender == client:
                own = m
            elif m.sender == "server":
                shared = m
        last = own or shared
        if last is not None and knowledge.generator is not None:
            return knowledge.generator.drawn(view.tensors(last), self.config.samples, generator, _BATCH)
        parts = list[Tensor]()
        remaining = self.config.samples
        for message in reversed(with_payload(view.select(kind="generated_samples"))):
            if remaining <= 0:
                break
            parts.append(view.tensors(message)["samples"].float().cpu()[:remaining])
            remaining -= len(parts[-1])
        return torch.cat(parts)

    def _scores(self, x: Tensor, samples: Tensor, knowledge: Knowledge) -> Tensor:
        """Return scores (n,), higher if samples are nearer."""
        spaces = []
        if self.config.space != "features":
            spaces.append((x.flatten(1), samples.flatten(1)))
        if self.config.space != "pixels" and knowledge.encode is not None:
            encode = knowledge.encode
            features = list[Tensor]()
            for part in samples.split(_BATCH):
                features.append(encode(part).flatten(1))
            spaces.append((encode(x).flatten(1), torch.cat(features)))
        scores = [proximity(points, others, self.config.rule) for points, others in spaces]
        if len(scores) == 1:
            return scores[0]
        standard = list[Tensor]()
        for values in scores:
            spread = values.std(correction=0).clamp_min(1e-12)
            standard.append((values - values.mean()) / spread)
        return torch.stack(standard).mean(0)


def proximity(points: Tensor, samples: Tensor, rule: str) -> Tensor:
    """Return how near samples (k, d) come to points (n, d): (n,), higher is nearer.

    Args:
        points: the candidates.
        samples: generated ones.
        rule: `nearest`: minus the Euclidean distance to the nearest. `monte-carlo`: the mean over samples of
            log(ε / distance) where it is below ε, else 0, with ε the median of the nearest distances. Half of all
            candidates have no sample within ε; a small multiple of their nearest distance is subtracted to rank them.
    """
    nearest = distances(points, samples)
    if rule == "nearest":
        return -nearest
    epsilon = nearest.median().clamp_min(1e-12)
    closeness = torch.zeros(len(points), dtype=torch.float64)
    for part in samples.split(_BATCH):
        d = torch.cdist(points.double(), part.double()).clamp_min(1e-9 * float(epsilon))
        closeness += (epsilon / d).log().clamp_min(0).sum(1)
    return closeness / len(samples) - 1e-6 * nearest / epsilon


def distances(points: Tensor, samples: Tensor) -> Tensor:
    """Return the Euclidean distance (n,) of each point (n, d) to the nearest of samples (k, d), in float64."""
    nearest = torch.full((len(points),), torch.inf, dtype=torch.float64)
    for part in samples.split(_BATCH):
        nearest = torch.minimum(nearest, torch.cdist(points.double(), part.double()).amin(1))
    return nearest


def _generators(view: View, knowledge: Knowledge, makes: str = "images") -> tuple[Message, ...]:
    """Return the messages with a generator of images or features that can be built as the protocol declares it."""
    if knowledge.generator is None or knowledge.generator.makes != makes:
        return ()
    forms = forms_of(view, knowledge)
    messages: list[Message] = []
    for m in with_payload(view.select(kind="generator_parameters")):
        if not forms.misfit(m):
            messages.append(m)
    return tuple(messages)

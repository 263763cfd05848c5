"""Membership from what a client's discriminator says of the server's samples, and from gradients at these."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.goals.membership import Membership
from fdaudit.models.network import moved
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from ._answers import evenly_spread, recorded, treatment_of
from ._coins import scores_of
from ._discriminators import DiscriminatorStep, judged, steps_of
from ._queried import own_answers
from ._ridge import Regressed, regressed, regressed_in_parts, stacked
from ._study import Study, before_answers, core_of, drawn, missing, trained

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.types import Challenge

__all__ = ["DiscriminatorRegression", "DiscriminatorRegressionConfig"]

_SCORES, _GRADIENTS = "discriminator_scores", "sample_gradients"
_PUBLIC = ("discriminator_width", "adam_lr", "rounds", "steps_per_round")
"""Settings of a client's discriminator, which a shadow needs."""


class DiscriminatorRegressionConfig(Config):
    """Settings of discriminator regression."""

    matched: int = Field(200, ge=8)
    """Shadows of each victim's model; as many as `coin-regression` has, so that they are trained once."""
    discriminators: int = Field(100, ge=8)
    """Shadows of each victim's discriminator; at most as many as of its model."""
    steps: int = Field(2000, ge=1)
    """Steps of the generator that a shadow's discriminator follows, at most: the first ones."""
    batch: int = Field(32, ge=1)
    """Samples and records of a step that it learns from, at most."""
    reads: int = Field(24, ge=1)
    """Steps whose scores and gradients are looked at, at most."""
    samples: int = Field(1000, ge=1)
    """Samples whose logits are looked at, at most."""
    most_steps: int = Field(2000, ge=1)
    """Training steps of one shadow model, at most."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Of coins, records besides the candidates, initial weights and batches."""


@reads_forms
class DiscriminatorRegression:
    """Reads the coins off a client's scores of generated samples and off its gradients at them.

    In FedIOD each client trains a discriminator on its records against the server's samples. Those are in view, so
    discriminators of shadows are trained against the same ones, in the same steps. The attack regresses the coins on
    the scores that they give, and on the gradients at the samples: L_gan's through the shadow's discriminator, and that
    of the recorded cotangents through its model. The client's logits, where they are in view, have a regression of
    their own, with what its model answers about each candidate where it can be asked. All these are stacked. Left-out
    shadows say beforehand how well that will do.
    """

    card = AttackCard(
        name="discriminator-regression",
        work={"once": 60000, "each": 3000, "grows": ("discriminators",), "victims": "matched"},
        goal="membership",
        needs=("discriminator_scores", "sample_gradients"),
        reads=("class_counts", "generated_samples", "logit_cotangents", "logits"),
        oracle="soft",
        assumes=("architecture", "auxiliary"),
        source=(
            "Hoerl & Kennard 1970 on shadows of discriminators (Gong et al. 2023, Algorithm 1); Wolpert 1992"
        ),
        control={"on": "scores"},
        tasks=("single-label",),
        profiles={
            "quick": {"matched": 180, "discriminators": 48, "batch": 8},
            "standard": {"matched": 500, "discriminators": 200, "reads": 48},
            "full": {"matched": 2000, "discriminators": 500, "reads": 100},
        },
    )
    Config: ClassVar[type[DiscriminatorRegressionConfig]] = DiscriminatorRegressionConfig

    def __init__(self, config: DiscriminatorRegressionConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for scores or gradients of a victim at samples in view, and for a discriminator that can be built."""
        if not (lacking := missing(knowledge, task)):
            return lacking
        absent = [name for name in _PUBLIC if name not in view.hyperparameters]
        if absent:
            return Applicability(
                False, f"the public configuration has no {absent[0]}: no discriminator to imitate"
            )
        if any(_told(steps_of(view, name)) for name in task.challenges):
            return Applicability(True)
        return Applicability(False, f"no {_SCORES} and no {_GRADIENTS} of a victim at samples in view")

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """Return one `Membership` for each victim with scores or gradients in view; `seed` decides what is random."""
        guesses = []
        for name, challenge in task.challenges.items():
            steps = steps_of(view, name)[: self.config.steps]
            if _told(steps):
                guesses.append(self._guess(view, knowledge, task, challenge, steps))
        return tuple(guesses)

    def _guess(
        self,
        view: View,
        knowledge: Knowledge,
        task: AttackTask,
        challenge: Challenge,
        steps: Sequence[DiscriminatorStep],
    ) -> Membership:
        cfg = self.config
        heard = recorded(view, knowledge, cfg.samples, spread=True).get(challenge.target)
        pulling = any("values" in _tensors(view, step, "logit_cotangents") for step in steps)
        study = drawn(view, knowledge, challenge, cfg.matched, paired=True, seed=cfg.seed)
        if heard is not None or pulling:
            training = before_answers(view.hyperparameters)
            study = trained(knowledge, study, training=training, most_steps=cfg.most_steps)
        count = min(cfg.discriminators, cfg.matched)
        scored = self._chosen([t for t, step in enumerate(steps) if _SCORES in step.answers], late=True)
        pulled = self._chosen([t for t, step in enumerate(steps) if _GRADIENTS in step.answers])
        samples = list[Tensor]()
        for step in steps[: max([*scored, *pulled]) + 1]:
            samples.append(view.tensors(step.samples)["samples"].cpu())
        scores, gradients = judged(
            study, samples, view.hyperparameters,
            count=count, batch=cfg.batch, scored=scored, pulled=pulled, seed=cfg.seed,
        )  # fmt: skip
        coins = study.coins[:count]
        parts = dict[str, Regressed]()
        if scored:
            mine = torch.cat([_tensors(view, steps[t], _SCORES)["values"].flatten() for t in scored])
            noise = _noise(view, steps[scored[0]], _SCORES)
            parts["scores"] = regressed(scores.flatten(1), coins, mine, noise)
        if pulled:
            mine = torch.cat([_tensors(view, steps[t], _GRADIENTS)["values"].flatten() for t in pulled])
            theirs = self._pulled_back(view, knowledge, study, [steps[t] for t in pulled], gradients)
            noise = _noise(view, steps[pulled[0]], _GRADIENTS)
            parts["gradients"] = regressed(theirs, coins, mine, noise)
        if heard is not None:
            z = study.logits(knowledge, heard.x)
            answers = (z - z.mean(2, keepdim=True)).flatten(1), heard.values.flatten(), heard.noise
            own = own_answers(view, knowledge, task, challenge, study, answers, paired=True)
            whole = regressed_in_parts([answers], study.coins, stack=False, own=own)
            parts["logits"] = replace(whole, left_out=whole.left_out[:count])
        best = stacked([*parts.values()], coins)
        return Membership(
            target=challenge.target,
            scores=scores_of(best.coins, challenge, paired=True),
            note=f"from {', '.join(parts)}",
            rehearsed=best.right,
        )

    def _chosen(self, steps: Sequence[int], *, late: bool = False) -> list[int]:
        """Return steps spread evenly over all, or over the later half, in which a discriminator has learnt the most."""
        if late:
            steps = steps[len(steps) // 2 :]
        if not steps:
            return []
        places = evenly_spread(len(steps), self.config.reads)
        return [steps[k] for k in places.unique().tolist()]

    def _pulled_back(
        self,
        view: View,
        knowledge: Knowledge,
        study: Study,
        steps: Sequence[DiscriminatorStep],
        toward_real: Tensor,
    ) -> Tensor:
        """Return the gradients (count, q·n·d) that shadows would have answered the cotangents of some steps with.

        Args:
            view: with the samples and cotangents.
            knowledge: with a training core.
            study: shadows of the client's model; untrained if no cotangent has values.
            steps: q of them.
            toward_real: (count, q, n, d) gradients of L_gan.
        """
        weights = list[Tensor]()
        having = list[int]()
        samples = list[Tensor]()
        cotangents = list[Tensor]()
        for k, step in enumerate(steps):
            tensors = _tensors(view, step, "logit_cotangents")
            weights.append(tensors.get("gan_weight", torch.zeros(())).reshape(()))
            if "values" in tensors:
                having.append(k)
                samples.append(view.tensors(step.samples)["samples"].cpu())
                cotangents.append(tensors["values"])
        gradients = torch.stack(weights)[:, None, None] * toward_real
        if having:
            train = core_of(knowledge)
            x = torch.cat(samples)
            at = torch.cat(cotangents)
            for number in range(len(gradients)):
                network = train.network(study.models[number]).eval()
                leaf = x.to(train.device).requires_grad_()
                (back,) = torch.autograd.grad(network(leaf), leaf, at.to(leaf))
                gradients[number, having] += back.cpu().reshape(len(having), *gradients.shape[2:])
        return gradients.flatten(1)


def _told(steps: Sequence[DiscriminatorStep]) -> bool:
    return any(kind in step.answers for step in steps for kind in (_SCORES, _GRADIENTS))


def _tensors(view: View, step: DiscriminatorStep, kind: str) -> dict[str, Tensor]:
    """Return the tensors of a step's message, on the CPU; none without such a message."""
    message = step.answers.get(kind)
    return {} if message is None else moved(view.tensors(message), "cpu")


def _noise(view: View, step: DiscriminatorStep, kind: str) -> float:
    """Return the variance of a defence's noise on each value of a step's message."""
    message = step.answers[kind]
    return treatment_of(kind, view.defenses_of(message), view.tensors(message)["values"]).variance

"""Membership inference from the transcript alone: surrogates of clients' models, distilled from recorded answers.

In public-data federated distillation only a client holds its model, but its answers about public samples are sent. An
adversary that sees them distils a model with the same answers and queries it about the candidates.

Shi, Ouyang & Wang 2025 describe two attacks on FedMD, DS-FL and Cronus. The authors' published code takes the target's
score from the client's own checkpoint. A server has no such checkpoint, so here the target is a surrogate in both
attacks. Co-op LiRA is otherwise theirs: the other clients' models are the ones without the candidate, scored by a
Gaussian's distribution function. Their distillation LiRA uses students of the victim itself as these models. Our target
is a student too, so such models would show nothing. Ours are students of shadow models. That is our interpretation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.goals.membership import Membership
from fdaudit.registry import AttackCard
from fdaudit.rng import child
from fdaudit.storage.cache import computed_once
from fdaudit.training.trainer import Fit, Job, Parameters, draw_batches, parameters_of
from fdaudit.types import Applicability, AttackTask, Challenge

from .._reading import reads_forms
from .._shadows import by_model, network_and_core, numbered, on_cpu
from ._answers import RecordedAnswers, recorded
from ._coins import against_its_pair
from ._queried import ShadowConfig, probabilities, study_of
from ._statistics import confidence, lira_offline, lira_online
from ._study import core_of, missing
from .lira import FEW

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["CoopLiRA", "DistillationConfig", "DistillationLiRA"]

_LEAST_SAMPLES = 10
"""Smallest number of answers from which a surrogate learns anything."""
_LEAST_OTHERS = 2
"""Smallest number of other clients for a distribution to compare with."""
_MOST_KEPT = 128 << 20
"""Bytes of surrogates that are cached."""


class DistillationConfig(ShadowConfig):
    """Settings of surrogates; only `distillation-lira` uses those of shadow models."""

    students: int = Field(64, ge=2)
    """Shadow models of each victim, the first of its matched ones, from which surrogates are distilled."""
    samples: int = Field(2000, ge=2)
    """Largest number of a client's answers that its surrogate learns from: the last ones."""
    distill_steps: int = Field(400, ge=1)
    """Steps of Adam of one surrogate."""
    distill_batch_size: int = Field(128, ge=1)
    """Answers a step."""
    distill_lr: float = Field(5e-3, gt=0)
    """Adam's learning rate, annealed to a hundredth of it on a cosine."""


@reads_forms
class DistillationLiRA:
    """LiRA on a surrogate of the victim's model, against surrogates of shadow models; no model is queried.

    The surrogate is distilled from the victim's recorded answers about public (or generated) samples. Shadow models
    that train as the victim does answer the same samples, and a surrogate is distilled from each. The likelihood ratio
    compares surrogates of models with and without a candidate, so distillation affects both sides in the same way.
    """

    card = AttackCard(
        name="distillation-lira",
        work={"once": 28000, "each": 1000, "grows": ("students", "distill_steps"), "victims": "matched"},
        goal="membership",
        needs=("logits", "soft_labels"),
        reads=("class_counts", "sample_count"),
        assumes=("architecture", "auxiliary", "public samples"),
        oracle=None,
        source="Shi, Ouyang & Wang 2025, with shadow models (our reading)",
        tasks=("single-label", "text", "table"),
        profiles={
            "quick": {"matched": 180, "students": 8, "distill_steps": 80, "distill_batch_size": 64},
            "standard": {"matched": 500, "students": 64},
            "full": {"matched": 2000, "students": 256, "distill_steps": 2000},
        },
        control={"on": "federation"},
    )
    Config: ClassVar[type[DistillationConfig]] = DistillationConfig

    def __init__(self, config: DistillationConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a victim's answers in view, with their samples, and the means to train shadow models."""
        if not (lacking := missing(knowledge, task)):
            return lacking
        return _answered(recorded(view, knowledge, self.config.samples), task)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """Return one `Membership` for each challenged victim; `seed` sets the random draws, so attacks share models."""
        answers = recorded(view, knowledge, self.config.samples)
        kind = _kind(answers, task)
        lessons: list[tuple[Tensor, Tensor]] = []
        inside: dict[str, Tensor] = {}
        for name, challenge in task.challenges.items():
            study = study_of(view, knowledge, challenge, self.config)
            teachers = study.models[: self.config.students]
            x = answers[name].x
            inside[name] = study.inside[: len(teachers)]
            lessons.append((x, _as(answers[name], kind)))
            for model in teachers:
                logits = core_of(knowledge).predict(model, x)
                values = logits.softmax(1)
                if answers[name].kind == "logits":
                    values = logits - logits.mean(1, keepdim=True)
                own = replace(answers[name], values=answers[name].treatment.as_sent(values))
                lessons.append((x, _as(own, kind)))
        taught = iter(_distilled(knowledge, lessons, kind, self.config))
        score = lira_online if self.config.online else lira_offline
        guesses = []
        for name, challenge in task.challenges.items():
            victim = next(taught)
            students = list(islice(taught, len(inside[name])))
            phi = _phi(knowledge, victim, challenge)
            reference = _phis(knowledge, students, challenge)
            scores = score(
                phi,
                reference,
                inside[name],
                fixed_variance=len(students) < FEW,
                blur=answers[name].treatment.blur(phi),
            )
            guesses.append(Membership(target=name, scores=against_its_pair(scores, challenge)))
        return tuple(guesses)


@reads_forms
class CoopLiRA:
    """LiRA on a surrogate of the victim's model, against surrogates of the other clients' models.

    The other clients were not trained on the victim's records. Their surrogates thus show the usual confidence without
    a candidate, and no shadow model is trained. The score is the standard score of the victim's surrogate. Clients with
    different data weaken the attack: a client's better knowledge of its classes looks like membership.
    """

    card = AttackCard(
        name="co-op-lira",
        work={"once": 4000, "each": 600, "grows": ("distill_steps",)},
        goal="membership",
        needs=("logits", "soft_labels"),
        assumes=("architecture", "public samples"),
        oracle=None,
        source="Shi, Ouyang & Wang 2025",
        tasks=("single-label", "text", "table"),
        profiles={
            "quick": {"distill_steps": 120, "distill_batch_size": 64},
            "standard": {},
            "full": {"distill_steps": 2000},
        },
        control={"on": "federation"},
    )
    Config: ClassVar[type[DistillationConfig]] = DistillationConfig

    def __init__(self, config: DistillationConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check that a victim's answers and those of at least two other clients are in view."""
        if not task.challenges:
            return Applicability(False, "no challenge was issued for the victims")
        if knowledge.architecture is None or knowledge.train is None:
            return Applicability(
                False, "the architecture is not known, so that no surrogate can be distilled"
            )
        answers = recorded(view, knowledge, self.config.samples)
        if not (refused := _answered(answers, task)):
            return refused
        if len(answers) - 1 < _LEAST_OTHERS:
            return Applicability(
                False,
                f"answers of {len(answers)} clients are in view, {_LEAST_OTHERS + 1} or more are needed",
            )
        return Applicability(True)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """Return one `Membership` for each challenged victim; `seed` determines the random draws."""
        answers = recorded(view, knowledge, self.config.samples)
        kind = _kind(answers, task)
        lessons = [(answer.x, _as(answer, kind)) for answer in answers.values()]
        surrogates = dict(zip(answers, _distilled(knowledge, lessons, kind, self.config), strict=True))
        guesses = []
        for name, challenge in task.challenges.items():
            others = [s for client, s in surrogates.items() if client != name]
            phi = _phi(knowledge, surrogates[name], challenge)
            reference = _phis(knowledge, others, challenge)
            scores = lira_offline(
                phi,
                reference,
                torch.zeros(reference.shape, dtype=torch.bool),
                fixed_variance=len(others) < FEW,
                blur=answers[name].treatment.blur(phi),
            )
            guesses.append(Membership(target=name, scores=against_its_pair(scores, challenge)))
        return tuple(guesses)


def _answered(answers: dict[str, RecordedAnswers], task: AttackTask) -> Applicability:
    """Check that every challenged victim has enough answers in view."""
    for client in task.challenges:
        heard = answers.get(client)
        if heard is None:
            return Applicability(
                False, f"no logits or soft labels of {client} with their samples are in view"
            )
        if len(heard.x) < _LEAST_SAMPLES:
            return Applicability(
                False, f"{client} answered for {len(heard.x)} samples, {_LEAST_SAMPLES} or more are needed"
            )
    return Applicability(True)


def _kind(answers: dict[str, RecordedAnswers], task: AttackTask) -> str:
    """Return `logits` if every client sent them; else all answers are read as probabilities."""
    return "logits" if all(answer.kind == "logits" for answer in answers.values()) else "soft_labels"


def _as(answer: RecordedAnswers, kind: str) -> Tensor:
    return answer.values.softmax(1) if answer.kind == "logits" and kind == "soft_labels" else answer.values


def _phi(knowledge: Knowledge, model: Parameters, challenge: Challenge) -> Tensor:
    """Return φ (n,) of a surrogate of the adversary's own."""
    return confidence(probabilities(knowledge, model, challenge.x), challenge.y)


def _phis(knowledge: Knowledge, models: Sequence[Parameters], challenge: Challenge) -> Tensor:
    return torch.stack([_phi(knowledge, model, challenge) for model in models])


def _distilled(
    knowledge: Knowledge, lessons: Sequence[tuple[Tensor, Tensor]], kind: str, config: DistillationConfig
) -> list[Parameters]:
    """Return one surrogate for each lesson; equal lessons and settings are distilled once.

    All train together, from the same initial weights and with the same order of batches. They differ only by their
    teachers' answers.

    Args:
        knowledge: with the architecture and a training core.
        lessons: samples (n, c, h, w) and answers about them (n, C).
        kind: `logits`, fitted by their mean absolute error (as in Shi et al.'s code), or `soft_labels`, fitted by
            KL divergence.
        config: the settings of distillation.

    Raises:
        TrainingDivergedError: a loss became NaN or infinite.
        UsageError: no architecture or training core is known.
    """
    train, network = network_and_core(knowledge)
    start = parameters_of(network.build(child(config.seed, "surrogate", "start")))
    fit = Fit(
        lr=config.distill_lr,
        final_lr=config.distill_lr / 100,
        optimizer="adam",
        objective="l1" if kind == "logits" else "kl",
    )

    def fitted() -> list[Parameters]:
        jobs = []
        for n, (x, values) in enumerate(lessons):
            batches = draw_batches(
                len(x),
                config.distill_batch_size,
                steps=config.distill_steps,
                generator=child(config.seed, "surrogate", "batches"),
            )
            jobs.append(
                Job(
                    party=f"surrogate {n}",
                    parameters=start,
                    x=x,
                    targets=values,
                    batches=batches,
                    seed=config.seed,
                )
            )
        return [on_cpu(trained.parameters) for trained in train.fit(jobs, fit)]

    numbers = range(len(lessons))
    if len(lessons) * sum(tensor.nbytes for tensor in start.values()) > _MOST_KEPT:
        return fitted()

    card = {
        "what": "surrogates",
        "settings": config.model_dump(mode="json", include=set(DistillationConfig.__annotations__)),
        "seed": config.seed,
        "kind": kind,
        **knowledge.described,
    }
    kept = computed_once(card, chain.from_iterable(lessons), lambda _: numbered(numbers, fitted()))
    return by_model([kept], len(lessons))

"""A model that an attack asks about candidates, and shadow models that are asked the same.

Guarantees:
  * attacks with the same candidates, auxiliary records and settings share the same models, trained once;
  * no record is in the pool twice: an auxiliary record that is a candidate counts as the candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config

from .._shadows import shadows
from .._target_model import BlackBox, asked, log_likelihood
from ._answers import Treatment, treatments
from ._coins import pairs_of
from ._ridge import Own
from ._statistics import confidence
from ._study import Study, auxiliary_of, before_answers, core_of, drawn, trained

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters
    from fdaudit.types import AttackTask, Challenge

__all__ = [
    "FLOOR",
    "QueriedShadows",
    "ShadowConfig",
    "centred_logs",
    "own_answers",
    "probabilities",
    "queried_shadows",
    "stranger",
    "study_of",
]

FLOOR = 1e-6
"""Smallest probability before a logarithm."""
_MORE_STRANGE = 2.0
"""How much worse than a client's first answers shadows may explain others of it that are read with them."""
_REPEATS = 4
"""Questions about the same candidate, if answers have noise."""


class ShadowConfig(Config):
    """Settings of shadow models; attacks with equal settings share the models."""

    shadows: int = Field(64, ge=2)
    """Shadow models, each trained on half of the pool."""
    most_steps: int = Field(1000, ge=1)
    """Largest number of training steps of one shadow model."""
    online: bool = True
    """The pool holds the candidates and the auxiliary records; otherwise auxiliary records alone."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the halves, the initial weights and the batches."""
    matched: int = Field(200, ge=2)
    """Shadow models of a victim whose own model is attacked; as many as `coin-regression` has, so that they are trained
    once."""
    matched_steps: int = Field(2000, ge=1)
    """Largest number of training steps of one of these."""


def study_of(
    view: View,
    knowledge: Knowledge,
    challenge: Challenge,
    config: ShadowConfig,
    start: Parameters | None = None,
) -> Study:
    """Return shadow models that train as one victim does, for attacks on its own model.

    Args:
        view: for the victim's reported counts, and the public configuration.
        knowledge: with auxiliary records, the architecture and a training core.
        challenge: the victim's candidates.
        config: the number of models.
        start: the initial weights of the victim's model, if in view.
    """
    study = drawn(view, knowledge, challenge, config.matched, paired=True, seed=config.seed)
    training = before_answers(view.hyperparameters, from_upload=start is not None)
    return trained(knowledge, study, training=training, start=start, most_steps=config.matched_steps)


def _shared_studies(
    view: View, knowledge: Knowledge, task: AttackTask, config: ShadowConfig
) -> dict[str, Study]:
    """Return studies of all victims with the same models, for attacks on the shared model.

    Args:
        view: for the public configuration of the target's training.
        knowledge: with auxiliary records, the architecture and a training core.
        task: with the challenges.
        config: the number of models and their pool.
    """
    x, y = auxiliary_of(knowledge)
    challenges = [task.challenges[k] for k in sorted(task.challenges)]
    apart = _apart(x, challenges)
    pooled = torch.ones_like(apart)
    pool_x, pool_y = x, y
    if config.online:
        pooled = apart
        pool_x = torch.cat([x[pooled], *(c.x for c in challenges)])
        pool_y = torch.cat([y[pooled], *(c.y for c in challenges)])
    halves = shadows(
        knowledge,
        pool_x,
        pool_y,
        config.shadows,
        hyperparameters=view.hyperparameters,
        most_steps=config.most_steps,
        seed=config.seed,
    )
    # Where every auxiliary record is a candidate, as in a control, they are still what the population looks like.
    population = apart if bool(apart.any()) else torch.ones_like(apart)
    column = int(pooled.sum())
    mask = torch.zeros(config.shadows, len(y), dtype=torch.bool)
    mask[:, pooled] = halves.inside[:, :column]
    studies = {}
    for challenge in challenges:
        n = len(challenge.y)
        inside = torch.zeros(config.shadows, n, dtype=torch.bool)
        if config.online:  # in the pool the candidates come after the auxiliary records
            inside = halves.inside[:, column : column + n]
        column += n
        studies[challenge.target] = Study(
            inside=inside,
            others=mask[:, population],
            coins=inside.double() * 2 - 1,
            pool=(torch.cat([challenge.x, x[population]]), torch.cat([challenge.y, y[population]])),
            models=halves.parameters,
        )
    return studies


def _apart(x: Tensor, challenges: list[Challenge]) -> Tensor:
    """Return which of the records x (k, c, h, w) are not a candidate of any challenge, (k,)."""
    candidates = set[bytes]()
    for challenge in challenges:
        for row in challenge.x.cpu().contiguous():
            candidates.add(row.numpy().tobytes())
    apart = list[bool]()
    for row in x.cpu().contiguous():
        apart.append(row.numpy().tobytes() not in candidates)
    return torch.tensor(apart)


# -- answers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class QueriedShadows:
    """A victim's model and its shadows, which answer the same questions.

    Attributes:
        target: the victim's model, as a queried model.
        treatment: the effects of defences on its answers.
        repeats: number of repeated queries to average, if answers are noisy.
        besides: number of population records that may be queried.
        x: (n, c, h, w) candidates.
        y: (n,) or (n, C).
        study: the shadows.
        knowledge: with the training core that evaluates them.
        floor: smallest probability that differs from 0.
    """

    target: BlackBox
    treatment: Treatment
    repeats: int
    besides: int
    x: Tensor
    y: Tensor
    study: Study
    knowledge: Knowledge
    floor: float

    def likelihood(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p_y of records under the target (n,), and under the shadow models (m, n); float64."""
        mine, theirs = self._answers(x)
        shadows = torch.stack([log_likelihood(p, y, self.floor) for p in theirs])
        return log_likelihood(mine, y, self.floor), shadows

    def confidence(self) -> tuple[Tensor, Tensor]:
        """Return φ of the candidates under the target (n,), and under the shadow models (m, n); float64."""
        mine, theirs = self._answers(self.x)
        shadows = torch.stack([confidence(p, self.y, self.floor) for p in theirs])
        return confidence(mine, self.y, self.floor), shadows

    def _answers(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        theirs = [probabilities(self.knowledge, model, x) for model in self.study.models]
        return _heard(self.target, x, self.treatment, self.repeats), theirs


def queried_shadows(
    view: View,
    knowledge: Knowledge,
    task: AttackTask,
    config: ShadowConfig,
    *,
    repeats: int,
    besides: int,
    floor: float,
) -> Mapping[str, QueriedShadows]:
    """Return each victim's model with its shadows; the oracle's budget is divided equally.

    Args:
        view: the adversary's view.
        knowledge: its other knowledge.
        task: with the challenges and an oracle handle, if there is one.
        config: of the shadow models: matched to a victim whose own model is queried, else one set for all.
        repeats: largest number of queries of the same sample.
        besides: largest number of population records queried for each victim.
        floor: smallest probability before a logarithm.

    Raises:
        ValueError: a victim has no model that can be queried.
    """
    by_target: dict[str, QueriedShadows] = {}
    shared: dict[str, Study] = {}
    victims = len(task.challenges)
    candidates = sum(len(c.y) for c in task.challenges.values())
    for name, challenge in task.challenges.items():
        target, refused = asked("soft", view, knowledge, task, name)
        if target is None:
            raise ValueError(f"run on a view to which it does not apply: {refused.reason}.")
        if target.of is not None:
            start = None if target.start is None else dict(target.start)
            study = study_of(view, knowledge, challenge, config, start)
        else:
            shared = shared or _shared_studies(view, knowledge, task, config)
            study = shared[name]
        more = min(besides, len(study.population[1]))
        more = max(min(more, (target.remaining - candidates) // victims), 0)
        treatment = Treatment()
        if target.oracle is not None and target.of:
            treatment = treatments(view, name)
        affordable = target.remaining // (candidates + more * victims)
        by_target[name] = QueriedShadows(
            target=target,
            treatment=treatment,
            repeats=max(1, min(repeats, affordable)),
            besides=more,
            x=challenge.x,
            y=challenge.y,
            study=study,
            knowledge=knowledge,
            floor=max(floor, treatment.floor),
        )
    return by_target


def own_answers(
    view: View,
    knowledge: Knowledge,
    task: AttackTask,
    challenge: Challenge,
    study: Study,
    first: tuple[Tensor, Tensor, float],
    *,
    paired: bool,
) -> list[Own]:
    """Return what a client's model answers about its candidates, if it can be asked and is the one that answered.

    Both the logits of each candidate and its confidence count.

    Args:
        view: the adversary's view.
        knowledge: with a training core.
        task: with an oracle of the client's model.
        challenge: the client's candidates.
        study: shadows of its model.
        first: values (m, d) of shadows and (d,) of the client's other answers, and the variance of their noise.
        paired: whether one candidate of each matched pair is a member.
    """
    target, _ = asked("soft", view, knowledge, task, challenge.target, own=False)
    if target is None or target.of is None:
        return []
    affordable = target.remaining // len(challenge.y) // len(task.challenges)
    if not affordable:
        return []
    treatment = treatments(view, challenge.target)
    floor = max(treatment.floor, FLOOR)
    mine = _heard(target, challenge.x, treatment, min(_REPEATS, affordable))
    answers = [probabilities(knowledge, model, challenge.x).double() for model in study.models]
    theirs = torch.stack(answers)
    phi = torch.stack([confidence(p, challenge.y, floor) for p in answers])
    readings = [
        (centred_logs(theirs, floor), centred_logs(mine, floor)),
        (phi[..., None], confidence(mine, challenge.y, floor)[:, None]),
    ]
    evidence = []
    for of_shadows, of_client in readings:
        if stranger((of_shadows.flatten(1), of_client.flatten(), 0.0), first):
            return []
        by_coin = Own(
            theirs=_by_coin(of_shadows, challenge, paired),
            mine=_by_coin(of_client[None], challenge, paired)[0],
        )
        evidence.append(by_coin)
    return evidence


def probabilities(knowledge: Knowledge, parameters: Parameters, x: Tensor) -> Tensor:
    """Return probabilities (n, C) from a model of the adversary's own."""
    return knowledge.task.labels.probabilities(core_of(knowledge).predict(parameters, x))


def _heard(target: BlackBox, x: Tensor, treatment: Treatment, repeats: int) -> Tensor:
    """Return a queried model's probabilities (n, C), with defences undone where possible and noise averaged."""
    if not treatment.noisy:
        repeats = 1
    answers = torch.stack([target(x).double() for _ in range(repeats)]).mean(0)
    if treatment == Treatment() or not target.labels.one_class:
        return answers
    return treatment.probabilities(answers)


def stranger(others: tuple[Tensor, Tensor, float], first: tuple[Tensor, Tensor, float]) -> bool:
    """Return whether shadows explain other answers of a client much worse than its first ones.

    Each is the values (m, d) of shadows and (d,) of the client, and the variance of their noise. First answers that
    agree by chance set no stricter limit: a shadow of one's own has a strangeness of about 1.
    """
    return _strangeness(*others) > _MORE_STRANGE * max(1.0, _strangeness(*first))


def _strangeness(theirs: Tensor, mine: Tensor, noise: float) -> float:
    """Return how far answers (d,) are from those of shadows (m, d), in the variance of these; about 1 if they agree."""
    centre = theirs.double().mean(0)
    spread = (theirs.double() - centre).square().sum() / max(len(theirs) - 1, 1)
    return float((mine.double() - centre).square().sum() / (spread + noise * len(mine)).clamp_min(1e-300))


def centred_logs(p: Tensor, floor: float) -> Tensor:
    """Return the logarithms (..., n, C) of probabilities, less their mean."""
    logs = p.clamp_min(floor).log()
    return logs - logs.mean(-1, keepdim=True)


def _by_coin(values: Tensor, challenge: Challenge, paired: bool) -> Tensor:
    """Return by coin (m, k, e) what answers (m, n, e) say of its candidates: both of a pair, or one."""
    pairs = pairs_of(challenge) if paired else None
    return values if pairs is None else values[:, pairs].flatten(2)

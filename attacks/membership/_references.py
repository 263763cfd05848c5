"""Shadow models for attacks that compare a target with models whose training records are known.

Guarantees:
  * attacks with the same candidates, auxiliary records and settings share the same models, trained once;
  * no record is in the pool twice: an auxiliary record that is a candidate counts as the candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.types import Applicability, AttackTask, Challenge

from .._shadows import Shadows, shadows
from ._matched import before_answers, matched

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters

__all__ = ["References", "ShadowConfig", "matched_references", "missing", "references"]


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


@dataclass(frozen=True, kw_only=True, eq=False)
class References:
    """Shadow models, with their training records.

    Attributes:
        models: of m shadow models.
        candidates: by target, (m, n) which models hold which of its candidates.
        population: (x, y) records of the population, without candidates.
        held: (m, k) which models hold which of those.
    """

    models: list[Parameters]
    candidates: dict[str, Tensor]
    population: tuple[Tensor, Tensor]
    held: Tensor


def missing(knowledge: Knowledge, task: AttackTask) -> Applicability:
    """Check that everything that shadow models need is known; if not, name what is missing."""
    if not task.challenges:
        return Applicability(False, "no challenge was issued for the victims")
    if knowledge.architecture is None or knowledge.train is None:
        return Applicability(False, "the architecture is not known, so that no shadow model can be trained")
    if knowledge.auxiliary is None or len(knowledge.auxiliary[1]) < 2:
        return Applicability(False, "no auxiliary records are known, on which to train shadow models")
    return Applicability(True)


def matched_references(
    view: View,
    knowledge: Knowledge,
    challenge: Challenge,
    config: ShadowConfig,
    start: Parameters | None = None,
) -> References:
    """Return shadow models that train as one victim does, for attacks on its own model.

    Args:
        view: for the victim's reported counts, and the public configuration.
        knowledge: with auxiliary records, the architecture and a training core.
        challenge: the victim's candidates.
        config: the number of models.
        start: the initial weights of the victim's model, if in view.
    """
    if knowledge.auxiliary is None:
        raise ValueError("matched_references: no auxiliary records. Ask `missing` first.")
    victim_shadows = matched(
        view,
        knowledge,
        challenge,
        config.matched,
        training=before_answers(view.hyperparameters, from_upload=start is not None),
        start=start,
        paired=True,
        most_steps=config.matched_steps,
        seed=config.seed,
    )
    return References(
        models=victim_shadows.models,
        candidates={challenge.target: victim_shadows.inside},
        population=knowledge.auxiliary,
        held=victim_shadows.others,
    )


def references(view: View, knowledge: Knowledge, task: AttackTask, config: ShadowConfig) -> References:
    """Return an adversary's shadow models for all its victims together, for attacks on the shared model.

    Args:
        view: for the public configuration of the target's training.
        knowledge: with auxiliary records, the architecture and a training core.
        task: with the challenges.
        config: the number of models and their pool.
    """
    if knowledge.auxiliary is None:
        raise ValueError("references: no auxiliary records. Ask `missing` first.")
    challenges = [task.challenges[k] for k in sorted(task.challenges)]
    x, y = knowledge.auxiliary
    apart = _apart(x, challenges)
    if config.online:
        pooled = apart
        pool_x = torch.cat([x[pooled], *(c.x for c in challenges)])
        pool_y = torch.cat([y[pooled], *(c.y for c in challenges)])
    else:
        pooled = torch.ones_like(apart)
        pool_x, pool_y = x, y
    models = shadows(
        knowledge,
        pool_x,
        pool_y,
        config.shadows,
        hyperparameters=view.hyperparameters,
        most_steps=config.most_steps,
        seed=config.seed,
    )
    inside = _inside(models, challenges, int(pooled.sum()), config.online)
    # Where every auxiliary record is a candidate, as in a control, they are still what the population looks like.
    population = apart if bool(apart.any()) else torch.ones_like(apart)
    mask = torch.zeros(config.shadows, len(y), dtype=torch.bool)
    mask[:, pooled] = models.inside[:, : int(pooled.sum())]
    return References(
        models=models.parameters,
        candidates=inside,
        population=(x[population], y[population]),
        held=mask[:, population],
    )


def _inside(models: Shadows, challenges: list[Challenge], before: int, online: bool) -> dict[str, Tensor]:
    """Return by target (m, n), from the columns of the pool, where candidates come after the auxiliary records."""
    inside = {}
    for challenge in challenges:
        n = len(challenge.y)
        if online:
            inside[challenge.target] = models.inside[:, before : before + n]
        else:
            inside[challenge.target] = torch.zeros(len(models.inside), n, dtype=torch.bool)
        before += n
    return inside


def _apart(x: Tensor, challenges: list[Challenge]) -> Tensor:
    """Return which of the records x (k, c, h, w) are not a candidate of any challenge, (k,)."""
    candidates = set[bytes]()
    for challenge in challenges:
        candidates.update(row.numpy().tobytes() for row in challenge.x.cpu().contiguous())
    return torch.tensor([row.numpy().tobytes() not in candidates for row in x.cpu().contiguous()])

"""Attacks on soft answers that compare the target with shadow models: calibrated loss, LiRA and RMIA."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.goals.membership import Membership
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._target_model import answerable
from ._coins import against_its_pair
from ._queried import QueriedShadows, ShadowConfig, queried_shadows
from ._statistics import calibrated, lira_offline, lira_online, rmia
from ._study import missing

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = [
    "RMIA",
    "CalibratedLoss",
    "LiRAOffline",
    "LiRAOfflineConfig",
    "LiRAOnline",
    "RMIAConfig",
    "ShadowedConfig",
]

FEW = 64
"""With at least this many shadow models a candidate has its own variance (Carlini 2022, section VI-B)."""


class ShadowedConfig(ShadowConfig):
    """Settings of an attack that compares soft answers with those of shadow models."""

    floor: float = Field(1e-12, gt=0, lt=1)
    """Smallest probability before the logarithm."""
    repeats: int = Field(4, ge=1)
    """Number of times that a query is repeated and averaged, if each answer has fresh noise."""


class LiRAOfflineConfig(ShadowedConfig):
    """Settings of the offline likelihood-ratio attack."""

    online: bool = False
    """The pool holds the candidates and the auxiliary records; otherwise auxiliary records alone."""


class RMIAConfig(ShadowedConfig):
    """Settings of RMIA."""

    gamma: float = Field(1.0, ge=1)
    """γ: the factor by which a candidate's likelihood ratio must exceed a population record's."""
    population: int = Field(500, ge=1)
    """Largest number of population records z; each is one query for each victim."""
    a: float = Field(0.3, ge=0, le=1)
    """a of the offline attack (`online: false`), which extrapolates Pr(x) from models without x."""


_NEEDS: tuple[str, ...] = ("oracle (soft labels)", "model_parameters", "model_update")
_READS: tuple[str, ...] = ("class_counts", "sample_count")
_TASKS: tuple[str, ...] = ("single-label", "multi-label", "text", "table")
_GROWS: tuple[str, ...] = ("shadows", "most_steps")
_PROFILES: dict[str, dict[str, Any]] = {
    "quick": {"shadows": 8, "most_steps": 300, "matched": 180},
    "standard": {"shadows": 64, "most_steps": 1000, "matched": 500},
    "full": {"shadows": 256, "most_steps": 2000, "matched": 1800},
}


class _Shadowed(ABC):
    """The shared part of the attacks in this file: one answer a candidate, shadow models, and a score from both."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for soft answers or a model in view, auxiliary records, and the architecture to train shadow models."""
        if not (lacking := missing(knowledge, task)):
            return lacking
        return answerable("soft", view, knowledge, task, besides=1 if self._besides else 0)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """Return one `Membership` for each challenge; `seed` sets the random draws, so attacks share shadow models."""
        by_target = queried_shadows(
            view,
            knowledge,
            task,
            self.config,
            repeats=self.config.repeats,
            besides=self._besides,
            floor=self.config.floor,
        )
        guesses = []
        for name, case in by_target.items():
            scores = against_its_pair(self._score(case), task.challenges[name])
            guesses.append(Membership(target=name, scores=scores))
        return tuple(guesses)

    @property
    def _besides(self) -> int:
        """Return the number of records queried for each victim in addition to the candidates."""
        return 0

    @abstractmethod
    def _score(self, case: QueriedShadows) -> Tensor:
        """Return scores (n,) of one victim's candidates, higher for members."""


@reads_forms
class CalibratedLoss(_Shadowed):
    """Scores a candidate by its loss, minus its usual loss under models that never saw it.

    Records that are hard for every model have a large loss whether or not they were trained on. Subtracting the mean
    loss under shadow models without the candidate leaves what is specific to this model.
    """

    card = AttackCard(
        name="calibrated-loss",
        work={"once": 1500, "each": 700, "grows": _GROWS, "victims": "matched", "shadows": _GROWS},
        source="Watson, Guo, Cormode & Sablayrolles 2022, Eq. 2",
        goal="membership",
        needs=_NEEDS,
        reads=_READS,
        assumes=("architecture", "auxiliary"),
        oracle="soft",
        tasks=_TASKS,
        profiles=_PROFILES,
    )
    Config: ClassVar[type[ShadowedConfig]] = ShadowedConfig

    def _score(self, case: QueriedShadows) -> Tensor:
        return calibrated(*case.likelihood(case.x, case.y), case.study.inside)


@reads_forms
class LiRAOnline(_Shadowed):
    """Likelihood-ratio attack: is this confidence more likely under models with the candidate, or without it?

    Half of the shadow models are trained with each candidate. A Gaussian is fitted to the logit-scaled confidence of
    each half. The score is the log ratio of the two densities at the target's answer. With fewer than 64 shadow models
    all candidates share one variance, as in the paper.
    """

    card = AttackCard(
        name="lira-online",
        work={"once": 1500, "each": 400, "grows": _GROWS, "victims": "matched", "shadows": _GROWS},
        source="Carlini, Chien, Nasr, Song, Terzis & Tramèr 2022, Algorithm 1",
        goal="membership",
        needs=_NEEDS,
        reads=_READS,
        assumes=("architecture", "auxiliary"),
        oracle="soft",
        tasks=_TASKS,
        profiles=_PROFILES,
    )
    Config: ClassVar[type[ShadowedConfig]] = ShadowedConfig

    def _score(self, case: QueriedShadows) -> Tensor:
        return _likelihood_ratio(case, self.config.online)


@reads_forms
class LiRAOffline(_Shadowed):
    """Likelihood-ratio attack with models not trained on any candidate: how unusual is this confidence without it?

    Shadow models are trained on auxiliary records alone, before the candidates are known. The score is the standard
    score of the target's logit-scaled confidence among theirs.
    """

    card = AttackCard(
        name="lira-offline",
        work={"once": 1500, "each": 400, "grows": _GROWS, "victims": "matched", "shadows": _GROWS},
        source="Carlini, Chien, Nasr, Song, Terzis & Tramèr 2022, section V-D, Eq. 4",
        goal="membership",
        needs=_NEEDS,
        reads=_READS,
        assumes=("architecture", "auxiliary"),
        oracle="soft",
        tasks=_TASKS,
        profiles=_PROFILES,
    )
    Config: ClassVar[type[LiRAOfflineConfig]] = LiRAOfflineConfig

    def _score(self, case: QueriedShadows) -> Tensor:
        return _likelihood_ratio(case, self.config.online)


@reads_forms
class RMIA(_Shadowed):
    """Robust membership inference: the share of population records that the candidate's likelihood ratio exceeds.

    A candidate's ratio is its likelihood under the target divided by its mean likelihood under shadow models. It is
    compared with the same ratio of population records, drawn from the auxiliary ones.
    """

    card = AttackCard(
        name="rmia",
        work={"once": 1500, "each": 600, "grows": _GROWS, "victims": "matched", "shadows": _GROWS},
        source="Zarifzadeh, Liu & Shokri 2024, Eq. 2 to 4",
        profiles={
            "quick": {"shadows": 8, "most_steps": 300, "matched": 180, "population": 100},
            "standard": {"shadows": 64, "most_steps": 1000, "matched": 500, "population": 500},
            "full": {"shadows": 256, "most_steps": 2000, "matched": 1800, "population": 2500},
        },
        goal="membership",
        needs=_NEEDS,
        reads=_READS,
        assumes=("architecture", "auxiliary"),
        oracle="soft",
        tasks=_TASKS,
    )
    Config: ClassVar[type[RMIAConfig]] = RMIAConfig

    @property
    def _besides(self) -> int:
        return int(self.config.population)

    def _score(self, case: QueriedShadows) -> Tensor:
        k = case.besides
        z, z_y = (part[:k] for part in case.study.population)
        return rmia(
            *case.likelihood(case.x, case.y),
            case.study.inside,
            *case.likelihood(z, z_y),
            case.study.others[:, :k],
            gamma=self.config.gamma,
            a=None if self.config.online else self.config.a,
        )


def _likelihood_ratio(case: QueriedShadows, online: bool) -> Tensor:
    phi, shadows = case.confidence()
    score = lira_online if online else lira_offline
    few = len(shadows) < FEW
    return score(phi, shadows, case.study.inside, fixed_variance=few, blur=case.treatment.blur(phi))

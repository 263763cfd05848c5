"""Client-side selectors: which proxy samples a client can be trusted to predict.

A selector scores samples; one scored at or above the τ_client quantile of the scores of local validation records is
taken to lie within the client's distribution, and the client answers for it (Shao et al. 2023, "Client-Side Selector").

Guarantees:
  * an estimator is fitted on records that its threshold is not taken from;
  * a sample at which the estimated density is not positive is declined, whatever the threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.federation.protocol import PartyData, ProtocolConfig
from fdaudit.models.density_ratio import (
    DensityRatio,
    KuLSIF,
    NystromKuLSIF,
    default_bandwidth,
    known_records,
    threshold,
)
from fdaudit.rng import child, child_seed

__all__ = [
    "Box",
    "ClassDensity",
    "DensitySelector",
    "Selection",
    "confidence",
    "energy",
    "fit_density",
    "threshold",
]


class Selection(ProtocolConfig):
    """Which selector a client uses, and how it is fitted."""

    selector: Literal["density-ratio", "confidence", "energy", "none"] = "density-ratio"
    """How a client tells what it knows: KuLSIF, or the paper's ablations by its model's outputs; `none` answers all."""
    space: Literal["input", "features"] = "input"
    """Where densities are estimated: pixels, or the features of a public encoder (colour images)."""
    tau_client: float = Field(0.25, ge=0, lt=1)
    """τ_client: the quantile of the validation records' scores below which a sample is declined."""
    known: int = Field(1000, ge=1)
    """Records of a class, at most, that a density is estimated from; the class's others are its validation split."""
    validation: float = Field(0.5, gt=0, lt=1)
    """Share of a class's records, at least, that are its validation split."""
    uniform: int = Field(250, ge=1)
    """n_u: uniform samples that a density is compared with."""
    bandwidth: float | None = Field(None, gt=0)
    """σ of the Gaussian kernel; by default a sixth of the median distance between a class's records."""
    beta: float | None = Field(None, gt=0)
    """β, the weight of the norm in Eq. 1; by default n_u^-1/2."""
    landmarks: int | None = Field(None, ge=1)
    """Nyström landmarks, for sets too large to be solved exactly; by default the solution is exact."""


@dataclass(frozen=True, eq=False)
class Box:
    """The smallest box that holds the space densities live on: lower and upper bounds (d,)."""

    low: Tensor
    high: Tensor

    @classmethod
    def unit(cls, d: int) -> Box:
        """[0, 1]^d, where images lie."""
        return cls(torch.zeros(d), torch.ones(d))

    @classmethod
    def around(cls, points: Tensor) -> Box:
        """The bounding box of points (n, d)."""
        return cls(points.amin(0), points.amax(0))

    def uniform(self, n: int, generator: torch.Generator) -> Tensor:
        """Uniform points (n, d)."""
        drawn = torch.rand(n, len(self.low), generator=generator).to(self.low)
        return self.low + (self.high - self.low) * drawn


@dataclass(frozen=True, eq=False)
class ClassDensity:
    """A client's estimate for one class: its density ratio and its threshold τ."""

    ratio: DensityRatio
    threshold: float


@dataclass(frozen=True, eq=False)
class DensitySelector:
    """One density ratio a class; a sample is accepted where any of them reaches its own threshold."""

    classes: tuple[ClassDensity, ...]

    def scores(self, points: Tensor) -> Tensor:
        """max_c w_c(x) / τ_c at points (n, d): (n,) float64, at least 1 where a sample is accepted.

        No class, no density: every score is then -inf.
        """
        scores = torch.full((len(points),), -torch.inf, dtype=torch.float64)
        for known in self.classes:
            scores = scores.maximum(known.ratio.ratio(points).cpu() / known.threshold)
        return scores

    def accepts(self, points: Tensor) -> Tensor:
        """Which of the points (n, d) the client answers for: (n,) bool."""
        return self.scores(points) >= 1


def fit_density(
    data: PartyData,
    settings: Selection,
    *,
    represent: Callable[[Tensor], Tensor],
    box: Box,
    seed: int,
    party: str,
) -> DensitySelector:
    """A client's density selector (Eq. 1; one estimator a class: supplementary, "More Details of Experiments").

    A class with a single record has nothing to take a threshold from, and gets no estimator.

    Args:
        data: the client's records.
        settings: how it is fitted.
        represent: images (n, c, h, w) to points (n, d).
        box: the space the points lie in.
        seed: of the run.
        party: whose selector it is, for the names of its draws.
    """
    fitted = []
    for c in data.y.unique().tolist():
        members = (data.y == c).nonzero().squeeze(1)
        if len(members) < 2:
            continue
        order = torch.randperm(len(members), generator=child(seed, "selective-fd", "validation", party, c))
        points = represent(data.x[members[order.to(members.device)]])
        n_known = known_records(len(points), validation=settings.validation, most=settings.known)
        known, validation = points[:n_known], points[n_known:]
        uniform = box.uniform(settings.uniform, child(seed, "selective-fd", "uniform", party, c))
        estimator = _estimator(settings, points, child_seed(seed, "selective-fd", "landmarks", party, c))
        ratio = estimator.fit(known, uniform.to(known))
        fitted.append(ClassDensity(ratio, threshold(ratio.ratio(validation), settings.tau_client)))
    return DensitySelector(tuple(fitted))


def _estimator(settings: Selection, points: Tensor, seed: int) -> KuLSIF | NystromKuLSIF:
    beta = settings.uniform**-0.5 if settings.beta is None else settings.beta
    sigma = default_bandwidth(points) if settings.bandwidth is None else settings.bandwidth
    if settings.landmarks is None:
        return KuLSIF(sigma, beta)
    return NystromKuLSIF(sigma, beta, landmarks=settings.landmarks, seed=seed)


# -- selectors by a model's outputs -----------------------------------------------------------------------------


def confidence(logits: Tensor) -> Tensor:
    """The largest class probability at logits (n, C): (n,) (DeVries & Taylor 2018 as Shao et al. use it)."""
    return logits.double().softmax(1).amax(1)


def energy(logits: Tensor) -> Tensor:
    """The negative free energy log Σ_c exp z_c at logits (n, C): (n,), larger within (Liu et al. 2020, at T = 1)."""
    return logits.double().logsumexp(1)

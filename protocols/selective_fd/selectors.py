"""Client-side selectors: decide which proxy samples a client can predict reliably.

A selector scores samples. A sample is accepted if its score is at least the τ_client quantile of the scores of local
validation records. It then counts as within the client's distribution, and the client answers for it (Shao et al. 2023,
"Client-Side Selector").

Guarantees:
  * the records that fit an estimator are not used for its threshold (except for the default width of its kernel);
  * a sample with a non-positive density estimate is declined, for every threshold.
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
    "BoundingBox",
    "ClassDensity",
    "DensitySelector",
    "Selection",
    "confidence",
    "energy",
    "fit_density",
    "threshold",
]


class Selection(ProtocolConfig):
    """The settings of a client's selector."""

    selector: Literal["density-ratio", "confidence", "energy", "none"] = "density-ratio"
    """The client's selector: KuLSIF, or the paper's ablations by its model's outputs; `none` answers all."""
    space: Literal["input", "features"] = "input"
    """The space of density estimation: pixels, or the features of an encoder (colour images). The encoder is trained on
    labelled auxiliary records, and every client has it without a message."""
    tau_client: float = Field(0.25, ge=0, lt=1)
    """τ_client: a sample is declined if it scores below this quantile of the validation records' scores."""
    known: int = Field(1000, ge=1)
    """Largest number of a class's records that a density is estimated from; the others are its validation split."""
    validation: float = Field(0.5, gt=0, lt=1)
    """Smallest share of a class's records in its validation split."""
    uniform: int = Field(250, ge=1)
    """n_u: uniform samples that a density is compared with."""
    bandwidth: float | None = Field(None, gt=0)
    """σ of the Gaussian kernel; default: a sixth of the median distance between a class's records, its validation split
    included. The threshold is then set on records that had a part in the width."""
    beta: float | None = Field(None, gt=0)
    """β, the weight of the norm in Eq. 1; default: n_u^-1/2."""
    landmarks: int | None = Field(None, ge=1)
    """Number of Nyström landmarks, for sets too large for an exact solution; default: exact."""


@dataclass(frozen=True, eq=False)
class BoundingBox:
    """The smallest box around the space of densities: lower and upper bounds (d,)."""

    low: Tensor
    high: Tensor

    @classmethod
    def unit(cls, d: int) -> BoundingBox:
        """Return [0, 1]^d, the box of images."""
        return cls(torch.zeros(d), torch.ones(d))

    @classmethod
    def around(cls, points: Tensor) -> BoundingBox:
        """Return the bounding box of points (n, d)."""
        return cls(points.amin(0), points.amax(0))

    def uniform(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw uniform points (n, d)."""
        points = torch.rand(n, len(self.low), generator=generator).to(self.low)
        return self.low + (self.high - self.low) * points


@dataclass(frozen=True, eq=False)
class ClassDensity:
    """A client's estimate for one class: its density ratio and its threshold τ."""

    ratio: DensityRatio
    threshold: float


@dataclass(frozen=True, eq=False)
class DensitySelector:
    """One density ratio a class; a sample is accepted if any of them reaches its own threshold."""

    classes: tuple[ClassDensity, ...]

    def scores(self, points: Tensor) -> Tensor:
        """Return max_c w_c(x) / τ_c at points (n, d): (n,) float64, at least 1 if a sample is accepted.

        Without classes there is no density, and every score is -inf.
        """
        scores = torch.full((len(points),), -torch.inf, dtype=torch.float64)
        for density in self.classes:
            scores = scores.maximum(density.ratio.ratio(points).cpu() / density.threshold)
        return scores

    def accepts(self, points: Tensor) -> Tensor:
        """Return which of the points (n, d) the client answers for: (n,) bool."""
        return self.scores(points) >= 1


def fit_density(
    data: PartyData,
    settings: Selection,
    *,
    represent: Callable[[Tensor], Tensor],
    box: BoundingBox,
    seed: int,
    party: str,
) -> DensitySelector:
    """Fit a client's density selector (Eq. 1; one estimator a class: supplementary, "More Details of Experiments").

    A class with a single record gets no estimator, because no record is left for a threshold.

    Args:
        data: the client's records.
        settings: how it is fitted.
        represent: images (n, c, h, w) to points (n, d).
        box: the space of the points.
        seed: of the run.
        party: the selector's owner, for the names of its draws.
    """
    beta = settings.uniform**-0.5 if settings.beta is None else settings.beta
    fitted = []
    for c in data.y.unique().tolist():
        members = (data.y == c).nonzero().squeeze(1)
        if len(members) < 2:
            continue
        order = torch.randperm(len(members), generator=child(seed, "selective-fd", "validation", party, c))
        points = represent(data.x[members[order.to(members.device)]])
        n_known = known_records(len(points), validation=settings.validation, most=settings.known)
        fit_points, validation = points[:n_known], points[n_known:]
        uniform = box.uniform(settings.uniform, child(seed, "selective-fd", "uniform", party, c))
        sigma = default_bandwidth(points) if settings.bandwidth is None else settings.bandwidth
        estimator: KuLSIF | NystromKuLSIF = KuLSIF(sigma, beta)
        if settings.landmarks is not None:
            landmark_seed = child_seed(seed, "selective-fd", "landmarks", party, c)
            estimator = NystromKuLSIF(sigma, beta, landmarks=settings.landmarks, seed=landmark_seed)
        ratio = estimator.fit(fit_points, uniform.to(fit_points))
        fitted.append(ClassDensity(ratio, threshold(ratio.ratio(validation), settings.tau_client)))
    return DensitySelector(tuple(fitted))


# -- selectors by a model's outputs -----------------------------------------------------------------------------


def confidence(logits: Tensor) -> Tensor:
    """Return the largest class probability at logits (n, C): (n,) (DeVries & Taylor 2018 as Shao et al. use it)."""
    return logits.double().softmax(1).amax(1)


def energy(logits: Tensor) -> Tensor:
    """Return the negative free energy log Σ_c exp z_c at logits (n, C): (n,), larger within (Liu et al. 2020, T=1)."""
    return logits.double().logsumexp(1)

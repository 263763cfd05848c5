"""The prior that denoises inverted images: images of each class, as auxiliary records show them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from .composition import class_means

__all__ = ["ClassPrior"]

_RECORDS = 2000
"""Records at most behind a covariance: the time of its decomposition grows with their square."""


@dataclass(frozen=True, eq=False)
class ClassPrior:
    """A Gaussian around each class's mean auxiliary image, with one covariance for all classes.

    The covariance of the d pixel values is that of auxiliary images around their class means, shrunk towards a multiple
    of the identity (Ledoit & Wolf 2004). With few records it therefore hardly prefers any direction.

    Attributes:
        means: (C, c, h, w) mean image of each class.
        directions: (r, d) orthonormal principal directions.
        variances: (r,) variance along each of them.
        rest: variance along every other direction.
    """

    means: Tensor
    directions: Tensor
    variances: Tensor
    rest: float

    @classmethod
    def of(cls, auxiliary: tuple[Tensor, Tensor], classes: int) -> ClassPrior:
        """Return the prior of auxiliary records (x, y); images (n, c, h, w), labels (n,)."""
        x, y = auxiliary
        means = class_means(auxiliary, classes)
        step = -(-len(x) // _RECORDS)
        residuals = (x - means[y]).flatten(1)[::step].double().cpu()
        n, d = residuals.shape
        _, singular, directions = torch.linalg.svd(residuals, full_matrices=False)
        sampled = singular.square() / n
        mean = float(sampled.sum()) / d
        # The share of the identity in the covariance of residuals (Ledoit & Wolf 2004, Lemma 3.2 to 3.4).
        square = float(sampled.square().sum())
        distance = square / d - mean**2
        error = (float(residuals.square().sum(1).square().mean()) - square) / (n * d)
        share = 1.0
        if distance > 0:
            share = min(1.0, error / distance)
        return cls(means, directions, (1 - share) * sampled + share * mean, share * mean)

    def to(self, device: torch.device) -> ClassPrior:
        """Return the same prior with its class means on a device."""
        return replace(self, means=self.means.to(device))

    @cached_property
    def _mean_variance(self) -> float:
        others = self.directions.shape[1] - len(self.variances)
        return float(self.variances.sum() + others * self.rest) / self.directions.shape[1]

    def denoised(self, images: Tensor, labels: Tensor, share: float) -> Tensor:
        """Return the most probable images, given noisy ones (…, n, c, h, w) of classes `labels` (…, n).

        The error of an inverted image is taken for white noise. Its variance is stated by `share`, the weight of the
        class mean if the prior had the same variance along all directions: 0 leaves images, 1 returns class means.

        Source: Wiener 1949, for images Pratt 1972.
        """
        if not share:
            return images
        means = self.means.to(images)[labels]
        if share == 1 or not self._mean_variance:
            return (1 - share) * images.nan_to_num(0.5).clamp(0, 1) + share * means
        # Wiener's filter keeps v / (v + noise) of a residual along a direction of variance v. All directions keep the
        # share of `rest` first, and the principal ones the difference to their own.
        noise = self._mean_variance * share / (1 - share)
        factors = self.variances / (self.variances + noise)
        least = self.rest / (self.rest + noise)
        residuals = (images.nan_to_num(0.5).clamp(0, 1) - means).flatten(-3)
        directions = self.directions.to(residuals)
        along = (residuals @ directions.T) * (factors - least).to(residuals)
        filtered = least * residuals + along @ directions
        return (means + filtered.view_as(means)).clamp(0, 1)

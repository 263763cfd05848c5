"""DP-SGD: training on private records by clipped and noisy sums of their gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.events import SampledGaussian
from fdaudit.registry import DefenseCard
from fdaudit.rng import SecretStream

__all__ = ["DPSGD", "DPSGDConfig"]


class DPSGDConfig(Config):
    """Settings of DP-SGD; symbols follow Abadi et al. 2016, Algorithm 1."""

    clip: float = Field(gt=0)
    """C: ℓ2 norm to which the gradient of each record is clipped, over all parameters: a public constant."""
    noise_multiplier: float = Field(gt=0)
    """σ: the noise on the sum has standard deviation σC."""
    sample_rate: float = Field(gt=0, le=1)
    """q: the probability that a record takes part in a step: a public constant, for any number of records."""
    expected_batch: int | None = Field(None, ge=1)
    """Divisor of the noisy sum, a public constant; default: the protocol's own batch size."""


class DPSGD:
    """Trains on each client's own records with noisy sums of clipped gradients; the trained model is the release.

    Every step draws each record with probability q by its own secret coin (Poisson sampling). It clips the gradient of
    each drawn record to ℓ2 norm C, adds the gradients up, adds Gaussian noise of deviation σC and divides by a
    public constant. A training of T steps is T Gaussian releases of sensitivity C on Poisson samples, for one record
    added or removed. With `local_epochs` a training has ⌈epochs / q⌉ steps, so their number does not depend on the
    client's data. A step that draws no record follows the noise alone. Momentum, weight decay, a proximal term
    and the learning rate act on the noisy gradient and cost nothing.

    The guarantee covers everything computed from the trained model and no other private data. Counts of records,
    selectors, validation thresholds and class-wise means are further accesses to the records.

    Guarantees:
      * clip, noise, rate, divisor and number of steps are public constants;
      * coins and noise come from the vault's secret, never from the run's seed;
      * a record whose gradient is NaN or infinite adds nothing;
      * clipping and summing use double precision, so rounding cannot exceed the clip.
    """

    card = DefenseCard(
        name="dp-sgd",
        at="training",
        source=(
            "Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar & Zhang 2016, Algorithm 1; per-sample gradients: "
            "Opacus (Yousefpour et al. 2021)"
        ),
        protects="each record of a client, in all that is computed from the trained model alone",
    )
    Config: ClassVar[type[DPSGDConfig]] = DPSGDConfig

    def __init__(self, config: DPSGDConfig, batch_size: int) -> None:
        self.config: DPSGDConfig = config
        self.expected_batch = config.expected_batch or batch_size
        """The divisor of the noisy sum."""

    def describe(self) -> Mapping[str, Any]:
        """Return name and parameters."""
        return {
            "name": self.card.name,
            **self.config.model_dump(),
            "expected_batch": self.expected_batch,
            "sampling": f"Poisson at rate {self.config.sample_rate:g}, secret coins",
        }

    def steps(self, length: Mapping[str, int | None]) -> int:
        """Return `steps`, or the number that `epochs` passes take in expectation: ⌈epochs / q⌉.

        The quotient uses the rate as written: 3 epochs at q = 0.1 are 30 steps, not 31.
        """
        steps = length.get("steps")
        if steps is not None:
            return steps
        rate = Fraction(repr(self.config.sample_rate))
        return math.ceil(Fraction(length.get("epochs") or 0) / rate)

    def draw(self, records: int, noise: SecretStream) -> Tensor:
        """Return the numbers (b,) of the records drawn by coins of probability q, in ascending order."""
        return torch.as_tensor(noise.uniform(records) < self.config.sample_rate).nonzero().flatten()

    def clipped(self, per_sample: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return Σ_i g_i / max(1, ||g_i|| / C), in double precision."""
        rows, squares = dict[str, Tensor](), list[Tensor]()
        for name, sample in per_sample.items():
            g = rows[name] = sample.flatten(1).double()
            squares.append(torch.einsum("ij,ij->i", g, g))
        norms = torch.stack(squares).sum(0).sqrt()
        usable = torch.isfinite(norms)
        factors = torch.where(usable, self.config.clip / norms.clamp(min=self.config.clip), 0.0)
        all_usable = bool(usable.all())
        sums = dict[str, Tensor]()
        for name, g in rows.items():
            if not all_usable:  # 0 times infinity is NaN
                g = g.where(usable[:, None], 0.0)
            sums[name] = (factors @ g).reshape(per_sample[name].shape[1:])
        return sums

    def noised(self, total: Mapping[str, Tensor], noise: SecretStream) -> dict[str, Tensor]:
        """Return (Σ + N(0, σ²C²)) over the public batch size, drawn in the order of names."""
        scale = self.config.noise_multiplier * self.config.clip
        averages = {}
        for name in sorted(total):
            draws = torch.as_tensor(noise.normal(*total[name].shape)).to(total[name].device)
            averages[name] = (total[name] + scale * draws) / self.expected_batch
        return averages

    def event(self, steps: int) -> SampledGaussian:
        """Return `steps` subsampled Gaussians for a record added or removed."""
        return SampledGaussian(
            sensitivity=self.config.clip,
            scale=self.config.noise_multiplier * self.config.clip,
            sample_rate=self.config.sample_rate,
            count=steps,
            unit="record",
            relation="add-or-remove",
            covers=("data",),
        )

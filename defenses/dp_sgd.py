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
from fdaudit.rng import SecretStream

__all__ = ["DPSGD", "DPSGDConfig"]


class DPSGDConfig(Config):
    """Settings of DP-SGD; symbols follow Abadi et al. 2016, Algorithm 1."""

    clip: float = Field(gt=0)
    """C: ℓ2 norm to which the gradient of each record is clipped, over all parameters: a public constant."""
    noise_multiplier: float = Field(gt=0)
    """σ: the noise on the sum has standard deviation σC."""
    sample_rate: float = Field(gt=0, le=1)
    """q: the chance of each record to take part in a step: a public constant, whatever a client's number of records."""
    expected_batch: int | None = Field(None, ge=1)
    """What the noisy sum is divided by, a public constant; default: the protocol's own batch size."""


class DPSGD:
    """Trains on each client's own records by noisy sums of clipped gradients: what is learnt is the release.

    Every step draws each of a client's records with probability q by a secret coin of its own (Poisson sampling), clips
    the gradient of each drawn record to ℓ2 norm C, adds them up, adds Gaussian noise of deviation σC and divides by a
    public constant. A training of T steps is T Gaussian releases of sensitivity C on Poisson samples, for one record
    added or taken away. With `local_epochs` a training has ⌈epochs / q⌉ steps, so that their number says nothing of a
    client's. A step that draws nobody is taken along the noise alone. Momentum, weight decay, a proximal term
    and the learning rate act on the noisy gradient and cost nothing.

    It covers what is computed from the trained model and from nothing else of a client's. Counts of records,
    selectors, validation thresholds and class-wise means are further looks at the records.

    Guarantees:
      * clip, noise, rate, divisor and number of steps are public constants;
      * coins and noise come from the vault's secret, never from the run's seed;
      * a record whose gradient is NaN or infinite adds nothing;
      * clipping and summing are in double precision, so that no rounding passes the clip.
    """

    name: ClassVar[str] = "dp-sgd"
    at: ClassVar[str] = "training"
    source: ClassVar[str] = (
        "Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar & Zhang 2016, Algorithm 1; per-sample gradients: "
        "Opacus (Yousefpour et al. 2021)"
    )
    protects: ClassVar[str] = "each record of a client, in all that is computed from the trained model alone"
    Config: ClassVar[type[DPSGDConfig]] = DPSGDConfig

    def __init__(self, config: DPSGDConfig, batch_size: int) -> None:
        self.config: DPSGDConfig = config
        self._expected = config.expected_batch or batch_size

    @property
    def expected_batch(self) -> int:
        """What the noisy sum is divided by."""
        return self._expected

    def describe(self) -> Mapping[str, Any]:
        """Name and parameters."""
        return {
            "name": self.name,
            **self.config.model_dump(),
            "expected_batch": self._expected,
            "sampling": f"Poisson at rate {self.config.sample_rate:g}, secret coins",
        }

    def steps(self, length: Mapping[str, int | None]) -> int:
        """`steps`, or as many as `epochs` passes take in expectation: ⌈epochs / q⌉.

        The quotient is of the rate as it is written: 3 epochs at q = 0.1 are 30 steps, not 31.
        """
        if (steps := length.get("steps")) is not None:
            return steps
        return math.ceil(Fraction(length.get("epochs") or 0) / Fraction(repr(self.config.sample_rate)))

    def draw(self, records: int, noise: SecretStream) -> Tensor:
        """The numbers (b,) of the records whose coin of probability q says so, in rising order."""
        return torch.as_tensor(noise.uniform(records) < self.config.sample_rate).nonzero().flatten()

    def clipped(self, per_sample: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Σ_i g_i / max(1, ||g_i|| / C), in double precision."""
        rows = {n: g.flatten(1).double() for n, g in per_sample.items()}
        norms = torch.stack([torch.einsum("ij,ij->i", g, g) for g in rows.values()]).sum(0).sqrt()
        usable = torch.isfinite(norms)
        factors = torch.where(usable, self.config.clip / norms.clamp(min=self.config.clip), 0.0)
        if not bool(usable.all()):  # nought times infinity is no number
            rows = {n: g.where(usable[:, None], 0.0) for n, g in rows.items()}
        return {n: (factors @ g).reshape(per_sample[n].shape[1:]) for n, g in rows.items()}

    def noised(self, total: Mapping[str, Tensor], noise: SecretStream) -> dict[str, Tensor]:
        """(Σ + N(0, σ²C²)) over the public batch size, drawn in the order of names."""
        scale = self.config.noise_multiplier * self.config.clip
        found = {}
        for name in sorted(total):
            drawn = torch.as_tensor(noise.normal(*total[name].shape)).to(total[name].device)
            found[name] = (total[name] + scale * drawn) / self._expected
        return found

    def event(self, steps: int) -> SampledGaussian:
        """`steps` subsampled Gaussians for a record added or taken away."""
        return SampledGaussian(
            sensitivity=self.config.clip,
            scale=self.config.noise_multiplier * self.config.clip,
            sample_rate=self.config.sample_rate,
            count=steps,
            unit="record",
            relation="add-or-remove",
            covers=("data",),
        )

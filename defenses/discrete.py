"""Whole-number noise on a grid: answers are rounded to codes, and the noise on the codes is drawn exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fdaudit.events import DiscreteGaussian, DiscreteLaplace, Event
from fdaudit.registry import DefenseCard
from fdaudit.rng import SecretStream
from fdaudit.transcript.encoding import MOST_BITS, EvenGrid, packed
from fdaudit.transcript.wire import Released

from ._exact import LEAST_SCALE, MOST_SCALE, Ints, discrete_gaussian, discrete_laplace
from ._parts import Configured, Moved, NoiseConfig, finite, moved, unclaimed, values_of, without_shares

__all__ = [
    "DiscreteGaussianNoise",
    "DiscreteGaussianNoiseConfig",
    "DiscreteLaplaceNoise",
    "DiscreteLaplaceNoiseConfig",
]

_MOST_CODE = 2**MOST_BITS - 1
_ROOM, _WIDE = 8, 32
"""Room on either side of the grid, in scales of the noise: the least, and the room used if codes suffice."""


class _GridConfig(NoiseConfig):
    """Common settings of whole-number noise."""

    clip: float = Field(gt=0)
    """B: every value is clipped to ±B first, a public constant."""
    levels: int = Field(16, ge=1, le=_MOST_CODE)
    """Steps from -B to B: values are rounded to `levels` + 1 points, and the noise is in whole steps."""

    @property
    def step(self) -> float:
        """Return the distance of neighbouring points, in the units of the values."""
        return 2 * self.clip / self.levels

    @property
    def scale(self) -> float:
        """Return the noise's scale in steps."""
        raise NotImplementedError

    @property
    def margin(self) -> int:
        """Return the number of extra points on either side of the grid; noise beyond them is clipped to the last."""
        room: int = (_MOST_CODE - self.levels) // 2
        return min(int(_WIDE * self.scale) + 1, room)

    @model_validator(mode="after")
    def _fits(self) -> _GridConfig:
        if not LEAST_SCALE <= self.scale <= MOST_SCALE:
            raise ValueError(
                f"makes the noise {self.scale:.3g} steps wide, less than {LEAST_SCALE:.2g} or more than "
                f"{MOST_SCALE:.0f}. Change levels."
            )
        if self.margin < _ROOM * self.scale:
            raise ValueError(
                f"leaves no room for noise of {self.scale:.0f} steps among {_MOST_CODE + 1:,} codes. "
                "Take fewer levels: then a step is wider."
            )
        return self


class DiscreteLaplaceNoiseConfig(_GridConfig):
    """Settings of discrete Laplace noise on a message."""

    gamma: float = Field(gt=0)
    """γ: the noise has scale 1/γ, in the units of the values sent."""

    @property
    def scale(self) -> float:
        """Return the noise's scale in steps."""
        return 1 / self.gamma / self.step


class DiscreteGaussianNoiseConfig(_GridConfig):
    """Settings of discrete Gaussian noise on a message."""

    sigma: float = Field(gt=0)
    """σ of the noise, in the units of the values sent."""

    @property
    def scale(self) -> float:
        """Return the noise's scale in steps."""
        return self.sigma / self.step


Grids = TypeVar("Grids", bound=_GridConfig)


class _GridNoise(Configured[Grids]):
    """Base of grid noise: clips, rounds to the nearest point, adds whole steps, and sends the codes packed."""

    def release(self, kind: str, tensors: Mapping[str, Tensor], noise: SecretStream) -> Released:
        """Round every tensor except `index`, add noise, and state the guarantee.

        Raises:
            ProtocolError: `client_share` does not fit the values, or comes without `client_bound`.
        """
        cfg = self.config
        lowest = -cfg.clip - cfg.margin * cfg.step
        grid = EvenGrid(lowest, cfg.step, cfg.levels + 2 * cfg.margin + 1)
        values = values_of(tensors)
        message = without_shares(tensors)
        for name in values:
            del message[name]
        for name, tensor in values.items():
            draws = torch.from_numpy(self._drawn(tensor.numel(), noise)).reshape(tensor.shape)
            codes = self._codes(tensor).cpu() + cfg.margin + draws
            message |= packed(name, codes.clamp(0, grid.points - 1), grid)
        event: Event | None = unclaimed(tensors, cfg.public_index)
        if event is None:
            event = self._event(moved(self.card.name, tensors, cfg.clip, cfg.levels))
        return Released(kind=kind, tensors=message, event=event)

    def _codes(self, sent: Tensor) -> Tensor:
        """Return the number of the point nearest to each value, from 0 to `levels`; halves go up."""
        cfg = self.config
        steps = (finite(sent).clamp(-cfg.clip, cfg.clip) + cfg.clip) / cfg.step
        return (steps + 0.5).floor().clamp(0, cfg.levels).long()

    def _drawn(self, n: int, noise: SecretStream) -> Ints:
        raise NotImplementedError

    def _event(self, by: Moved) -> Event:
        raise NotImplementedError


class DiscreteLaplaceNoise(_GridNoise[DiscreteLaplaceNoiseConfig]):
    """Rounds every value to a grid and adds exactly drawn discrete Laplace noise of scale 1/γ in whole steps.

    There are `levels` steps from -B to B. Replacing all data behind the message moves each of its
    n codes by at most `levels`. One message is a discrete Laplace release of ℓ1 sensitivity n · levels in steps, for
    the client as unit. For an average of values within ±B with `client_share` ω, one client moves each code by at most
    floor(ω · levels) + 1. The noise uses no floating-point numbers, so low bits reveal nothing
    (Mironov 2012). Codes beyond the outermost points are set to these, at no privacy cost.

    Guarantees:
      * clip and grid are constants of the spec, never taken from the data;
      * the noise follows its law exactly, and comes from the vault's secret;
      * NaN and infinite values count as 0;
      * ceil(log2(points)) bits a value cross the wire.
    """

    card = DefenseCard(
        name="discrete-laplace",
        source=(
            "Ghosh, Roughgarden & Sundararajan 2012; drawn as in Canonne, Kamath & Steinke 2020, Algorithm 2"
        ),
        protects="the values of one message",
        fixed_size=True,
    )
    Config: ClassVar[type[DiscreteLaplaceNoiseConfig]] = DiscreteLaplaceNoiseConfig

    def _drawn(self, n: int, noise: SecretStream) -> Ints:
        return discrete_laplace(self.config.scale, n, noise)

    def _event(self, by: Moved) -> Event:
        return DiscreteLaplace(
            sensitivity=self.config.levels * by.l1,
            scale=self.config.scale,
            unit="client",
            relation="replace-one",
            covers=by.covers,
        )


class DiscreteGaussianNoise(_GridNoise[DiscreteGaussianNoiseConfig]):
    """Rounds every value to a grid and adds exactly drawn discrete Gaussian noise of parameter σ in whole steps.

    There are `levels` steps from -B to B. Replacing all data behind the message moves each of its
    n codes by at most `levels`. One message is a discrete Gaussian release of ℓ2 sensitivity √n · levels in steps,
    for the client as unit. For an average of values within ±B with `client_share` ω, one client moves each code by at
    most floor(ω · levels) + 1. The noise uses no floating-point numbers, so low bits reveal nothing
    (Mironov 2012). Codes beyond the outermost points are set to these, at no privacy cost.

    Guarantees:
      * clip and grid are constants of the spec, never taken from the data;
      * the noise follows its law exactly, and comes from the vault's secret;
      * NaN and infinite values count as 0;
      * ceil(log2(points)) bits a value cross the wire.
    """

    card = DefenseCard(
        name="discrete-gaussian",
        source="Canonne, Kamath & Steinke 2020, Theorem 4; drawn by its Algorithm 3",
        protects="the values of one message",
        fixed_size=True,
    )
    Config: ClassVar[type[DiscreteGaussianNoiseConfig]] = DiscreteGaussianNoiseConfig

    def _drawn(self, n: int, noise: SecretStream) -> Ints:
        return discrete_gaussian(self.config.scale, n, noise)

    def _event(self, by: Moved) -> Event:
        return DiscreteGaussian(
            sensitivity=self.config.levels * by.l2,
            scale=self.config.scale,
            unit="client",
            relation="replace-one",
            covers=by.covers,
        )

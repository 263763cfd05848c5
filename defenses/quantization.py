"""Uniform quantisation of logits (Gong et al. 2022, Eq. 3 and 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.errors import ProtocolError, SpecError
from fdaudit.events import NoGuarantee
from fdaudit.registry import DefenseCard
from fdaudit.rng import SecretStream
from fdaudit.transcript.encoding import EvenGrid, packed
from fdaudit.transcript.wire import Released

from ._parts import Configured, without_shares

__all__ = ["UniformQuantization", "UniformQuantizationConfig", "uniform_quantize"]

Rule = Literal["eq3", "eq4"]
_MOST_LEVELS = 2**16 - 1


def uniform_quantize(z: Tensor, levels: int, z_max: float | Tensor, grid: Rule = "eq4") -> Tensor:
    """Round every value up to the next point of a uniform grid on [-z_max, z_max].

    Eq. 4 has the grid `k · 2 z_max / S` for whole k, from ceil(-S/2) to ceil(S/2): S + 1 points, including zero. For
    odd S the last one is half a step beyond z_max. Eq. 3 has `2 (s - 1) z_max / (S - 1) - z_max` for s from 1 to
    S: S points, including both ends. Values beyond ±z_max are first clipped to it.

    Guarantees:
      * idempotent: a grid point, as the dtype of z represents it, is unchanged;
      * the result is never below the clipped value and at most one step above it, up to the dtype's rounding;
      * monotone, with at most S + 1 (Eq. 4) or S (Eq. 3) different values.

    Args:
        z: values of any shape, float32 or float64.
        levels: S, from 2 to 65,535.
        z_max: half the grid's width, in the units of z; positive and finite.
        grid: `eq4` or `eq3`.

    Raises:
        SpecError: `levels`, `z_max` or `grid` is out of range, or z has values that are not finite.
    """
    points = _grid(levels, float(z_max), grid)
    z = torch.as_tensor(z)
    z = z if z.is_floating_point() else z.to(torch.get_default_dtype())
    return points.values(_codes(z, points, float(z_max)), z.dtype)


def _grid(levels: int, z_max: float, rule: str) -> EvenGrid:
    if not 2 <= levels <= _MOST_LEVELS:
        raise SpecError("levels", levels, "is no number of levels", f"Give 2 to {_MOST_LEVELS:,}.")
    if rule not in ("eq3", "eq4"):
        raise SpecError("grid", rule, "is not a known grid", "Give 'eq4' or 'eq3'.")
    step = 2 * z_max / (levels if rule == "eq4" else levels - 1)
    if not (z_max > 0 and 0 < step < math.inf):
        raise SpecError("z_max", z_max, "leaves no grid", "Give a positive, finite number.")
    if rule == "eq3":
        return EvenGrid(-z_max, step, levels)
    return EvenGrid(math.ceil(-levels / 2) * step, step, levels + 1)


def _codes(z: Tensor, grid: EvenGrid, z_max: float) -> Tensor:
    """Return for each value the number of the lowest grid point that is not below it."""
    if not torch.isfinite(z).all():
        bad = z[~torch.isfinite(z)][0].item()
        raise SpecError("z", bad, "is not a finite number", "Quantise finite values.")
    z = z.clamp(-z_max, z_max)
    codes = ((z.double() - grid.lowest) / grid.step).ceil().clamp(0, grid.points - 1)
    # The division's rounding may have missed by one: the points count as the dtype of z represents them.
    codes = torch.where(grid.values(codes - 1, z.dtype) >= z, codes - 1, codes)
    codes = torch.where(grid.values(codes, z.dtype) < z, codes + 1, codes)
    # The lowest point may come out a rounding below -z_max, which is that point.
    return codes.masked_fill(z <= -z_max, 0).clamp(0, grid.points - 1)


class UniformQuantizationConfig(Config):
    """Settings of uniform quantisation."""

    levels: int = Field(200, ge=2, le=_MOST_LEVELS)
    """S: quantisation levels."""
    grid: Rule = "eq4"
    """The grid of Gong et al.'s Eq. 4 (S + 1 points, zero among them) or of their Eq. 3 (S points)."""
    z_max: float | None = Field(None, gt=0)
    """Values are clipped to ±z_max, a public constant. None: the protocol agrees on one and sends it along."""


class UniformQuantization(Configured[UniformQuantizationConfig]):
    """Rounds every value of a message to a uniform grid and sends the grid's numbers, packed bit by bit.

    A protocol that agrees on a range beforehand (FedKD's z_max) puts the tensor `z_max` () into the message. The
    defence takes the grid from it and does not send it on. Quantisation gives no differential
    privacy: it maps values to values without randomness. It saves bytes.

    Guarantees:
      * a receiver gets `uniform_quantize` of the values, in float32;
      * whole numbers (`index`, counts) are unchanged;
      * ceil(log2(points)) bits a value cross the wire; there are S + 1 (`eq4`) or S (`eq3`) points.
    """

    card = DefenseCard(
        name="uniform-quantization",
        source="Gong, Sharma, Karanam, Wu, Chen, Doermann & Innanje 2022, Eq. 3 and 4",
        protects="nothing by itself: it makes a message smaller",
        fixed_size=True,
    )
    Config: ClassVar[type[UniformQuantizationConfig]] = UniformQuantizationConfig

    def release(self, kind: str, tensors: Mapping[str, Tensor], noise: SecretStream) -> Released:
        """Round every floating-point tensor except `z_max`, which it consumes, and `client_share`, which it drops.

        Raises:
            ProtocolError: there is no range for the grid, or the values are not finite.
        """
        z_max = float(tensors["z_max"]) if "z_max" in tensors else self.config.z_max
        if z_max is None:
            problem = f"{self.card.name}: {kind} brings no z_max along, and the settings name none."
            raise ProtocolError(f"{problem} Set z_max to a public constant.")
        message: dict[str, Tensor] = {}
        try:
            grid = _grid(self.config.levels, z_max, self.config.grid)
            for name, tensor in without_shares(tensors).items():
                if name == "z_max":
                    continue
                if tensor.is_floating_point():
                    message |= packed(name, _codes(tensor.float(), grid, z_max), grid)
                else:
                    message[name] = tensor
        except SpecError as error:
            raise ProtocolError(f"{self.card.name} on {kind}: {error}") from None
        event = NoGuarantee(reason="rounding to a grid is no noise: equal values stay equal")
        return Released(kind=kind, tensors=message, event=event)

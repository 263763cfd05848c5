"""Recorded defences, applied to auxiliary gradients that stand in for a victim's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["defended"]

_Defense = Callable[[Tensor, Mapping[str, Any], torch.Generator], Tensor]


def defended(values: Tensor, defenses: Sequence[Mapping[str, Any]], generator: torch.Generator) -> Tensor:
    """Return messages (R, P) as these defences would have released them.

    Noise, clips and grids of gradients and updates are simulated. Other defences change nothing here.

    Args:
        values: the values of R messages before any defence.
        defenses: name and parameters of each defence, in the order in which they act, as messages record them.
        generator: draws the noise.
    """
    for defense in defenses:
        name = str(defense.get("name"))
        if name in _ACTS:
            values = _ACTS[name](values, defense, generator)
    return values


def _gaussian(values: Tensor, defense: Mapping[str, Any], generator: torch.Generator) -> Tensor:
    values = _clamped(values, defense.get("bound"))
    if defense.get("clip") is not None:
        values = _shortened(values, float(defense["clip"]))
    return values + float(defense["sigma"]) * _normal(values, generator)


def _dp_fedavg(values: Tensor, defense: Mapping[str, Any], generator: torch.Generator) -> Tensor:
    clip = float(defense["clip"])
    sigma = float(defense["sigma"]) * clip / math.sqrt(float(defense.get("shares", 1)))
    return _shortened(values, clip) + sigma * _normal(values, generator)


def _laplace(values: Tensor, defense: Mapping[str, Any], generator: torch.Generator) -> Tensor:
    noise = _double_exponential(values, generator) / float(defense["gamma"])
    return _clamped(values, defense.get("clip")) + noise


def _on_grid(values: Tensor, defense: Mapping[str, Any], generator: torch.Generator) -> Tensor:
    """Add noise in whole steps of a grid from -clip to clip; rounded continuous noise approximates the discrete."""
    step = 2 * float(defense["clip"]) / float(defense["levels"])
    if "gamma" in defense:
        noise = _double_exponential(values, generator) / float(defense["gamma"])
    else:
        noise = float(defense["sigma"]) * _normal(values, generator)
    noisy = _clamped(values, defense["clip"]) + noise
    return (noisy / step).round() * step


_ACTS: Mapping[str, _Defense] = {
    "discrete-gaussian": _on_grid,
    "discrete-laplace": _on_grid,
    "dp-fedavg": _dp_fedavg,
    "gaussian-noise": _gaussian,
    "laplace-noise": _laplace,
}


def _shortened(values: Tensor, clip: float) -> Tensor:
    """Return rows scaled down to an ℓ2 norm of `clip`."""
    norms: Tensor = values.norm(dim=1, keepdim=True)
    return values * (clip / norms.clamp_min(1e-30)).clamp_max(1)


def _clamped(values: Tensor, bound: float | None) -> Tensor:
    """Return values within ±`bound`; unchanged without one."""
    if bound is None:
        return values
    return values.clamp(-float(bound), float(bound))


def _normal(values: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(values.shape, generator=generator).to(values)


def _double_exponential(values: Tensor, generator: torch.Generator) -> Tensor:
    """Draw Laplace noise of scale 1: -sign(u) log(1 - 2|u|) of u uniform in ±1/2."""
    u = torch.rand(values.shape, generator=generator, dtype=torch.float64).sub_(0.5)
    sizes = -torch.log1p(-2 * u.abs().clamp_max(0.5 - 1e-12))
    return (u.sign() * sizes).to(values)

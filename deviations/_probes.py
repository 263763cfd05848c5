"""Probes: samples around a candidate, whose answers say more than the answer for the candidate alone."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = ["Kind", "probes_of"]

Kind = Literal["neighbours", "boundary", "gradients"]


def probes_of(
    kind: Kind, x: Tensor, y: Tensor, count: int, reach: float, generator: torch.Generator
) -> Tensor:
    """Return probes around each candidate (n, count, ...).

    Args:
        kind: `neighbours` in random directions; `gradients` in pairs on both sides of the candidate, so that finite
            differences of answers estimate the gradient at it; `boundary` at equal steps towards the nearest candidate
            of another class.
        x: (n, ...) the candidates.
        y: (n,) their classes.
        count: probes of a candidate.
        reach: distance of the farthest probe, root-mean-square over the values of a sample.
        generator: draws the directions.
    """
    flat = x.flatten(1).double()
    if kind == "boundary":
        distance = torch.cdist(flat, flat).masked_fill(y[:, None] == y, torch.inf)
        nearest, other = distance.min(1)
        root_mean_square = nearest / flat.shape[1] ** 0.5
        # The farthest probe is as far as asked for, or half the way if that is less.
        most = (reach / root_mean_square.clamp_min(1e-12)).clamp_max(0.5)
        way = most[:, None] * (flat[other] - flat)
        share = torch.arange(1, count + 1, dtype=torch.float64) / count
        offsets = share[:, None] * way[:, None]
    else:
        directions = torch.randn(len(x), count, flat.shape[1], generator=generator, dtype=torch.float64)
        if kind == "gradients":
            directions[:, 1::2] = -directions[:, : count - count % 2 : 2]
        offsets = reach * directions / directions.square().mean(2, keepdim=True).sqrt()
    probes: Tensor = flat[:, None] + offsets
    return probes.view(len(x), count, *x.shape[1:]).to(x)

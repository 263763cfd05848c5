"""What an optimiser needs to go on where it stopped, as named tensors, and the learning rate along the way."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["annealed", "moments_of", "restore_moments"]


def annealed(lr: float, final: float | None, step: int, steps: int) -> float:
    """The rate of step `step` of `steps`, from `lr` to `final` along half a cosine (Loshchilov & Hutter 2017, Eq. 5).

    None for `final` keeps the rate as it is.
    """
    if final is None:
        return lr
    return final + (lr - final) * (1 + math.cos(math.pi * step / steps)) / 2


def moments_of(optimizer: torch.optim.Optimizer, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of what an optimiser remembers of each parameter, as `moment/parameter`, on the CPU."""
    return {
        f"{moment}/{name}": torch.as_tensor(value).detach().cpu().clone()
        for name, parameter in named.items()
        for moment, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def restore_moments(
    optimizer: torch.optim.Optimizer, named: Mapping[str, Tensor], moments: Mapping[str, Tensor]
) -> None:
    """Lets a fresh optimiser go on from what `moments_of` gave."""
    for key, value in moments.items():
        moment, _, name = key.partition("/")
        # Adam's step count stays on the CPU, wherever the parameters are. A moment laid out in memory otherwise
        # than its parameter would take another path through the optimiser.
        kept = value.clone() if moment == "step" else torch.empty_like(named[name]).copy_(value)
        optimizer.state[named[name]][moment] = kept.detach()

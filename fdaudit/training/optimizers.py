"""Adam in one operation, what an optimiser needs to go on where it stopped, and the learning rate along the way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["adam", "annealed", "moments_of", "restore_moments"]


def adam(
    parameters: Iterable[Tensor],
    lr: float,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> torch.optim.Adam:
    """Adam (Kingma & Ba 2015), in one operation for all parameters on a CPU, where a dozen for each took longer.

    Args:
        parameters: all on one device.
        lr: the step.
        betas: decay of the moments.
        weight_decay: of the parameters.
        decoupled: decay them apart from the gradient (AdamW, Loshchilov & Hutter 2019).
    """
    tensors = list(parameters)
    fused = bool(tensors) and tensors[0].device.type == "cpu"
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind(tensors, lr=lr, betas=betas, weight_decay=weight_decay, fused=fused or None)
    if fused:
        optimizer.register_step_pre_hook(_laid_as_parameters)
    return optimizer


def _laid_as_parameters(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Lays gradients out in memory as their parameters are: the one operation does not look how they lie."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None and gradient.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter).copy_(gradient)


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

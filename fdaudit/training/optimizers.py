"""PyTorch's optimisers without its compiler, saved and restored optimiser state, and learning-rate schedules.

Guarantee:
  * making an optimiser and stepping it does not import `torch._dynamo`. PyTorch's own classes import it at first use,
    which takes a process longer than `import torch`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

__all__ = [
    "BETAS",
    "OptimizerName",
    "adam",
    "annealed",
    "lbfgs",
    "moments_of",
    "optimizer_in",
    "optimizer_of",
    "rate_in",
    "restore_moments",
    "sgd",
]

OptimizerName = Literal["sgd", "adam", "adamw"]
"""The optimisers of local training."""

BETAS = (0.9, 0.999)
"""PyTorch's default decay rates of Adam's moments."""


class _Uncompiled(torch.optim.Optimizer):
    """An optimiser whose methods have none of the decorators that tell the compiler to leave them out."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class _SGD(_Uncompiled, torch.optim.SGD):
    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))


class _Adam(_Uncompiled, torch.optim.Adam):
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class _AdamW(_Uncompiled, torch.optim.AdamW):
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class _LBFGS(_Uncompiled, torch.optim.LBFGS):
    pass


def sgd(
    parameters: Iterable[Tensor], lr: float, *, momentum: float = 0.0, weight_decay: float = 0.0
) -> torch.optim.SGD:
    """Return gradient descent; arguments as for `adam`."""
    return _SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)


def adam(
    parameters: Iterable[Tensor],
    lr: float,
    *,
    betas: tuple[float, float] = BETAS,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    fused: bool = True,
) -> torch.optim.Adam:
    """Return Adam (Kingma & Ba 2015).

    Args:
        parameters: all on one device.
        lr: the learning rate.
        betas: decay rates of the moments.
        weight_decay: of the parameters.
        decoupled: decouple weight decay from the gradient (AdamW, Loshchilov & Hutter 2019).
        fused: on a CPU, make a step one operation for all parameters, which is faster there.
    """
    tensors = list(parameters)
    fused = fused and bool(tensors) and tensors[0].device.type == "cpu"
    kind = _AdamW if decoupled else _Adam
    optimizer = kind(tensors, lr=lr, betas=betas, weight_decay=weight_decay, fused=fused or None)
    if fused:
        optimizer.register_step_pre_hook(_laid_as_parameters)
    return optimizer


def _laid_as_parameters(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Give gradients the memory layout of their parameters, because fused Adam ignores layouts."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None and gradient.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter).copy_(gradient)


def optimizer_of(
    name: OptimizerName,
    parameters: Iterable[Tensor],
    lr: float,
    *,
    momentum: float,
    betas: tuple[float, float],
    weight_decay: float,
) -> torch.optim.Optimizer:
    """Return the optimiser of a name; `momentum` is SGD's, `betas` are Adam's."""
    if name == "sgd":
        return sgd(parameters, lr, momentum=momentum, weight_decay=weight_decay)
    return adam(parameters, lr, betas=betas, weight_decay=weight_decay, decoupled=name == "adamw")


def lbfgs(parameters: Iterable[Tensor], max_iter: int) -> torch.optim.LBFGS:
    """Return L-BFGS with a line search by the strong Wolfe conditions; a step has at most `max_iter` iterations."""
    return _LBFGS(parameters, max_iter=max_iter, line_search_fn="strong_wolfe")


def annealed(lr: float, final: float | None, step: int, steps: int) -> float:
    """Return the rate of step `step` of `steps` on a half cosine (Loshchilov & Hutter 2017, Eq. 5), `lr` to `final`.

    If `final` is None, the rate is constant.
    """
    if final is None:
        return lr
    return final + (lr - final) * (1 + math.cos(math.pi * step / steps)) / 2


def moments_of(optimizer: torch.optim.Optimizer, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of an optimiser's state of each parameter, as `moment/parameter`, on the CPU."""
    moments = {}
    for name, parameter in named.items():
        for moment, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                moments[f"{moment}/{name}"] = torch.as_tensor(value).detach().cpu().clone()
    return moments


def restore_moments(
    optimizer: torch.optim.Optimizer, named: Mapping[str, Tensor], moments: Mapping[str, Tensor]
) -> None:
    """Load the state from `moments_of` into a fresh optimiser."""
    for key, value in moments.items():
        moment, _, name = key.partition("/")
        # Adam's step count stays on the CPU, for parameters on any device. A moment laid out in memory otherwise
        # than its parameter would take another path through the optimiser.
        parameter = named[name]
        state = value.clone() if moment == "step" else torch.empty_like(parameter).copy_(value)
        optimizer.state[parameter][moment] = state.detach()


def optimizer_in(settings: Mapping[str, Any]) -> OptimizerName:
    """Return the clients' optimiser by public settings; `sgd` if they name none that is known."""
    names: dict[object, OptimizerName] = {"adam": "adam", "adamw": "adamw"}
    return names.get(settings.get("optimizer"), "sgd")


def rate_in(settings: Mapping[str, Any], number: int) -> float | None:
    """Return the clients' learning rate in a round; None if public settings do not tell it.

    Args:
        settings: with `lr`, a number or a list of one for each round, and perhaps `lr_decay`, a factor per round.
        number: the round, from 0.
    """
    lr = settings.get("lr")
    if isinstance(lr, (list, tuple)):
        return float(lr[number]) if number < len(lr) else None
    return None if lr is None else float(lr) * float(settings.get("lr_decay") or 1.0) ** number

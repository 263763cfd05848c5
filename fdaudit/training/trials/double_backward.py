"""The trial of a network for gradient inversion: whether a gradient can be differentiated in the records."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor, nn

from fdaudit.errors import one_line
from fdaudit.models.network import call_with
from fdaudit.parallel.randomness import forked_randomness
from fdaudit.storage.digests import canonical
from fdaudit.training.replicas import Buildable
from fdaudit.training.separation import trial_loss

__all__ = ["double_backward_problem"]

_TRIED = 4
"""Records of a trial's batch."""

_problems: dict[bytes, str] = {}


def double_backward_problem(network: Buildable) -> str:
    """Return why the gradient of a network's loss cannot be differentiated in its records; empty if it can.

    Gradient inversion needs this, and nothing else does, so that it is tried for that alone. Attention is computed by
    the kernel that can be differentiated twice, as `call_with` does it. Equal networks are tried once in a process.

    Args:
        network: builds it; of images. For texts the trial is left out.

    Returns:
        One line, which names the layer if one alone shows it.
    """
    key = canonical([network.described, network.source])
    if key not in _problems:
        with forked_randomness(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of foreign code
            _problems[key] = _twice(network)
    return _problems[key]


def _twice(network: Buildable) -> str:
    module = network.build(torch.Generator().manual_seed(0)).train()
    x = network.random_inputs(_TRIED, torch.Generator().manual_seed(0))
    if not x.is_floating_point():
        return ""
    try:
        answers = call_with(module, {}, x.requires_grad_())
        _differentiate_twice(trial_loss(answers), x, module)
    except Exception as error:  # of foreign code
        where = _layer_of_one_backward(module, x)
        return (
            f"the gradient of the network cannot be differentiated in its images ({where}{one_line(error)})"
        )
    return ""


def _differentiate_twice(loss: Tensor, x: Tensor, module: nn.Module) -> None:
    """Differentiate in x the squared gradient of a loss in the parameters, or in x itself without parameters."""
    leaves: list[Tensor] = [p for p in module.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, leaves or [x], create_graph=True, allow_unused=True)
    # Into every leaf, because a function that is differentiable once is silently left out on the way to x alone.
    squares: list[Tensor] = []
    for gradient in gradients:
        if gradient is not None:
            square = gradient.square()
            squares.append(square.sum())
    torch.stack(squares).sum().backward()
    if x.grad is None:
        raise RuntimeError("the gradient does not depend on the images")


def _layer_of_one_backward(module: nn.Module, x: Tensor) -> str:
    """Return the first innermost layer that fails alone, as the beginning of a sentence; empty if none does."""
    inputs: dict[str, Tensor] = {}

    def keep(name: str, _: nn.Module, arguments: tuple[object, ...]) -> None:
        if len(arguments) == 1 and isinstance(arguments[0], Tensor) and arguments[0].is_floating_point():
            inputs.setdefault(name, arguments[0].detach().clone())

    layers: dict[str, nn.Module] = {}
    for name, layer in module.named_modules():
        if name and not list(layer.children()):
            layers[name] = layer
    with ExitStack() as hooks, torch.no_grad():
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_pre_hook(partial(keep, name)))
        call_with(module, {}, x)
    for name, layer_input in inputs.items():
        layer_input.requires_grad_()
        try:
            answer = call_with(layers[name], {}, layer_input)
            _differentiate_twice(answer.pow(3).sum(), layer_input, layers[name])
        except Exception:  # of foreign code
            return f"layer {name}, {type(layers[name]).__name__}: "
    return ""

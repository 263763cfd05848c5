"""Parameter gradients of many independent batches at one model, differentiable in the images.

A gradient-inversion attack maps a guessed batch to the gradient that a client would have sent for it, thousands of
times. `GradientMap` does this for R guessed batches (restarts, victims) at once. The module computes in the mode that
it is in: in training, BatchNorm normalises each batch by its own statistics.

Guarantees:
  * every strategy returns the same gradients, up to floating-point error;
  * the strategy depends only on the model and on R, never on timing or free memory;
  * gradients of one batch never depend on the other batches;
  * the given module is unchanged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from fdaudit.errors import UsageError
from fdaudit.models.network import call_with
from fdaudit.training.objectives import ClientStep

from .second_order.folded import Folded, foldable
from .second_order.tracing import Trace

__all__ = [
    "PLAIN",
    "GradientMap",
    "Simulator",
    "Strategy",
    "choose_strategy",
    "flatten",
    "stepped",
    "unfolded_values",
]

Strategy = Literal["loop", "vmap", "folded"]
"""How R gradients are computed: one at a time, under `torch.func.vmap`, or folded into one large batch."""

PLAIN = ClientStep()
"""The gradient of the mean cross-entropy."""
_FOLDED_VALUES = 4_000_000
_VMAP_BATCHES = 4
_TESTED = 3
"""Images in a batch that tests a recording."""
_SAME = 1e-3
"""Relative difference of two gradients that rounding explains."""


def flatten(tensors: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """Return the named tensors, in the order of `names`, as one vector (P,)."""
    return torch.cat([tensors[name].reshape(-1) for name in names])


class Simulator(ABC):
    """Maps guessed images and labels to a client's message."""

    @abstractmethod
    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Map images (R, B, c, h, w) and labels (R, B) or probabilities (R, B, C) to gradients or updates (R, P)."""

    def products(self, x: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return ⟨v_r, target_r⟩ and ‖v_r‖² of the simulated v (R, P): two tensors (R,)."""
        v = self(x, y)
        return (v * target).sum(1), v.square().sum(1)


def unfolded_values(module: nn.Module, shape: Sequence[int]) -> int:
    """Return the number of values in one image's unfolded inputs, over all convolutions and linear layers.

    Args:
        module: the network.
        shape: (c, h, w) of an image.
    """
    values: list[int] = []

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        if isinstance(layer, nn.Conv2d):
            values.append(layer.weight[0].numel() * out[0, 0].numel())
        else:
            values.append(inputs[0].numel())

    layers = [m for m in module.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    hooks = [m.register_forward_hook(count) for m in layers]
    trained = [m for m in module.modules() if m.training]
    try:
        with torch.no_grad():
            module.eval()(next(module.parameters()).new_zeros(1, *shape))
    finally:
        for hook in hooks:
            hook.remove()
        for m in trained:
            m.training = True
    return sum(values)


def choose_strategy(module: nn.Module, batches: int, images: int, shape: Sequence[int]) -> Strategy:
    """Return the strategy by a fixed rule: folded, unless batches are so large that plain autograd fills the caches.

    Measured on CPU cores: folding is faster while each batch's unfolded inputs stay below about 4 million values.
    `vmap`, for networks that cannot be folded, is faster from about four batches on.

    Args:
        module: the network.
        batches: R, the number of gradients.
        images: B, images behind each.
        shape: (c, h, w) of an image.
    """
    if foldable(module):
        return "folded" if images * unfolded_values(module, shape) <= _FOLDED_VALUES else "loop"
    return _unfolded(batches)


def _unfolded(batches: int) -> Strategy:
    return "vmap" if batches >= _VMAP_BATCHES else "loop"


@dataclass
class _Known:
    """The trace of a network, and its strategies by shape; neither depends on the values of its parameters."""

    trace: Trace | None = None
    strategies: dict[tuple[int, ...], Strategy] = field(default_factory=dict)


class GradientMap(Simulator):
    """Maps R batches of images and labels to the R gradients of their mean cross-entropy.

    Args:
        module: the architecture; its own parameter values are not used.
        tensors: named parameters, and buffers if the module has any, at which the gradient is computed.
        strategy: overrides `choose_strategy`, for comparisons.
        step: how a client makes a step's gradient; default: of the mean cross-entropy.

    Raises:
        UsageError: a parameter is missing or has another shape.
    """

    def __init__(
        self,
        module: nn.Module,
        tensors: Mapping[str, Tensor],
        strategy: Strategy | None = None,
        step: ClientStep = PLAIN,
    ) -> None:
        self.parameters, self._buffers = _split(module, tensors)
        self.names = tuple(self.parameters)
        self._module, self._strategy, self._step = module, strategy, step
        self._folded: Folded | None = None
        self._known = _Known()

    def at(self, tensors: Mapping[str, Tensor]) -> GradientMap:
        """Return the map at other tensors of the same network, which is neither traced nor tested again.

        Raises:
            UsageError: a parameter is missing or has another shape.
        """
        other = GradientMap(self._module, tensors, self._strategy, self._step)
        other._known = self._known
        return other

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return gradients (R, P) of images x (R, B, c, h, w) with labels y (R, B), or class probabilities (R, B, C).

        Parameters follow each other in the order of `names`. Differentiable in x and in probabilities y.
        """
        return self._step.clipped(self._gradients(x, stepped(self._step, self._module, x, y)))

    def _gradients(self, x: Tensor, y: Tensor) -> Tensor:
        strategy = self._choose(x)
        if strategy == "folded":
            return self._fold()(x, y)
        if strategy == "vmap":
            buffers = {name: b.expand(len(x), *b.shape) for name, b in self._buffers.items()}
            gradients: dict[str, Tensor] = vmap(self._vmapped)(x, y, buffers)
            return torch.cat([gradients[name].flatten(1) for name in self.names], 1)
        return torch.stack([self._one(xr, yr) for xr, yr in zip(x, y, strict=True)])

    def products(self, x: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return `Simulator.products`; when folded, the gradients of linear layers are never written out."""
        if self._choose(x) == "folded" and not self._step.clips:
            return self._fold().products(x, stepped(self._step, self._module, x, y), target)
        return super().products(x, y, target)

    def _choose(self, x: Tensor) -> Strategy:
        if self._strategy is not None:
            return self._strategy
        if self._step.function is not None:
            return "loop"
        key = (len(x), *x.shape[1:])
        if key not in self._known.strategies:
            rule = choose_strategy(self._module, len(x), x.shape[1], x.shape[2:])
            if rule == "folded" and not self._records(x):
                rule = _unfolded(len(x))
            self._known.strategies[key] = rule
        return self._known.strategies[key]

    def _records(self, x: Tensor) -> bool:
        """Return whether a pass can be recorded and gives the gradients of plain autograd, tested with two batches.

        A layer that mixes images would mix those of both batches.
        """
        shape = (2, min(_TESTED, x.shape[1]), *x.shape[2:])
        noise = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype).to(x.device)
        labels = torch.zeros(shape[:2], dtype=torch.long, device=x.device)
        try:
            gradients = self._fold()(noise, labels)
        except Exception:  # of foreign code, which may depend on values in any way
            return False
        expected = torch.stack([self._one(*batch) for batch in zip(noise, labels, strict=True)])
        return bool((gradients - expected).norm() <= _SAME * expected.norm())

    def _fold(self) -> Folded:
        if self._folded is None:
            if self._known.trace is None:
                self._known.trace = Trace.of(self._module)
            self._folded = Folded(self._known.trace, self.parameters, self._buffers)
        return self._folded

    def _loss(
        self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, buffers: Mapping[str, Tensor]
    ) -> Tensor:
        model = partial(call_with, self._module, {**parameters, **buffers})
        if self._step.function is None:  # `stepped` made targets of the labels
            return F.cross_entropy(model(x), y)
        return self._step.loss(model, x, y)

    def _vmapped(self, x: Tensor, y: Tensor, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        gradient: dict[str, Tensor] = grad(self._loss)(self.parameters, x, y, buffers)
        return gradient

    def _one(self, x: Tensor, y: Tensor) -> Tensor:
        parameters = {k: p.detach().requires_grad_() for k, p in self.parameters.items()}
        loss = self._loss(parameters, x, y, self._buffers)
        inputs = list(parameters.values())
        create = torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)
        gradients = torch.autograd.grad(loss, inputs, create_graph=create, allow_unused=True)
        parts = []
        for g, p in zip(gradients, inputs, strict=True):
            parts.append((torch.zeros_like(p) if g is None else g).reshape(-1))
        return torch.cat(parts)


def stepped(step: ClientStep, module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return labels (R, B) of images x (R, B, c, h, w) as the targets of a client's loss."""
    if step.plain:
        return y
    classes = len(step.class_weights) or y.shape[-1]
    if not y.is_floating_point() and not step.class_weights:
        with torch.no_grad():
            classes = call_with(module, {}, x[0]).shape[1]
    return step.targets(y, classes)


def _split(module: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the parameters that are trained, and all else: frozen parameters and buffers."""
    parameters: dict[str, Tensor] = {}
    frozen: dict[str, Tensor] = {}
    for name, own in module.named_parameters():
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != own.shape:
            shape = None if tensor is None else tuple(tensor.shape)
            raise UsageError(
                f"parameters.{name}",
                shape,
                f"does not fit the architecture, which has {tuple(own.shape)}",
                "Give the parameters of this architecture.",
            )
        (parameters if own.requires_grad else frozen)[name] = tensor.detach()
    buffers = {name: tensors.get(name, own).detach() for name, own in module.named_buffers()}
    return parameters, {**frozen, **buffers}

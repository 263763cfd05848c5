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
    "expanded",
    "flatten",
    "stepped",
    "trained_and_frozen",
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


def expanded(tensors: Mapping[str, Tensor], R: int) -> dict[str, Tensor]:
    """Return tensors with a first dimension of R equal rows, which `vmap` runs over."""
    return {name: tensor.expand(R, *tensor.shape) for name, tensor in tensors.items()}


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

    hooks = []
    in_training = []
    for m in module.modules():
        if isinstance(m, (nn.Conv2d, nn.Linear)):
            hooks.append(m.register_forward_hook(count))
        if m.training:
            in_training.append(m)
    image = next(module.parameters()).new_zeros(1, *shape)
    try:
        with torch.no_grad():
            module.eval()(image)
    finally:
        for hook in hooks:
            hook.remove()
        for m in in_training:
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
    if not foldable(module):
        return _unfolded(batches)
    if images * unfolded_values(module, shape) <= _FOLDED_VALUES:
        return "folded"
    return "loop"


def _unfolded(batches: int) -> Strategy:
    if batches >= _VMAP_BATCHES:
        return "vmap"
    return "loop"


@dataclass
class _NetworkFacts:
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
        self.parameters, self._buffers = trained_and_frozen(module, tensors)
        self.names = tuple(self.parameters)
        self._module, self._strategy, self._step = module, strategy, step
        self._folded: Folded | None = None
        self._facts = _NetworkFacts()

    def at(self, tensors: Mapping[str, Tensor]) -> GradientMap:
        """Return the map at other tensors of the same network, which is neither traced nor tested again.

        Raises:
            UsageError: a parameter is missing or has another shape.
        """
        other = GradientMap(self._module, tensors, self._strategy, self._step)
        other._facts = self._facts
        return other

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return gradients (R, P) of images x (R, B, c, h, w) with labels y (R, B), or class probabilities (R, B, C).

        Parameters follow each other in the order of `names`. Differentiable in x and in probabilities y.
        """
        y = stepped(self._step, self._module, x, y)
        strategy = self._choose(x)
        if strategy == "folded":
            gradients = self._fold()(x, y)
        elif strategy == "vmap":
            gradient_of_batch = partial(grad(self._loss), self.parameters)
            by_name: dict[str, Tensor] = vmap(gradient_of_batch)(x, y, expanded(self._buffers, len(x)))
            gradients = torch.cat([by_name[name].flatten(1) for name in self.names], 1)
        else:
            gradients = self._one_by_one(x, y)
        return self._step.clipped(gradients)

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
        strategies, key = self._facts.strategies, tuple(x.shape)
        if key not in strategies:
            strategy = choose_strategy(self._module, len(x), x.shape[1], x.shape[2:])
            if strategy == "folded" and not self._records(x):
                strategy = _unfolded(len(x))
            strategies[key] = strategy
        return strategies[key]

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
        expected = self._one_by_one(noise, labels)
        return bool((gradients - expected).norm() <= _SAME * expected.norm())

    def _fold(self) -> Folded:
        if self._folded is None:
            if self._facts.trace is None:
                self._facts.trace = Trace.of(self._module)
            self._folded = Folded(self._facts.trace, self.parameters, self._buffers)
        return self._folded

    def _loss(
        self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, buffers: Mapping[str, Tensor]
    ) -> Tensor:
        model = partial(call_with, self._module, {**parameters, **buffers})
        if self._step.function is None:  # `stepped` made targets of the labels
            return F.cross_entropy(model(x), y)
        return self._step.loss(model, x, y)

    def _one_by_one(self, x: Tensor, y: Tensor) -> Tensor:
        """Return gradients (R, P) by plain autograd, batch by batch."""
        differentiated = torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)
        gradients = []
        for images, labels in zip(x, y, strict=True):
            leaves = {name: p.detach().requires_grad_() for name, p in self.parameters.items()}
            loss = self._loss(leaves, images, labels, self._buffers)
            parts = torch.autograd.grad(
                loss,
                list(leaves.values()),
                create_graph=differentiated,
                allow_unused=True,
                materialize_grads=True,
            )
            gradients.append(torch.cat([part.reshape(-1) for part in parts]))
        return torch.stack(gradients)


def stepped(step: ClientStep, module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return labels (R, B) of images x (R, B, c, h, w) as the targets of a client's loss."""
    if step.plain:
        return y
    classes = len(step.class_weights) or y.shape[-1]
    if not y.is_floating_point() and not step.class_weights:
        with torch.no_grad():
            classes = call_with(module, {}, x[0]).shape[1]
    return step.targets(y, classes)


def trained_and_frozen(
    module: nn.Module, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the parameters that are trained, and all else: frozen parameters and buffers.

    Raises:
        UsageError: a parameter is missing or has another shape.
    """
    parameters: dict[str, Tensor] = {}
    frozen: dict[str, Tensor] = {}
    for name, own in module.named_parameters():
        tensor = tensors.get(name)
        if tensor is None or tensor.shape != own.shape:
            raise UsageError(
                f"parameters.{name}",
                None if tensor is None else tuple(tensor.shape),
                f"does not fit the architecture, which has {tuple(own.shape)}",
                "Give the parameters of this architecture.",
            )
        if own.requires_grad:
            parameters[name] = tensor.detach()
        else:
            frozen[name] = tensor.detach()
    for name, buffer in module.named_buffers():
        frozen[name] = tensors.get(name, buffer).detach()
    return parameters, frozen

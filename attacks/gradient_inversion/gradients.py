"""Parameter gradients of many independent batches at one model, differentiable in the images.

A gradient-inversion attack maps a guessed batch to the gradient that a client would have sent for it, thousands of
times. `GradientMap` does this for R guessed batches (restarts, victims) at once.

Guarantees:
  * every strategy returns the same gradients, up to floating-point error;
  * the strategy depends only on the model and on R, never on timing or free memory;
  * gradients of one batch never depend on the other batches;
  * the given module is unchanged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fdaudit.errors import UsageError

from .second_order.folded import Folded, foldable

__all__ = [
    "GradientMap",
    "Simulator",
    "Strategy",
    "choose_strategy",
    "flatten",
    "mixes_samples",
    "unfolded_values",
]

Strategy = Literal["loop", "vmap", "folded"]
"""How R gradients are computed: one at a time, under `torch.func.vmap`, or folded into one large batch."""

_FOLDED_VALUES = 4_000_000
_VMAP_BATCHES = 4
_SAME = 1e-3
"""Relative difference of two gradients that rounding explains."""


def flatten(tensors: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """Return the named tensors, in the order of `names`, as one vector (P,)."""
    return torch.cat([tensors[name].reshape(-1) for name in names])


def mixes_samples(module: nn.Module) -> bool:
    """Return whether a layer makes one image's output depend on other images of its batch."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())


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
    found: list[int] = []

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        if isinstance(layer, nn.Conv2d):
            found.append(layer.weight[0].numel() * out[0, 0].numel())
        else:
            found.append(inputs[0].numel())

    layers = [m for m in module.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    hooks = [m.register_forward_hook(count) for m in layers]
    try:
        with torch.no_grad():
            module(next(module.parameters()).new_zeros(1, *shape))
    finally:
        for hook in hooks:
            hook.remove()
    return sum(found)


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


class GradientMap(Simulator):
    """Maps R batches of images and labels to the R gradients of their mean cross-entropy.

    Args:
        module: the architecture; its own parameter values are not used.
        tensors: named parameters, and buffers if the module has any, at which the gradient is computed.
        strategy: overrides `choose_strategy`, for comparisons.

    Raises:
        UsageError: a parameter is missing or has another shape; the module ties weights, or mixes samples
            (BatchNorm), so that the gradient of a batch is not the mean of its images' gradients.
    """

    def __init__(
        self, module: nn.Module, tensors: Mapping[str, Tensor], strategy: Strategy | None = None
    ) -> None:
        self.parameters, self._buffers = _split(module, tensors)
        self.names = tuple(self.parameters)
        self._module, self._strategy = module, strategy
        self._folded: Folded | None = None
        self._rule: dict[tuple[int, ...], Strategy] = {}

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return gradients (R, P) of images x (R, B, c, h, w) with labels y (R, B), or class probabilities (R, B, C).

        Parameters follow each other in the order of `names`. Differentiable in x and in probabilities y.
        """
        strategy = self._choose(x)
        if strategy == "folded":
            return self._fold()(x, y)
        if strategy == "vmap":
            gradients: dict[str, Tensor] = vmap(self._vmapped)(x, y)
            return torch.cat([gradients[name].flatten(1) for name in self.names], 1)
        return torch.stack([self._one(xr, yr) for xr, yr in zip(x, y, strict=True)])

    def products(self, x: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return `Simulator.products`; when folded, the gradients of linear layers are never written out."""
        if self._choose(x) == "folded":
            return self._fold().products(x, y, target)
        return super().products(x, y, target)

    def _choose(self, x: Tensor) -> Strategy:
        if self._strategy is not None:
            return self._strategy
        key = (len(x), *x.shape[1:])
        if key not in self._rule:
            rule = choose_strategy(self._module, len(x), x.shape[1], x.shape[2:])
            self._rule[key] = _unfolded(len(x)) if rule == "folded" and not self._records(x) else rule
        return self._rule[key]

    def _records(self, x: Tensor) -> bool:
        """Return whether a pass can be recorded and gives the gradient of plain autograd, tested with one image."""
        noise = torch.rand(x.shape[2:], generator=torch.Generator().manual_seed(0), dtype=x.dtype).to(
            x.device
        )
        one, label = noise[None, None], torch.zeros(1, 1, dtype=torch.long, device=x.device)
        try:
            found = self._fold()(one, label)[0]
        except UsageError:
            return False
        expected = self._one(one[0], label[0])
        return bool((found - expected).norm() <= _SAME * expected.norm())

    def _fold(self) -> Folded:
        if self._folded is None:
            self._folded = Folded(self._module, self.parameters, self._buffers)
        return self._folded

    def _loss(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = functional_call(self._module, {**parameters, **self._buffers}, (x,))
        return F.cross_entropy(out, y)

    def _vmapped(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        gradient: dict[str, Tensor] = grad(self._loss)(self.parameters, x, y)
        return gradient

    def _one(self, x: Tensor, y: Tensor) -> Tensor:
        parameters = {k: p.detach().requires_grad_() for k, p in self.parameters.items()}
        loss = self._loss(parameters, x, y)
        inputs = list(parameters.values())
        create = torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)
        found = torch.autograd.grad(loss, inputs, create_graph=create, allow_unused=True)
        return torch.cat(
            [
                (torch.zeros_like(p) if g is None else g).reshape(-1)
                for g, p in zip(found, inputs, strict=True)
            ]
        )


def _split(module: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    if mixes_samples(module):
        raise UsageError(
            "module",
            type(module).__name__,
            "has BatchNorm, so a batch's gradient is not the mean of its images' gradients",
            "Use a model with GroupNorm or without normalisation.",
        )
    if len(list(module.named_parameters(remove_duplicate=False))) > len(list(module.parameters())):
        raise UsageError(
            "module",
            type(module).__name__,
            "has tied weights",
            "Use a model whose layers share no parameter.",
        )
    parameters: dict[str, Tensor] = {}
    for name, own in module.named_parameters():
        given = tensors.get(name)
        if given is None or given.shape != own.shape:
            shape = None if given is None else tuple(given.shape)
            raise UsageError(
                f"parameters.{name}",
                shape,
                f"does not fit the architecture, which has {tuple(own.shape)}",
                "Give the parameters of this architecture.",
            )
        parameters[name] = given.detach()
    buffers = {name: tensors.get(name, own).detach() for name, own in module.named_buffers()}
    return parameters, buffers

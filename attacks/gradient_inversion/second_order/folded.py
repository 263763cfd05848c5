"""Gradients of R batches at one model with all R*B images folded into a single batch.

Under `vmap` a convolution's per-batch weight gradients become grouped convolutions, and every layer uses R sets of
weights. Here all images pass through one shared set of weights. Each batch's weight gradients are computed from each
layer's input and the loss's derivative at its output. Their derivatives in the images are R{dL/dx}, for any function of
the gradients (see `layers`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd.function import once_differentiable

from .layers import Maybe, Pass, WeightedPass, added
from .normalisation import NORMALISATIONS
from .tracing import ACTIVATIONS, Node, Trace, named, traced, unfoldable

__all__ = ["Folded", "foldable"]


def foldable(module: nn.Module) -> bool:
    """Return whether every parameter belongs to one layer that `Folded` can record.

    Such layers are plain convolutions, linear layers and `NORMALISATIONS`.
    """
    if len(list(module.named_parameters(remove_duplicate=False))) > len(list(module.parameters())):
        return False  # two layers share a weight
    for m in module.modules():
        if isinstance(m, (nn.Dropout, nn.Dropout2d)) and m.training and m.p > 0:
            return False
        if getattr(m, "inplace", False) and type(m) not in ACTIVATIONS:
            return False  # it would overwrite what another layer keeps
        if list(m.parameters(recurse=False)) and not _recordable(m):
            return False
    return True


def _recordable(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) in (nn.Linear, *NORMALISATIONS)


class Folded:
    """Runs R*B images through the shared weights at once, and computes each batch's own weight gradients.

    Args:
        trace: of a `foldable` module.
        parameters: by name.
        buffers: by name.

    Raises:
        UsageError: the module overwrites a tensor, calls a layer twice or leaves one out.
    """

    def __init__(self, trace: Trace, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        self._names = tuple(parameters)
        self._sizes = [p.numel() for p in parameters.values()]
        self.nodes = traced(trace, parameters, buffers)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return gradients (R, P) of images (R, B, c, h, w) with labels (R, B) or probabilities (R, B, C)."""
        gradients: Tensor = _BatchGradients.apply(x, y, self)
        return gradients

    def products(self, x: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return inner products with the target and squared norms, summed layer by layer."""
        dot, square = _Products.apply(x, y, target, self)
        return dot, square

    def joined(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return tensors by name as (R, P)."""
        return torch.cat([tensors[name] for name in self._names], 1)

    def parted(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the inverse of `joined`."""
        return dict(zip(self._names, torch.split(flat, self._sizes, 1), strict=True))


class _BatchGradients(torch.autograd.Function):
    """The gradients (R, P) of R batches, whose derivative in the images is R{dL/dx}."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, folded: Folded) -> Tensor:
        gradients: dict[str, Tensor] = {}

        def read(name: str, layer: WeightedPass) -> None:
            gradients[named(name, "weight")], gradients[named(name, "bias")] = layer.gradients()

        ctx.folded, ctx.run = folded, _FoldedRun(folded.nodes, x, y, read)
        return folded.joined(gradients)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Maybe, ...]:
        pieces = ctx.folded.parted(g)

        def move(name: str, layer: WeightedPass) -> None:
            layer.move(pieces[named(name, "weight")], pieces.get(named(name, "bias")))

        return *ctx.run.along(move, ctx.needs_input_grad[1]), None


class _Products(torch.autograd.Function):
    """⟨G, T⟩ and ‖G‖² of R batches, layer by layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, target: Tensor, folded: Folded) -> tuple[Tensor, Tensor]:
        pieces = folded.parted(target)
        dot, square = target.new_zeros(len(target)), target.new_zeros(len(target))

        def read(name: str, layer: WeightedPass) -> None:
            of_dot, of_square = layer.products(pieces[named(name, "weight")], pieces.get(named(name, "bias")))
            dot.add_(of_dot)
            square.add_(of_square)

        ctx.run = _FoldedRun(folded.nodes, x, y, read)
        return dot, square

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dot: Tensor, square: Tensor) -> tuple[Maybe, ...]:
        def move(_: str, layer: WeightedPass) -> None:
            layer.move_by_products(dot, square)

        return *ctx.run.along(move, ctx.needs_input_grad[1]), None, None


# -- one pass -----------------------------------------------------------------------------------------------

_Visit = Callable[[str, WeightedPass], None]
"""Called with each layer with weights and its name, while its tensors are in the caches."""

_Passed = tuple[Node, list[fx.Node], Pass]
"""An operation, those of its inputs that depend on the images, and its pass."""


class _FoldedRun:
    """The network's passes over images x (R, B, c, h, w) with labels y (R, B) or probabilities (R, B, C).

    Args:
        nodes: the network.
        x: images.
        y: labels.
        read: called for every layer once its gradient is known.
    """

    def __init__(self, nodes: Sequence[Node], x: Tensor, y: Tensor, read: _Visit) -> None:
        self._shape = x.shape
        self._passes: list[_Passed] = []
        # Layers with weights, and what follows from one: R{.} of all else is zero.
        self._moving = set[fx.Node]()
        logits = self._forward(nodes, x.detach().flatten(0, 1))
        # Mean over each batch, summed over batches: image b's signal is that of its own batch's loss.
        self._p = logits.softmax(1)
        q = y.detach().flatten(0, 1)
        if not q.is_floating_point():
            q = torch.zeros_like(self._p).scatter_(1, q[:, None], 1.0)
        # Of cross-entropy, dL/dz = p Σq - q; labels q may be probabilities that do not sum to 1.
        self._weight = q.sum(1, keepdim=True) / x.shape[1]
        names = self._backward(self._p * self._weight - q / x.shape[1], read)
        for node in nodes:
            if node.layer is not None and node.layer not in names:
                raise unfoldable(node.layer, "does not pass the images on", "Leave it out.")

    def along(self, move: _Visit, labels: bool) -> tuple[Tensor, Maybe]:
        """Return R{dL/dx} while each layer moves as `move` sets it and, if `labels`, R{dL/dy} for probabilities y."""
        t: dict[fx.Node, Maybe] = {}
        for node, inputs, of in self._passes:
            if isinstance(of, WeightedPass):
                move(str(node.layer), of)
            t[node.key] = of.forward_along([t.get(n) for n in inputs])
            _forget(t, inputs)
        key = self._passes[-1][0].key
        logits = t[key]
        assert logits is not None  # noqa: S101 - a layer with weights moves
        # R{log p} = R{z} - ⟨p, R{z}⟩ and R{p} = p R{log p}.
        log_p = logits - (self._p * logits).sum(1, keepdim=True)
        r: dict[fx.Node, Maybe] = {key: self._p * log_p * self._weight}
        for node, inputs, of in reversed(self._passes):
            for n, of_input in zip(inputs, of.backward_along(r.pop(node.key, None)), strict=True):
                r[n] = added(r.get(n), of_input)
        (dx,) = r.values()
        assert dx is not None  # noqa: S101 - the first layer with weights moves
        dy: Maybe = None
        if labels:
            dy = -log_p.view(*self._shape[:2], -1) / self._shape[1]
        return dx.view(self._shape), dy

    def _forward(self, nodes: Sequence[Node], x: Tensor) -> Tensor:
        """Return the logits, (R*B, C)."""
        values: dict[fx.Node, Any] = {nodes[0].key: x}
        live = {nodes[0].key}
        for node in nodes[1:]:
            inputs = [n for n in node.inputs if n in live]
            outcome = node.passed(values, inputs, self._shape[0]) if inputs else node.call(values)
            if isinstance(outcome, Pass):
                values[node.key] = outcome.forward()
                live.add(node.key)
                self._passes.append((node, inputs, outcome))
                if node.layer is not None or not self._moving.isdisjoint(inputs):
                    self._moving.add(node.key)
            else:
                values[node.key] = outcome
            _forget(values, inputs)
        logits: Tensor = values[nodes[-1].key]
        return logits

    def _backward(self, signal: Tensor, read: _Visit) -> set[str]:
        """Run the backward pass; return the names of the layers that were read."""
        names = set[str]()
        s: dict[fx.Node, Maybe] = {self._passes[-1][0].key: signal}
        for node, inputs, of in reversed(self._passes):
            own = s.pop(node.key, None)
            if own is None:
                continue
            if isinstance(of, WeightedPass):
                of.receive(own)
                read(str(node.layer), of)
                names.add(str(node.layer))
            if not self._moving.isdisjoint(inputs):
                for n, of_input in zip(inputs, of.backward(own), strict=True):
                    if n in self._moving:
                        s[n] = added(s.get(n), of_input)
        return names


def _forget(results: dict[fx.Node, Any], inputs: Sequence[fx.Node]) -> None:
    """Drop results without further readers, so that their memory is reused while it is still cached."""
    for n in inputs:
        if len(n.users) == 1:
            results.pop(n, None)

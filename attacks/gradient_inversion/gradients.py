"""Parameter gradients of many independent batches at one model, differentiable in the images.

A gradient-inversion attack evaluates, thousands of times, the map from a guessed batch to the gradient that a
client would have sent for it. `GradientMap` evaluates it for R guessed batches (restarts, victims) at once.

Guarantees:
  * every strategy returns the same gradients, up to floating-point error;
  * the strategy depends on the model and on R only, never on timing or free memory;
  * gradients of one batch never depend on the other batches;
  * the module handed in is left as it was.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fdaudit.errors import UsageError

__all__ = ["GradientMap", "Strategy", "choose_strategy", "flatten", "mixes_samples", "unflatten"]

Strategy = Literal["loop", "vmap", "folded"]
"""How R gradients are computed: one at a time, under `torch.func.vmap`, or folded into one large batch."""


def flatten(tensors: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """The named tensors, in the order of `names`, as one vector (P,)."""
    return torch.cat([tensors[name].reshape(-1) for name in names])


def unflatten(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undoes `flatten` for the names and shapes of `like`."""
    pieces = vector.split([t.numel() for t in like.values()])
    return {name: piece.view(t.shape) for (name, t), piece in zip(like.items(), pieces, strict=True)}


def mixes_samples(module: nn.Module) -> bool:
    """Whether a layer of the module makes one image's output depend on the others of its batch."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())


def choose_strategy(module: nn.Module, batches: int) -> Strategy:
    """The fixed rule: one batch by plain autograd; several folded where the layers allow, else `vmap`.

    Two or three batches under `vmap` are slower than one after the other.
    """
    if batches == 1:
        return "loop"
    if _foldable(module):
        return "folded"
    return "vmap" if batches >= 4 else "loop"


class GradientMap:
    """Maps R batches of images and labels to the R gradients of their mean cross-entropy.

    Args:
        module: the architecture; its own parameter values are not used.
        tensors: named parameters, and buffers where the module has any, that the gradient is taken at.
        strategy: overrules `choose_strategy`, for comparisons.

    Raises:
        UsageError: a parameter is missing or has another shape, or the module mixes samples (BatchNorm), for
            which the gradient of a batch is not the mean of its images' gradients.
    """

    def __init__(
        self, module: nn.Module, tensors: Mapping[str, Tensor], strategy: Strategy | None = None
    ) -> None:
        self.parameters, self._buffers = _split(module, tensors)
        self.names = tuple(self.parameters)
        self._module, self._strategy = module, strategy
        self._folded: _Folded | None = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradients (R, P) of images x (R, B, c, h, w) with labels y (R, B), or class probabilities (R, B, C).

        Parameters follow each other in the order of `names`. Differentiable in x and in probabilities y.
        """
        strategy = self._strategy or choose_strategy(self._module, len(x))
        if strategy == "folded":
            if self._folded is None:
                self._folded = _Folded(self._module, self.parameters, self._buffers)
            return self._folded(x, y)
        if strategy == "vmap":
            gradients: dict[str, Tensor] = vmap(self._vmapped)(x, y)
            return torch.cat([gradients[name].flatten(1) for name in self.names], 1)
        return torch.stack([self._one(xr, yr) for xr, yr in zip(x, y, strict=True)])

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
            [(torch.zeros_like(p) if g is None else g).reshape(-1) for g, p in zip(found, inputs, strict=True)]
        )


def _split(
    module: nn.Module, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    if mixes_samples(module):
        raise UsageError(
            "module",
            type(module).__name__,
            "has BatchNorm, so a batch's gradient is not the mean of its images' gradients",
            "Use a model with GroupNorm or without normalisation.",
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


def _foldable(module: nn.Module) -> bool:
    """Whether every parameter belongs to one plain convolution or linear layer that `_Folded` can record."""
    owned = 0
    for m in module.modules():
        if isinstance(m, (nn.Dropout, nn.Dropout2d)) and m.training and m.p > 0:
            return False
        if getattr(m, "inplace", False):
            return False  # it would overwrite a recorded output
        mine = list(m.parameters(recurse=False))
        plain_conv = type(m) is nn.Conv2d and m.groups == 1 and m.padding_mode == "zeros"
        if mine and not (type(m) is nn.Linear or (plain_conv and not isinstance(m.padding, str))):
            return False
        owned += len(mine)
    # `parameters()` leaves duplicates out: a smaller count means tied weights.
    return owned == sum(1 for _ in module.parameters())


class _Folded:
    """R*B images through the shared weights at once; each batch's weight gradients from the layers' signals.

    A layer z = W a has, for each image, dL/dW = (dL/dz) aᵀ. All images pass through the same W, so forward
    and backward passes are shared and only these products, R of them for each layer, are not. A convolution
    is the same with a its unfolded input patches (K, P), which serve the forward product as well.
    """

    def __init__(
        self, module: nn.Module, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> None:
        twin = copy.deepcopy(module)
        self._layers: dict[str, _Recorder] = {}
        for name, layer in list(twin.named_modules()):
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                bias = parameters.get(f"{name}.bias" if name else "bias")
                weight = parameters[f"{name}.weight" if name else "weight"]
                kind = _RecordingConv if isinstance(layer, nn.Conv2d) else _RecordingLinear
                self._layers[name] = recorder = kind(layer, weight, bias)
                if not name:
                    twin = recorder
                else:
                    parent, _, child = name.rpartition(".")
                    setattr(twin.get_submodule(parent), child, recorder)
        self._twin, self._buffers, self._names = twin, dict(buffers), tuple(parameters)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        R, B = x.shape[:2]
        for recorder in self._layers.values():
            recorder.record = None
        if not torch.is_grad_enabled() or not x.requires_grad:
            x = x.detach().requires_grad_()  # the signals dL/dz need a graph
        with torch.enable_grad():
            out = functional_call(self._twin, self._buffers, (x.flatten(0, 1),))
            # Mean over each batch, summed over batches: image b's signal is that of its own batch's loss.
            loss = F.cross_entropy(out, y.flatten(0, 1), reduction="sum") / B
            records = [r.take() for r in self._layers.values()]
            signals = torch.autograd.grad(loss, [z for _, z in records], create_graph=True)
            found: dict[str, Tensor] = {}
            for (name, recorder), (a, _), signal in zip(self._layers.items(), records, signals, strict=True):
                prefix = f"{name}." if name else ""
                found[f"{prefix}weight"], found[f"{prefix}bias"] = recorder.gradients(a, signal, R)
            return torch.cat([found[name] for name in self._names], 1)


class _Recorder(nn.Module):
    """A layer with fixed weights that keeps its input patches and its output of the last pass."""

    def __init__(self, layer: nn.Module, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self.record: tuple[Tensor, Tensor] | None = None
        self._version = 0

    def keep(self, a: Tensor, z: Tensor) -> None:
        if self.record is not None:
            raise UsageError(
                "module", type(self).__name__, "is called twice in one pass", "Give each call its own layer."
            )
        self.record, self._version = (a, z), z._version

    def take(self) -> tuple[Tensor, Tensor]:
        if self.record is None or self.record[1]._version != self._version:
            raise UsageError(
                "module",
                type(self).__name__,
                "is left out of the pass, or its output is overwritten in place",
                "Use every layer once, and no in-place operations.",
            )
        record, self.record = self.record, None
        return record

    def gradients(self, a: Tensor, signal: Tensor, R: int) -> tuple[Tensor, Tensor]:
        """Weight and bias gradients (R, ...) flattened after the first dimension."""
        raise NotImplementedError


class _RecordingLinear(_Recorder):
    def forward(self, a: Tensor) -> Tensor:
        z = F.linear(a, self.weight, self.bias)
        self.keep(a, z)
        return z

    def gradients(self, a: Tensor, signal: Tensor, R: int) -> tuple[Tensor, Tensor]:
        s, a = signal.reshape(R, -1, signal.shape[-1]), a.reshape(R, -1, a.shape[-1])
        return torch.bmm(s.mT, a).flatten(1), s.sum(1)


class _RecordingConv(_Recorder):
    def __init__(self, layer: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(layer, weight, bias)
        self._kernel, self._dilation = layer.kernel_size, layer.dilation
        self._padding, self._stride = layer.padding, layer.stride

    def forward(self, a: Tensor) -> Tensor:
        patches = F.unfold(a, self._kernel, self._dilation, self._padding, self._stride)  # (N, K, P)
        z = self.weight.flatten(1) @ patches
        if self.bias is not None:
            z = z + self.bias[:, None]
        self.keep(patches, z)
        sizes = zip(a.shape[2:], self._kernel, self._dilation, self._padding, self._stride, strict=True)
        return z.view(len(a), -1, *((n + 2 * int(p) - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in sizes))

    def gradients(self, a: Tensor, signal: Tensor, R: int) -> tuple[Tensor, Tensor]:
        each = torch.bmm(signal, a.mT)  # (R*B, O, K)
        weight = each.view(R, -1, *each.shape[1:]).sum(1) if len(each) > R else each
        return weight.flatten(1), signal.sum(2).view(R, -1, signal.shape[1]).sum(1)


def _chunks(rows: int, size: int) -> list[slice]:
    """Slices of at most `size` rows."""
    bounds = [*range(0, rows, size), rows]
    return [slice(a, b) for a, b in itertools.pairwise(bounds)]

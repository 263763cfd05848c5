"""Gradients of R batches at one model with all R*B images folded into a single batch.

Under `vmap` a convolution's per-batch weight gradients become grouped convolutions, and every layer pays for
R sets of weights. Here all images pass through the one set of weights there is, and the per-batch weight
gradients are formed from each layer's input and from the loss's derivative at its output: small convolutions by
products of matrices, over their input patches, larger ones as in `convolutions`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fdaudit.errors import UsageError

from .columns import arranged
from .convolutions import Geometry, shared_convolution, weight_gradients, weight_products

__all__ = ["Folded", "foldable"]

_PATCH_VALUES = 150_000
"""Input patches of more values than this take longer to write than PyTorch's convolutions to set out."""


def foldable(module: nn.Module) -> bool:
    """Whether every parameter belongs to one plain convolution or linear layer that `Folded` can record."""
    for m in module.modules():
        if isinstance(m, (nn.Dropout, nn.Dropout2d)) and m.training and m.p > 0:
            return False
        if getattr(m, "inplace", False):
            return False  # it would overwrite a recorded output
        mine = list(m.parameters(recurse=False))
        plain_conv = type(m) is nn.Conv2d and m.groups == 1 and m.padding_mode == "zeros"
        if mine and not (type(m) is nn.Linear or (plain_conv and not isinstance(m.padding, str))):
            return False
    return True


class Folded:
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
                recorder: _Recorder
                if isinstance(layer, nn.Conv2d):
                    recorder = _RecordingConv(layer, weight, bias)
                else:
                    recorder = _RecordingLinear(weight, bias)
                self._layers[name] = recorder
                if not name:
                    twin = recorder
                else:
                    parent, _, child = name.rpartition(".")
                    setattr(twin.get_submodule(parent), child, recorder)
        self._twin, self._buffers = twin, dict(buffers)
        self._names, self._sizes = tuple(parameters), [p.numel() for p in parameters.values()]

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradients (R, P) of images (R, B, c, h, w) with labels (R, B) or probabilities (R, B, C)."""
        found: dict[str, Tensor] = {}
        for name, recorder, a, signal in self._signals(x, y):
            found[f"{name}weight"] = recorder.weight_gradient(a, signal, len(x))
            found[f"{name}bias"] = recorder.bias_gradient(signal, len(x))
        return torch.cat([found[name] for name in self._names], 1)

    def products(self, x: Tensor, y: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Inner products with the target and squared norms, layer by layer."""
        pieces = dict(zip(self._names, torch.split(target, self._sizes, 1), strict=True))
        dots, squares = [], []
        for name, recorder, a, signal in self._signals(x, y):
            dot, square = recorder.weight_products(a, signal, pieces[f"{name}weight"])
            dots.append(dot)
            squares.append(square)
            if f"{name}bias" in pieces:
                bias = recorder.bias_gradient(signal, len(x))
                dots.append((bias * pieces[f"{name}bias"]).sum(1))
                squares.append(bias.square().sum(1))
        return torch.stack(dots).sum(0), torch.stack(squares).sum(0)

    def _signals(self, x: Tensor, y: Tensor) -> Iterator[tuple[str, _Recorder, Tensor, Tensor]]:
        """For each layer its prefix, itself, its input (R*B, ...) and dL/dz of its output."""
        for recorder in self._layers.values():
            recorder.record = None
        if not torch.is_grad_enabled() or not x.requires_grad:
            x = x.detach().requires_grad_()  # the signals dL/dz need a graph
        with torch.enable_grad():
            out = functional_call(self._twin, self._buffers, (x.flatten(0, 1),))
            # Mean over each batch, summed over batches: image b's signal is that of its own batch's loss.
            loss = F.cross_entropy(out, y.flatten(0, 1), reduction="sum") / x.shape[1]
            records = [r.take() for r in self._layers.values()]
            signals = torch.autograd.grad(loss, [z for _, z in records], create_graph=True)
            for (name, recorder), (a, _), signal in zip(self._layers.items(), records, signals, strict=True):
                yield (f"{name}." if name else ""), recorder, a, signal


class _Recorder(nn.Module):
    """A layer with fixed weights that keeps its input patches and its output of the last pass."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
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

    def weight_gradient(self, a: Tensor, signal: Tensor, R: int) -> Tensor:
        """(R, weight values)."""
        raise NotImplementedError

    def weight_products(self, a: Tensor, signal: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """⟨weight gradient, target⟩ and its squared norm, (R,) each; target (R, weight values)."""
        gradient = self.weight_gradient(a, signal, len(target))
        return (gradient * target).sum(1), gradient.square().sum(1)

    def bias_gradient(self, signal: Tensor, R: int) -> Tensor:
        """(R, outputs)."""
        raise NotImplementedError


class _RecordingLinear(_Recorder):
    def forward(self, a: Tensor) -> Tensor:
        z = F.linear(a, self.weight, self.bias)
        self.keep(a, z)
        return z

    def weight_gradient(self, a: Tensor, signal: Tensor, R: int) -> Tensor:
        s, a = signal.reshape(R, -1, signal.shape[-1]), a.reshape(R, -1, a.shape[-1])
        return torch.bmm(s.mT, a).flatten(1)

    def weight_products(self, a: Tensor, signal: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        # With G = sᵀa: ⟨G, T⟩ = Σ s ∘ (a Tᵀ) and ‖G‖² = Σ (s sᵀ) ∘ (a aᵀ), without ever writing G.
        R = len(target)
        s, a = signal.reshape(R, -1, signal.shape[-1]), a.reshape(R, -1, a.shape[-1])
        T = target.view(R, s.shape[2], -1)
        # One T for all (restarts of one message) is one product of matrices, not R.
        aT = F.linear(a, T[0]) if target.stride(0) == 0 else torch.bmm(a, T.mT)
        if s.shape[1] == 1:
            return (s * aT).sum((1, 2)), s.square().sum((1, 2)) * a.square().sum((1, 2))
        gram = torch.bmm(s, s.mT) * torch.bmm(a, a.mT)
        return (s * aT).sum((1, 2)), gram.sum((1, 2))

    def bias_gradient(self, signal: Tensor, R: int) -> Tensor:
        return signal.reshape(R, -1, signal.shape[-1]).sum(1)


class _RecordingConv(_Recorder):
    def __init__(self, layer: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self._kernel = layer.kernel_size
        # `foldable` has refused padding given by name.
        stride, padding, dilation = (
            (int(v[0]), int(v[1])) for v in (layer.stride, layer.padding, layer.dilation)
        )
        self._geometry = Geometry(stride, padding, dilation)
        self._form = arranged(weight.shape, self._geometry, weight.device)

    def forward(self, a: Tensor) -> Tensor:
        stride, padding, dilation = self._geometry
        sizes = zip(a.shape[2:], self._kernel, dilation, padding, stride, strict=True)
        out = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in sizes]
        if len(a) * self.weight[0].numel() * out[0] * out[1] > _PATCH_VALUES:
            a, weight = self._form.images(a), self._form.weights(self.weight.reshape(1, -1))
            z = shared_convolution(a, weight.view(self._form.kernel), self.bias, self._form.geometry)
            self.keep(a, z)
            return z
        patches = F.unfold(a, self._kernel, dilation, padding, stride)  # (N, K, P)
        z = self.weight.flatten(1) @ patches
        if self.bias is not None:
            z = z + self.bias[:, None]
        self.keep(patches, z)
        return z.view(len(a), -1, *out)

    def weight_gradient(self, a: Tensor, signal: Tensor, R: int) -> Tensor:
        if a.dim() == 4:
            found = weight_gradients(a, signal, R, self._form.kernel, self._form.geometry)
            return self._form.restored(found)
        each = torch.bmm(signal.flatten(2), a.mT)  # (R*B, O, K)
        return (each.view(R, -1, *each.shape[1:]).sum(1) if len(each) > R else each).flatten(1)

    def weight_products(self, a: Tensor, signal: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        if a.dim() == 4:
            target = self._form.weights(target)
            return weight_products(a, signal, target, self._form.kernel, self._form.geometry)
        return super().weight_products(a, signal, target)

    def bias_gradient(self, signal: Tensor, R: int) -> Tensor:
        return signal.flatten(2).sum(2).view(R, -1, signal.shape[1]).sum(1)

"""Convolutions of many batches with shared weights, where each batch has its own gradient in the weights.

For R batches, the weight gradients G = conv_w(a, s), from inputs a and signals s, and their derivatives are single
convolutions of R groups. PyTorch's double differentiation processes one group at a time instead. Small convolutions
are matrix products over their input patches. A convolution with few outputs beside its weights, as the last ones of a
residual network, is a linear layer over these patches: its G is never written out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import Maybe, WeightedPass, linear

__all__ = ["Convolution", "Geometry", "Sides"]

Sides = tuple[int, int]
"""Height and width."""

_PATCH_VALUES = 150_000
"""Input patches of more values than this take longer to write than PyTorch's convolutions to set up."""


class Geometry(NamedTuple):
    """The vertical and horizontal movement of a kernel over an image."""

    stride: Sides
    padding: Sides
    dilation: Sides

    def outputs(self, size: Sequence[int], kernel: Sequence[int]) -> Sides:
        """Return the height and width of the output of a kernel (k, k) on an image (h, w)."""
        sides = zip(size, kernel, *self, strict=True)
        p, q = ((n + 2 * padding - d * (k - 1) - 1) // s + 1 for n, k, s, padding, d in sides)
        return p, q


class Convolution:
    """A convolution with fixed weights.

    Args:
        layer: `groups` 1, zeros for padding, which is given in pixels.
        weight: (O, c, k, k).
        bias: (O,).
    """

    def __init__(self, layer: nn.Conv2d, weight: Tensor, bias: Maybe) -> None:
        stride, padding, dilation = (
            (int(v[0]), int(v[1])) for v in (layer.stride, layer.padding, layer.dilation)
        )
        self.geometry, self.kernel = Geometry(stride, padding, dilation), weight.shape
        self.weight, self.bias = weight, bias

    def __call__(self, a: Tensor, R: int) -> WeightedPass:
        """Run a pass of images (R*B, c, h, w)."""
        out = self.geometry.outputs(a.shape[2:], self.kernel[2:])
        channels, inputs = self.kernel[0], self.kernel[1:].numel()
        positions = len(a) // R * out[0] * out[1]
        if 2 * positions * (channels + inputs) <= channels * inputs:  # operations without G and with it
            return _FewPositions(self, a, R, out)
        values = len(a) * inputs * out[0] * out[1]
        return _GroupedConvolution(self, a, R) if values > _PATCH_VALUES else _Patches(self, a, R, out)

    def moves(self) -> tuple[Sides, Sides, Sides, Sides]:
        """Return the arguments of `F.unfold` after its input."""
        stride, padding, dilation = self.geometry
        return (self.kernel[2], self.kernel[3]), dilation, padding, stride


class _Convolved(WeightedPass):
    """The shared part of both implementations: G and g are written out."""

    _s: Tensor
    _g: Tensor
    _g_bias: Maybe

    def __init__(self, layer: Convolution, R: int) -> None:
        self._layer, self._R = layer, R

    @abstractmethod
    def _gradient(self) -> Tensor:
        """Return G, (R, values)."""

    def gradients(self) -> tuple[Tensor, Tensor]:
        return self._gradient(), self._bias_gradient()

    def _bias_gradient(self) -> Tensor:
        return self._batched(self._s.flatten(2).sum(2))

    def _batched(self, each: Tensor) -> Tensor:
        """Return (R, values), the sums of each image's contribution (N, values)."""
        return each if len(each) == self._R else each.view(self._R, -1, each.shape[1]).sum(1)

    def products(self, weight: Tensor, bias: Maybe) -> tuple[Tensor, Tensor]:
        pairs = [(self._gradient(), weight)]
        if bias is not None:
            pairs.append((self._bias_gradient(), bias))
        self._found = pairs
        (dot, square), *more = [_products(G, T) for G, T in pairs]
        for of_dot, of_square in more:
            dot, square = dot + of_dot, square + of_square
        return dot, square

    def move(self, weight: Tensor, bias: Maybe) -> None:
        self._g, self._g_bias = weight, bias

    def move_by_products(self, dot: Tensor, square: Tensor) -> None:
        g = [_combined(G, T, dot, square) for G, T in self._found]
        self._g, self._g_bias = g[0], g[1] if len(g) > 1 else None


class _GroupedConvolution(_Convolved):
    """The implementation by convolutions, with R groups where each batch has its own weights."""

    def __init__(self, layer: Convolution, a: Tensor, R: int) -> None:
        super().__init__(layer, R)
        self._size, self._a = (a.shape[2], a.shape[3]), a

    def forward(self) -> Tensor:
        return F.conv2d(self._a, self._layer.weight, self._layer.bias, *self._layer.geometry)

    def receive(self, s: Tensor) -> None:
        self._s = s

    def backward(self, s: Tensor) -> Sequence[Maybe]:
        return (self._input_gradient(s, self._layer.weight),)

    def forward_along(self, t: Sequence[Maybe]) -> Maybe:
        layer, bias = self._layer, None if self._g_bias is None else self._g_bias.flatten()
        a, own = _side_by_side(self._a, self._R), _as_groups(self._g, layer.kernel)
        out = _apart(F.conv2d(a, own, bias, *layer.geometry, groups=self._R), self._R)
        return out if t[0] is None else out.add_(F.conv2d(t[0], layer.weight, None, *layer.geometry))

    def backward_along(self, r: Maybe) -> Sequence[Maybe]:
        R, own = self._R, _as_groups(self._g, self._layer.kernel)
        out = _apart(self._input_gradient(_side_by_side(self._s, R), own, R), R)
        return (out if r is None else out.add_(self._input_gradient(r, self._layer.weight)),)

    def _gradient(self) -> Tensor:
        R, layer = self._R, self._layer
        a, s = _side_by_side(self._a, R), _side_by_side(self._s, R)
        return _grouped_gradient(a, s, R, layer.kernel, layer.geometry)

    def _input_gradient(self, s: Tensor, weight: Tensor, groups: int = 1) -> Tensor:
        return _input_gradient(self._size, s, weight, self._layer.geometry, groups)


class _Patches(_Convolved):
    """The implementation by matrix products, over the patches (N, K, P) of the inputs."""

    def __init__(self, layer: Convolution, a: Tensor, R: int, out: tuple[int, int]) -> None:
        super().__init__(layer, R)
        self._moves = layer.moves()
        self._size, self._out, self._a = a.shape[2:], out, F.unfold(a, *self._moves)
        self._weight = layer.weight.flatten(1)

    def forward(self) -> Tensor:
        z, bias = self._weight @ self._a, self._layer.bias
        return (z if bias is None else z.add_(bias[:, None])).view(*z.shape[:2], *self._out)

    def receive(self, s: Tensor) -> None:
        self._s = s.flatten(2)

    def backward(self, s: Tensor) -> Sequence[Maybe]:
        return (self._folded(self._weight.T @ s.flatten(2)),)

    def forward_along(self, t: Sequence[Maybe]) -> Maybe:
        out = torch.bmm(self._own(), self._a)
        if self._g_bias is not None:
            out.view(self._R, -1, *out.shape[1:]).add_(self._g_bias[:, None, :, None])
        if t[0] is not None:
            out.baddbmm_(self._weight.expand(len(out), -1, -1), F.unfold(t[0], *self._moves))
        return out.view(*out.shape[:2], *self._out)

    def backward_along(self, r: Maybe) -> Sequence[Maybe]:
        out = torch.bmm(self._own().mT, self._s)
        if r is not None:
            out.baddbmm_(self._weight.T.expand(len(out), -1, -1), r.flatten(2))
        return (self._folded(out),)

    def _gradient(self) -> Tensor:
        return self._batched(torch.bmm(self._s, self._a.mT).flatten(1))

    def _own(self) -> Tensor:
        """Return each image's g, (N, O, K)."""
        B, g = len(self._a) // self._R, self._g
        return (g if B == 1 else g.repeat_interleave(B, 0)).view(-1, *self._weight.shape)

    def _folded(self, e: Tensor) -> Tensor:
        return F.fold(e, self._size, *self._moves)


class _FewPositions(WeightedPass):
    """The implementation as a linear layer over the patches (N, P, K) of the inputs."""

    def __init__(self, layer: Convolution, a: Tensor, R: int, out: Sides) -> None:
        self._moves, self._size, self._out = layer.moves(), a.shape[2:], out
        self._linear = linear(self._patches(a), R, layer.weight.flatten(1), layer.bias)

    def forward(self) -> Tensor:
        return self._images(self._linear.forward())

    def receive(self, s: Tensor) -> None:
        self._linear.receive(s.flatten(2).mT)

    def backward(self, s: Tensor) -> Sequence[Maybe]:
        return [self._folded(e) for e in self._linear.backward(s.flatten(2).mT)]

    def gradients(self) -> tuple[Tensor, Tensor]:
        return self._linear.gradients()

    def products(self, weight: Tensor, bias: Maybe) -> tuple[Tensor, Tensor]:
        return self._linear.products(weight, bias)

    def move(self, weight: Tensor, bias: Maybe) -> None:
        self._linear.move(weight, bias)

    def move_by_products(self, dot: Tensor, square: Tensor) -> None:
        self._linear.move_by_products(dot, square)

    def forward_along(self, t: Sequence[Maybe]) -> Maybe:
        moved = self._linear.forward_along([None if u is None else self._patches(u) for u in t])
        return None if moved is None else self._images(moved)

    def backward_along(self, r: Maybe) -> Sequence[Maybe]:
        return [self._folded(e) for e in self._linear.backward_along(None if r is None else r.flatten(2).mT)]

    def _patches(self, a: Tensor) -> Tensor:
        return F.unfold(a, *self._moves).mT.contiguous()

    def _folded(self, e: Maybe) -> Maybe:
        return None if e is None else F.fold(e.mT, self._size, *self._moves)

    def _images(self, rows: Tensor) -> Tensor:
        return rows.mT.reshape(len(rows), -1, *self._out)


def _grouped_gradient(a: Tensor, s: Tensor, R: int, kernel: torch.Size, geometry: Geometry) -> Tensor:
    """Return each group's gradient in its weights, (R, O*c*k*k).

    Args:
        a: (B, R*c, h, w) a convolution's inputs.
        s: (B, R*O, p, q) the loss's derivative at its output.
        R: groups.
        kernel: (O, c, k, k).
        geometry: the convolution's.
    """
    # torch.nn.grad's functions hand over tensors that are expanded, and copied then; only sizes matter of them.
    weight = a.new_empty(R * kernel[0], *kernel[1:])
    mask = (False, True, False)
    gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        s, a, weight, None, *geometry, False, (0, 0), R, mask
    )
    return gradients[1].view(R, -1)


def _input_gradient(size: Sides, s: Tensor, weight: Tensor, geometry: Geometry, groups: int = 1) -> Tensor:
    """Return the loss's derivative in inputs of this size; other arguments as in `_grouped_gradient`."""
    a = s.new_empty(len(s), groups * weight.shape[1], *size)
    mask = (True, False, False)
    gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        s, a, weight, None, *geometry, False, (0, 0), groups, mask
    )
    return gradients[0]


def _products(G: Tensor, T: Tensor) -> tuple[Tensor, Tensor]:
    """Return ⟨G, T⟩ and ‖G‖² of each row.

    One target for all rows (restarts of one message) is a matrix times a vector.
    """
    dot = G @ T[0] if T.stride(0) == 0 else (G * T).sum(1)
    return dot, torch.linalg.vector_norm(G, dim=1).square()


def _combined(G: Tensor, T: Tensor, dot: Tensor, square: Tensor) -> Tensor:
    """Return dot T + 2 square G, row by row."""
    g = G * (2 * square)[:, None]
    return g.addr_(dot, T[0]) if T.stride(0) == 0 else g.addcmul_(dot[:, None], T)


def _as_groups(weights: Tensor, kernel: torch.Size) -> Tensor:
    """Return (R, O*c*k*k) as (R*O, c, k, k): each batch's own weights as a group of channels."""
    return weights.reshape(-1, *kernel[1:])


def _side_by_side(t: Tensor, R: int) -> Tensor:
    """Return (R*B, c, h, w) as (B, R*c, h, w): the batches as groups of channels."""
    B, c, h, w = len(t) // R, *t.shape[1:]
    return t.reshape(R, B, c, h, w).transpose(0, 1).reshape(B, R * c, h, w)


def _apart(t: Tensor, R: int) -> Tensor:
    """Return the inverse of `_side_by_side`."""
    B, c, h, w = len(t), t.shape[1] // R, *t.shape[2:]
    return t.reshape(B, R, c, h, w).transpose(0, 1).reshape(R * B, c, h, w)

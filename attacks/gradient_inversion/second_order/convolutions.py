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

from .layers import Maybe, WeightedPass, linear, mapped

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
        sides = []
        for n, k, s, padding, d in zip(size, kernel, *self, strict=True):
            reach = d * (k - 1) + 1
            sides.append((n + 2 * padding - reach) // s + 1)
        return sides[0], sides[1]


class Convolution:
    """A convolution with fixed weights.

    Args:
        layer: `groups` 1, zeros for padding, which is given in pixels.
        weight: (O, c, k, k).
        bias: (O,).
    """

    def __init__(self, layer: nn.Conv2d, weight: Tensor, bias: Maybe) -> None:
        self.geometry = Geometry(_sides(layer.stride), _sides(layer.padding), _sides(layer.dilation))
        self.kernel = weight.shape
        self.weight, self.bias = weight, bias

    def __call__(self, a: Tensor, R: int) -> WeightedPass:
        """Run a pass of images (R*B, c, h, w)."""
        height, width = self.geometry.outputs(a.shape[2:], self.kernel[2:])
        channels, inputs = self.kernel[0], self.kernel[1:].numel()
        positions = len(a) // R * height * width
        if 2 * positions * (channels + inputs) <= channels * inputs:  # operations without G and with it
            return _FewPositions(self, a, R, (height, width))
        if len(a) * inputs * height * width > _PATCH_VALUES:
            return _GroupedConvolution(self, a, R)
        return _Patches(self, a, R, (height, width))

    def moves(self) -> tuple[Sides, Sides, Sides, Sides]:
        """Return the arguments of `F.unfold` after its input."""
        stride, padding, dilation = self.geometry
        return (self.kernel[2], self.kernel[3]), dilation, padding, stride


def _sides(setting: Sequence[int | str] | str) -> Sides:
    return int(setting[0]), int(setting[1])


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
        if len(each) == self._R:
            return each
        return each.view(self._R, -1, each.shape[1]).sum(1)

    def products(self, weight: Tensor, bias: Maybe) -> tuple[Tensor, Tensor]:
        pairs = [(self._gradient(), weight)]
        if bias is not None:
            pairs.append((self._bias_gradient(), bias))
        self._pairs = pairs
        dot, square = _products(*pairs[0])
        if bias is not None:
            bias_dot, bias_square = _products(*pairs[1])
            dot, square = dot + bias_dot, square + bias_square
        return dot, square

    def move(self, weight: Tensor, bias: Maybe) -> None:
        self._g, self._g_bias = weight, bias

    def move_by_products(self, dot: Tensor, square: Tensor) -> None:
        directions = []
        for G, T in self._pairs:  # dot T + 2 square G, row by row
            g = G * (2 * square)[:, None]
            if T.stride(0) == 0:
                directions.append(g.addr_(dot, T[0]))
            else:
                directions.append(g.addcmul_(dot[:, None], T))
        self.move(directions[0], directions[1] if len(directions) > 1 else None)


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
        # R{W a + b} = g a + g_b + W R{a}; each batch has its own g, so the first term has R groups.
        layer = self._layer
        bias = mapped(Tensor.flatten, self._g_bias)
        a = _side_by_side(self._a, self._R)
        out = F.conv2d(a, self._own_weights(), bias, *layer.geometry, groups=self._R)
        out = _apart(out, self._R)
        if t[0] is not None:
            out.add_(F.conv2d(t[0], layer.weight, None, *layer.geometry))
        return out

    def backward_along(self, r: Maybe) -> Sequence[Maybe]:
        s = _side_by_side(self._s, self._R)
        out = _apart(self._input_gradient(s, self._own_weights(), self._R), self._R)
        if r is not None:
            out.add_(self._input_gradient(r, self._layer.weight))
        return (out,)

    def _gradient(self) -> Tensor:
        """Return each batch's gradient in its weights, (R, O*c*k*k): that of a convolution with R groups."""
        layer = self._layer
        a, s = _side_by_side(self._a, self._R), _side_by_side(self._s, self._R)
        # torch.nn.grad's functions hand over tensors that are expanded, and copied then; only sizes matter of them.
        weight = a.new_empty(self._R * layer.kernel[0], *layer.kernel[1:])
        mask = (False, True, False)
        gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
            s, a, weight, None, *layer.geometry, False, (0, 0), self._R, mask
        )
        return gradients[1].view(self._R, -1)

    def _input_gradient(self, s: Tensor, weight: Tensor, groups: int = 1) -> Tensor:
        """Return the loss's derivative in the inputs, given that in the outputs."""
        a = s.new_empty(len(s), groups * weight.shape[1], *self._size)
        mask = (True, False, False)
        gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
            s, a, weight, None, *self._layer.geometry, False, (0, 0), groups, mask
        )
        return gradients[0]

    def _own_weights(self) -> Tensor:
        """Return g (R, O*c*k*k) as (R*O, c, k, k): each batch's own weights as a group of channels."""
        return self._g.reshape(-1, *self._layer.kernel[1:])


class _Patches(_Convolved):
    """The implementation by matrix products, over the patches (N, K, P) of the inputs."""

    def __init__(self, layer: Convolution, a: Tensor, R: int, out: tuple[int, int]) -> None:
        super().__init__(layer, R)
        self._moves = layer.moves()
        self._size, self._out = a.shape[2:], out
        self._a = F.unfold(a, *self._moves)
        self._weight = layer.weight.flatten(1)

    def forward(self) -> Tensor:
        z = self._weight @ self._a
        if self._layer.bias is not None:
            z.add_(self._layer.bias[:, None])
        return z.view(*z.shape[:2], *self._out)

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
        if B > 1:
            g = g.repeat_interleave(B, 0)
        return g.view(-1, *self._weight.shape)

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
        self._linear.receive(self._rows(s))

    def backward(self, s: Tensor) -> Sequence[Maybe]:
        return [mapped(self._folded, e) for e in self._linear.backward(self._rows(s))]

    def gradients(self) -> tuple[Tensor, Tensor]:
        return self._linear.gradients()

    def products(self, weight: Tensor, bias: Maybe) -> tuple[Tensor, Tensor]:
        return self._linear.products(weight, bias)

    def move(self, weight: Tensor, bias: Maybe) -> None:
        self._linear.move(weight, bias)

    def move_by_products(self, dot: Tensor, square: Tensor) -> None:
        self._linear.move_by_products(dot, square)

    def forward_along(self, t: Sequence[Maybe]) -> Maybe:
        moved = self._linear.forward_along([mapped(self._patches, u) for u in t])
        return mapped(self._images, moved)

    def backward_along(self, r: Maybe) -> Sequence[Maybe]:
        parts = []
        for part in self._linear.backward_along(mapped(self._rows, r)):
            folded = mapped(self._folded, part)
            parts.append(folded)
        return parts

    def _patches(self, a: Tensor) -> Tensor:
        return F.unfold(a, *self._moves).mT.contiguous()

    def _folded(self, e: Tensor) -> Tensor:
        return F.fold(e.mT, self._size, *self._moves)

    def _rows(self, s: Tensor) -> Tensor:
        return s.flatten(2).mT

    def _images(self, rows: Tensor) -> Tensor:
        return rows.mT.reshape(len(rows), -1, *self._out)


def _products(G: Tensor, T: Tensor) -> tuple[Tensor, Tensor]:
    """Return ⟨G, T⟩ and ‖G‖² of each row.

    One target for all rows (restarts of one message) is a matrix times a vector.
    """
    dot = G @ T[0] if T.stride(0) == 0 else (G * T).sum(1)
    return dot, torch.linalg.vector_norm(G, dim=1).square()


def _side_by_side(t: Tensor, R: int) -> Tensor:
    """Return (R*B, c, h, w) as (B, R*c, h, w): the batches as groups of channels."""
    B, c, h, w = len(t) // R, *t.shape[1:]
    return t.reshape(R, B, c, h, w).transpose(0, 1).reshape(B, R * c, h, w)


def _apart(t: Tensor, R: int) -> Tensor:
    """Return the inverse of `_side_by_side`."""
    B, c, h, w = len(t), t.shape[1] // R, *t.shape[2:]
    return t.reshape(B, R, c, h, w).transpose(0, 1).reshape(R * B, c, h, w)

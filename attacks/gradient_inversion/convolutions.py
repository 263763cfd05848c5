"""Convolutions of many batches with one set of weights, and each batch's own weight gradients, twice differentiable.

A convolution's weight gradients G = conv_w(a, s) for R batches, from its inputs a and the loss's derivatives s at its
output, are one convolution of R groups. PyTorch differentiates such a thing group by group, and derives gradients of
shared weights besides, which nobody asked for. Here every derivative is one convolution, with groups where batches
differ: d⟨G, W⟩ = ⟨conv(a, W), ds⟩ + ⟨conv_x(W, s), da⟩.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Geometry", "shared_convolution", "weight_gradients", "weight_products"]


class Geometry(NamedTuple):
    """How a kernel moves over an image, vertically and horizontally."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


def shared_convolution(a: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """`F.conv2d` of images (N, c, h, w), twice differentiable in them; weights (O, c, k, k) are constants."""
    out: Tensor = _Convolution.apply(a, weight, bias, geometry)
    return out


def weight_gradients(a: Tensor, s: Tensor, R: int, kernel: torch.Size, geometry: Geometry) -> Tensor:
    """Each batch's gradient in the weights, (R, O*c*k*k), once differentiable.

    Args:
        a: (R*B, c, h, w) a convolution's inputs, batch after batch.
        s: (R*B, O, p, q) the loss's derivative at its output.
        R: batches.
        kernel: (O, c, k, k).
        geometry: the convolution's.
    """
    out: Tensor = _WeightGradients.apply(a, s, R, kernel, geometry)
    return out


def weight_products(
    a: Tensor, s: Tensor, target: Tensor, kernel: torch.Size, geometry: Geometry
) -> tuple[Tensor, Tensor]:
    """⟨G_r, target_r⟩ and ‖G_r‖² of the weight gradients G, two tensors (R,), once differentiable in a and s.

    Args:
        a: as in `weight_gradients`.
        s: as there.
        target: (R, O*c*k*k).
        kernel: as there.
        geometry: as there.
    """
    dot, square = _WeightProducts.apply(a, s, target, kernel, geometry)
    return dot, square


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(a, weight)
        ctx.geometry = geometry
        return F.conv2d(a, weight, bias, *geometry)

    @staticmethod
    def backward(ctx: Any, s: Tensor) -> tuple[Tensor | None, ...]:
        return _Transposed.apply(s, *ctx.saved_tensors, ctx.geometry), None, None, None


class _Transposed(torch.autograd.Function):
    """A convolution's derivative in its input, which is linear in s."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, a: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.geometry = geometry
        return _input_gradient(a, s, weight, geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        return F.conv2d(g, weight, None, *ctx.geometry), None, None, None


class _WeightGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, s: Tensor, R: int, kernel: torch.Size, geometry: Geometry) -> Tensor:
        a, s = _side_by_side(a, R), _side_by_side(s, R)
        ctx.save_for_backward(a, s)
        ctx.R, ctx.kernel, ctx.geometry = R, kernel, geometry
        return _grouped_gradient(a, s, R, kernel, geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        a, s = ctx.saved_tensors
        da, ds = _adjoint(a, s, g, ctx.R, ctx.kernel, ctx.geometry, ctx.needs_input_grad[0])
        return da, ds, None, None, None


class _WeightProducts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, a: Tensor, s: Tensor, target: Tensor, kernel: torch.Size, geometry: Geometry
    ) -> tuple[Tensor, Tensor]:
        R = len(target)
        a, s = _side_by_side(a, R), _side_by_side(s, R)
        G = _grouped_gradient(a, s, R, kernel, geometry)
        ctx.save_for_backward(a, s, target, G)
        ctx.R, ctx.kernel, ctx.geometry = R, kernel, geometry
        # One target for all (restarts of one message) is a product of a matrix and a vector.
        dot = G @ target[0] if target.stride(0) == 0 else (G * target).sum(1)
        return dot, torch.linalg.vector_norm(G, dim=1).square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dot: Tensor, square: Tensor) -> tuple[Tensor | None, ...]:
        a, s, target, G = ctx.saved_tensors
        g = G * (2 * square)[:, None]
        if target.stride(0) == 0:
            g.addr_(dot, target[0])
        else:
            g.addcmul_(dot[:, None], target)
        da, ds = _adjoint(a, s, g, ctx.R, ctx.kernel, ctx.geometry, ctx.needs_input_grad[0])
        return da, ds, None, None, None


def _adjoint(
    a: Tensor, s: Tensor, g: Tensor, R: int, kernel: torch.Size, geometry: Geometry, inputs: bool
) -> tuple[Tensor | None, Tensor]:
    """Derivatives of ⟨G, g⟩ in the inputs, where they are wanted, and in the signals."""
    weight = g.reshape(R * kernel[0], *kernel[1:])
    da = _apart(_input_gradient(a, s, weight, geometry, R), R) if inputs else None
    return da, _apart(F.conv2d(a, weight, None, *geometry, groups=R), R)


def _grouped_gradient(a: Tensor, s: Tensor, R: int, kernel: torch.Size, geometry: Geometry) -> Tensor:
    """(R, weight values) of inputs (B, R*c, h, w) and signals (B, R*O, p, q)."""
    # torch.nn.grad's functions hand over tensors that are expanded, and copied then; only sizes matter of them.
    weight = a.new_empty(R * kernel[0], *kernel[1:])
    wanted = (False, True, False)
    found: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        s, a, weight, None, *geometry, False, (0, 0), R, wanted
    )
    return found[1].view(R, -1)


def _input_gradient(a: Tensor, s: Tensor, weight: Tensor, geometry: Geometry, groups: int = 1) -> Tensor:
    """The derivative in an input of the size of `a`."""
    wanted = (True, False, False)
    found: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        s, a, weight, None, *geometry, False, (0, 0), groups, wanted
    )
    return found[0]


def _side_by_side(t: Tensor, R: int) -> Tensor:
    """(R*B, c, h, w) as (B, R*c, h, w): the batches as groups of channels."""
    B, c, h, w = len(t) // R, *t.shape[1:]
    return t.reshape(R, B, c, h, w).transpose(0, 1).reshape(B, R * c, h, w)


def _apart(t: Tensor, R: int) -> Tensor:
    """The reverse of `_side_by_side`."""
    B, c, h, w = len(t), t.shape[1] // R, *t.shape[2:]
    return t.reshape(B, R, c, h, w).transpose(0, 1).reshape(R * B, c, h, w)

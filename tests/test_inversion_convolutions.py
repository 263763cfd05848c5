"""Convolutions and their weight gradients batch by batch: against autograd's own, and their derivatives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fdaudit.attacks.gradient_inversion.convolutions import (
    Geometry,
    shared_convolution,
    weight_gradients,
    weight_products,
)
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

GEOMETRIES = {
    "plain": Geometry((1, 1), (0, 0), (1, 1)),
    "strided": Geometry((2, 2), (2, 2), (1, 1)),
    "uneven": Geometry((2, 1), (1, 2), (1, 2)),
}
CHANNELS, OUT, KERNEL = 2, 3, torch.Size((3, 2, 3, 2))


def drawn(geometry: Geometry, N: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Images, a kernel, and signals at the output."""
    g = torch.Generator().manual_seed(0)
    a = torch.randn(N, CHANNELS, 7, 6, generator=g, dtype=dtype)
    weight = torch.randn(KERNEL, generator=g, dtype=dtype)
    s = torch.randn(F.conv2d(a, weight, None, *geometry).shape, generator=g, dtype=dtype)
    return a, weight, s


def one_by_one(a: Tensor, s: Tensor, R: int, geometry: Geometry) -> Tensor:
    """Each batch's weight gradient by autograd."""
    found = []
    for images, signals in zip(a.chunk(R), s.chunk(R), strict=True):
        weight = torch.zeros(KERNEL, dtype=a.dtype, requires_grad=True)
        out = F.conv2d(images, weight, None, *geometry)
        found.append(torch.autograd.grad((out * signals).sum(), weight)[0].flatten())
    return torch.stack(found)


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_a_shared_convolution_is_pytorchs_and_twice_differentiable(geometry: Geometry) -> None:
    a, weight, _ = drawn(geometry, 2)
    bias = torch.randn(OUT, dtype=torch.float64)
    torch.testing.assert_close(
        shared_convolution(a, weight, bias, geometry), F.conv2d(a, weight, bias, *geometry)
    )

    def bent(images: Tensor) -> Tensor:  # a convolution's own second derivative is zero
        return shared_convolution(images.tanh(), weight, bias, geometry).sin()

    assert gradcheck(bent, a.requires_grad_())
    assert gradgradcheck(bent, a)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("B", [1, 2])
@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_weight_gradients_are_each_batchs_own(geometry: Geometry, B: int, dtype: torch.dtype) -> None:
    a, _, s = drawn(geometry, 3 * B, dtype)
    expected = one_by_one(a, s, 3, geometry)
    torch.testing.assert_close(weight_gradients(a, s, 3, KERNEL, geometry), expected)
    own = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    for target in (own, own[:1].expand(3, -1)):
        dot, square = weight_products(a, s, target, KERNEL, geometry)
        torch.testing.assert_close(dot, (expected * target).sum(1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(square, expected.square().sum(1))


@pytest.mark.parametrize("B", [1, 2])
@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_their_derivatives_are_right_in_inputs_and_in_signals(geometry: Geometry, B: int) -> None:
    a, _, s = drawn(geometry, 2 * B)
    a.requires_grad_(), s.requires_grad_()
    own = torch.randn(2, KERNEL.numel(), generator=torch.Generator().manual_seed(1), dtype=a.dtype)
    assert gradcheck(lambda x, y: weight_gradients(x, y, 2, KERNEL, geometry), (a, s))
    for target in (own, own[:1].expand(2, -1)):
        assert gradcheck(lambda x, y, t=target: weight_products(x, y, t, KERNEL, geometry), (a, s))
    (alone,) = torch.autograd.grad(weight_gradients(a.detach(), s, 2, KERNEL, geometry).sum(), s)
    (both,) = torch.autograd.grad(weight_gradients(a, s, 2, KERNEL, geometry).sum(), s)
    torch.testing.assert_close(alone, both)

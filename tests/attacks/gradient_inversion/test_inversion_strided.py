"""Input gradients of strided convolutions, phase by phase: what autograd finds."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fdaudit.attacks.gradient_inversion.second_order import convolutions
from fdaudit.attacks.gradient_inversion.second_order.columns import Geometry
from fdaudit.attacks.gradient_inversion.second_order.convolutions import Convolution
from fdaudit.attacks.gradient_inversion.second_order.strided import Phases, pays
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

WAYS = {
    "stride": st.tuples(st.integers(1, 4), st.integers(1, 3)),
    "kernel": st.tuples(st.integers(1, 4), st.integers(1, 5)),
    "padding": st.tuples(st.integers(0, 5), st.integers(0, 6)),
    "size": st.tuples(st.integers(5, 9), st.integers(6, 8)),
}


def drawn(*shape: int) -> torch.Tensor:
    """By its shape alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@given(**WAYS)
@settings(deadline=None, max_examples=300)
def test_phases_are_what_a_kernel_sees(
    stride: tuple[int, int], kernel: tuple[int, int], padding: tuple[int, int], size: tuple[int, int]
) -> None:
    weight, a = drawn(3, 2, *kernel), drawn(4, 2, *size).requires_grad_()
    out = F.conv2d(a, weight, None, stride, padding)
    s = drawn(*out.shape)
    (expected,) = torch.autograd.grad((out * s).sum(), a)
    phases = Phases(weight.shape, Geometry(stride, padding, (1, 1)), weight.device)
    geometry, seen = phases.over(size)
    weights = phases.weights(weight.view(1, -1)).view(phases.kernel)
    e = F.conv_transpose2d(s, weights, None, geometry.stride, geometry.padding)
    assert e.shape[2:] == seen
    found = phases.collapse(e, size)
    torch.testing.assert_close(found, expected)
    assert found.is_contiguous()


@given(**WAYS, batches=st.tuples(st.integers(1, 3), st.integers(1, 3)), moving=st.booleans())
@settings(deadline=None, max_examples=150)
def test_a_layer_s_input_gradients_are_autograd_s(
    stride: tuple[int, int],
    kernel: tuple[int, int],
    padding: tuple[int, int],
    size: tuple[int, int],
    batches: tuple[int, int],
    moving: bool,
) -> None:
    (R, B), c, outputs = batches, 2, 3
    layer = nn.Conv2d(c, outputs, kernel, stride, padding)
    a = drawn(R * B, c, *size).requires_grad_()
    own, shared = drawn(R, outputs, c, *kernel), drawn(outputs, c, *kernel)
    by_batch = [F.conv2d(x, w, None, stride, padding) for x, w in zip(a.chunk(R), own, strict=True)]
    of_all = F.conv2d(a, shared, None, stride, padding)
    s, r = drawn(*of_all.shape), drawn(*of_all.shape) + 1
    value = (torch.cat(by_batch) * s).sum() + (of_all * r).sum() * moving
    (expected,) = torch.autograd.grad(value, a, retain_graph=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolutions, "_PATCH_VALUES", 0)
        made = Convolution(layer, shared, None)(a.detach(), R)
    made.forward()
    made.receive(s)
    torch.testing.assert_close(made.backward(s)[0], torch.autograd.grad((of_all * s).sum(), a)[0])
    made.move(own.flatten(1), None)
    torch.testing.assert_close(made.backward_along(r if moving else None)[0], expected)


def test_they_are_for_strides_without_dilation_and_few_channels_on_processors() -> None:
    cpu, none, few = torch.device("cpu"), (0, 0), torch.Size([99, 16, 3, 3])
    assert pays(few, Geometry((2, 2), none, (1, 1)), cpu)
    assert pays(few, Geometry((2, 1), none, (1, 1)), cpu)
    assert not pays(few, Geometry((1, 1), none, (1, 1)), cpu)
    assert not pays(few, Geometry((2, 2), none, (1, 2)), cpu)
    assert not pays(few, Geometry((2, 2), none, (1, 1)), torch.device("cuda"))
    assert not pays(torch.Size([99, 17, 3, 3]), Geometry((2, 2), none, (1, 1)), cpu)

"""Input gradients of strided convolutions by products of matrices: what autograd finds."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fdaudit.attacks.gradient_inversion import strided
from fdaudit.attacks.gradient_inversion.columns import Geometry
from fdaudit.attacks.gradient_inversion.strided import input_gradient, pays
from hypothesis import given, settings
from hypothesis import strategies as st


@given(
    stride=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 3)),
    size=st.tuples(st.integers(5, 9), st.integers(6, 8)),
    batches=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    moving=st.booleans(),
    together=st.sampled_from([1, 2000, 1 << 30]),
)
@settings(deadline=None, max_examples=200)
def test_it_is_the_gradient_in_the_images(
    stride: tuple[int, int],
    kernel: tuple[int, int],
    padding: tuple[int, int],
    size: tuple[int, int],
    batches: tuple[int, int],
    moving: bool,
    together: int,
) -> None:
    (R, B), c, outputs = batches, 2, 3
    g = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    a = drawn(R * B, c, *size).requires_grad_()
    own, shared = drawn(R, outputs, c, *kernel), drawn(outputs, c, *kernel)
    by_batch = [F.conv2d(x, w, None, stride, padding) for x, w in zip(a.chunk(R), own, strict=True)]
    of_all = F.conv2d(a, shared, None, stride, padding)
    s, r = drawn(*of_all.shape), drawn(*of_all.shape) if moving else None
    value = (torch.cat(by_batch) * s).sum() + (0 if r is None else (of_all * r).sum())
    (expected,) = torch.autograd.grad(value, a)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strided, "_TOGETHER", together)
        found = input_gradient(size, Geometry(stride, padding, (1, 1)), own.flatten(1), s, shared, r)
    torch.testing.assert_close(found, expected)
    assert found.is_contiguous()


def test_it_is_for_strides_without_dilation_on_processors() -> None:
    cpu, none = torch.device("cpu"), (0, 0)
    assert pays(Geometry((2, 2), none, (1, 1)), cpu)
    assert pays(Geometry((2, 1), none, (1, 1)), cpu)
    assert not pays(Geometry((1, 1), none, (1, 1)), cpu)
    assert not pays(Geometry((2, 2), none, (1, 2)), cpu)
    assert not pays(Geometry((2, 2), none, (1, 1)), torch.device("cuda"))

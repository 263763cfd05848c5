"""Convolutions with a kernel's columns for channels: the same numbers, the same derivatives."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from fdaudit.attacks.gradient_inversion.second_order.columns import Columns, Geometry, Plain, arranged
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

GEOMETRY = Geometry((2, 1), (1, 2), (1, 2))


def drawn(kernel: tuple[int, ...], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    a = torch.randn(3, kernel[1], *size, generator=g, dtype=torch.float64)
    return a, torch.randn(kernel, generator=g, dtype=torch.float64)


@given(
    c=st.integers(1, 3),
    k=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 6)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
@settings(deadline=None)
def test_it_is_the_same_convolution(
    c: int, k: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int]
) -> None:
    geometry = Geometry(stride, padding, dilation)
    a, weight = drawn((8, c, *k), (8, 10))
    columns = Columns(weight.shape, geometry)
    flat = columns.weights(weight.view(1, -1))
    e = columns.spread(a)
    size = (a.shape[2], a.shape[3])
    assert e.shape[1] % 8 == 0
    assert columns.over(size) == (columns.geometry, tuple(e.shape[2:]))
    out = F.conv2d(e, flat.view(columns.kernel), None, *columns.geometry)
    torch.testing.assert_close(out, F.conv2d(a, weight, None, *geometry))
    torch.testing.assert_close(columns.restored(flat), weight.view(1, -1), rtol=0, atol=0)
    signal = torch.randn(e.shape, generator=torch.Generator().manual_seed(1), dtype=e.dtype)
    torch.testing.assert_close((e * signal).sum(), (a * columns.collapse(signal, size)).sum())


def test_one_target_for_all_is_arranged_once() -> None:
    _, weight = drawn((8, 2, 3, 3), (5, 6))
    columns = Columns(weight.shape, GEOMETRY)
    flat = weight.view(1, -1)
    shared = columns.weights(flat.expand(4, -1))
    assert shared.stride(0) == 0
    torch.testing.assert_close(shared, columns.weights(flat.repeat(4, 1)), rtol=0, atol=0)


def test_columns_are_for_a_few_channels_on_processors_whose_outputs_fill_blocks() -> None:
    cpu, colours = torch.device("cpu"), torch.Size((16, 3, 5, 5))
    assert isinstance(arranged(colours, GEOMETRY, cpu), Columns)
    for other in ((16, 1, 5, 5), (16, 8, 5, 5), (10, 3, 5, 5), (16, 3, 5, 1)):
        assert isinstance(arranged(torch.Size(other), GEOMETRY, cpu), Plain)
    assert isinstance(arranged(colours, GEOMETRY, torch.device("cuda")), Plain)

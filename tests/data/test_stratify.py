"""Shares in proportion, and images brought to one size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from fdaudit.data.resize import fit
from fdaudit.data.stratify import apportion, stratified_draw
from fdaudit.rng import child

from ..helpers.run_cases import stream


@given(
    h=st.integers(1, 12),
    w=st.integers(1, 12),
    size=st.integers(1, 16),
    level=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_fit_gives_the_size_and_keeps_flat_grey_flat(h, w, size, level):
    out = fit(torch.full((2, 3, h, w), level), size)
    assert out.shape == (2, 3, size, size)
    inside = out[out > 0] if level else out
    assert torch.allclose(inside, torch.full_like(inside, level), atol=1e-6)
    if max(h, w) <= size:
        assert out.sum() == pytest.approx(2 * 3 * h * w * level)


def test_fit_shrinks_as_averaging_does():
    x = torch.rand(1, 1, 8, 8, generator=child(0, "x"))
    # Antialiased bilinear shrinking preserves the mean up to the borders; a checkerboard turns grey.
    board = (torch.arange(16)[:, None] + torch.arange(16)[None, :]).remainder(2).float()[None, None]
    assert fit(board, 4)[..., 1:3, 1:3].sub(0.5).abs().max() < 0.01
    assert torch.equal(fit(x, 8), x)
    assert torch.equal(fit(x, 10), F.pad(x, (1, 1, 1, 1)))


@given(weights=st.lists(st.integers(0, 50), min_size=1, max_size=8), share=st.floats(0, 1))
def test_apportion_sums_up_and_stays_within_one_of_the_quota(weights, share):
    total = int(share * sum(weights))
    shares = apportion(total, weights)
    assert sum(shares) == total
    for got, weight in zip(shares, weights, strict=True):
        assert got <= weight
        assert abs(got - total * weight / max(sum(weights), 1)) < 1


@given(weights=st.lists(st.integers(1, 50), min_size=1, max_size=8), share=st.floats(0, 1))
def test_apportion_respects_caps(weights, share):
    caps = [w // 2 for w in weights]
    total = int(share * sum(caps))
    shares = apportion(total, weights, caps)
    assert sum(shares) == total
    assert all(got <= cap for got, cap in zip(shares, caps, strict=True))
    with pytest.raises(ValueError, match="sum of the caps"):
        apportion(sum(caps) + 1, weights, caps)


@given(y=st.lists(st.integers(0, 4), min_size=1, max_size=60), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_stratified_draw_splits_into_two(y, share, seed):
    labels = torch.tensor(y)
    total = int(share * len(y))
    drawn, rest = stratified_draw(labels, total, 5, stream(seed, "draw"))
    assert len(drawn) == total
    assert sorted([*drawn.tolist(), *rest.tolist()]) == list(range(len(y)))

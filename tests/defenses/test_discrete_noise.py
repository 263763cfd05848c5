"""Whole-number noise: that the draws are exact, what is clipped and rounded, what is sent and what is claimed."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from fdaudit.defenses import _exact
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fdaudit.events import DiscreteGaussian, DiscreteLaplace, NoGuarantee
from fdaudit.rng import SecretStream, child
from fdaudit.transcript.encoding import readable

from ..helpers.defence_cases import SECRET, defence

DRAW = {"laplace": _exact.discrete_laplace, "gaussian": _exact.discrete_gaussian}
NOISE = {"discrete-laplace": "gamma", "discrete-gaussian": "sigma"}


def stream(*path):
    return SecretStream(SECRET, *path)


def noisy(name, scale, **params):
    """The defence with noise of a scale in the units of the values."""
    return defence(name, **{NOISE[name]: 1 / scale if name == "discrete-laplace" else scale, **params})


def sent(made, tensors, path="m"):
    return readable(made.release("logits", tensors, stream(path)).tensors)


def law(which, scale, most):
    """P[Y = y] for |y| <= most by its formula, summed over four times as far."""
    y = np.arange(-4 * most, 4 * most + 1, dtype=np.float64)
    weights = np.exp(-np.abs(y) / scale) if which == "laplace" else np.exp(-(y**2) / (2 * scale**2))
    return (weights / weights.sum())[3 * most : 5 * most + 1]


# -- the draws ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", DRAW)
@pytest.mark.parametrize("scale", [0.2, 1.0, 1.37, 6.5, 40.0])
def test_draws_have_the_law_of_the_formula(which, scale):
    drawn = DRAW[which](scale, 20_000, stream("law"))
    assert drawn.dtype == np.int64
    most = max(1, int(3 * scale))
    counts = np.array([(drawn == y).sum() for y in range(-most, most + 1)])
    wanted = law(which, scale, most) * 20_000
    rest = [20_000 - counts.sum(), 20_000 - wanted.sum()]
    enough = wanted > 5
    seen = [*counts[enough], counts[~enough].sum() + rest[0]]
    expected = [*wanted[enough], wanted[~enough].sum() + rest[1]]
    assert chisquare(seen, expected).pvalue > 1e-3


@pytest.mark.parametrize("which", DRAW)
def test_a_wide_law_has_the_moments_of_the_continuous_one(which):
    drawn = DRAW[which](30_000.0, 50_000, stream("wide"))
    variance = 2.0 if which == "laplace" else 1.0
    assert (drawn / 30_000).var() == pytest.approx(variance, rel=0.05)
    assert abs((drawn / 30_000).mean()) < 4 * math.sqrt(variance / 50_000)


@pytest.mark.parametrize("which", DRAW)
@pytest.mark.parametrize("scale", [0.3, 1.0, 7.3, 5000.5])
def test_fractions_alone_decide_every_coin_alike(which, scale, monkeypatch):
    """No approximation is trusted at all: the same draws, one by one."""
    quick = DRAW[which](scale, 300, stream("exact"))
    monkeypatch.setattr(_exact, "_DOUBT", 2.0)
    assert np.array_equal(DRAW[which](scale, 300, stream("exact")), quick)


def test_a_coin_as_near_to_its_probability_as_its_first_bits_is_decided_by_more():
    """52 bits that agree with p leave it open; the bits that follow decide, as often as p's own say."""
    word = 3 << 50  # 0.75
    p = Fraction(3, 4) + Fraction(1, 3 * 2**52)  # a third of the last place further
    heads = [_exact._surely_below(word, p, stream("near", n)) for n in range(3000)]
    assert np.mean(heads) == pytest.approx(1 / 3, abs=4 * math.sqrt(2 / 9 / 3000))
    assert _exact._surely_below(word - 1, p, stream("below")) is True
    assert _exact._surely_below(word + 1, p, stream("above")) is False


def test_numbers_below_m_are_uniform_though_m_divides_no_power_of_two():
    drawn = _exact._below(7, 70_000, stream("seven"))
    assert chisquare(np.bincount(drawn, minlength=7)).pvalue > 1e-3


@pytest.mark.parametrize("scale", [0.0, -1.0, 2.0**-11, 2.0**21, math.nan])
@pytest.mark.parametrize("which", DRAW)
def test_a_scale_out_of_range_is_refused(which, scale):
    with pytest.raises(ValueError, match="scale"):
        DRAW[which](scale, 3, stream("x"))


def test_no_draw_at_all_is_drawn():
    assert DRAW["gaussian"](2.0, 0, stream("none")).shape == (0,)


# -- the grid -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NOISE)
def test_without_noise_to_speak_of_a_value_goes_to_the_nearest_point_of_the_clip(name):
    z = torch.randn(50, 4, generator=child(0, "z")) * 3
    got = sent(noisy(name, 0.02, clip=2.0, levels=8), {"values": z})["values"]
    wanted = np.floor((np.clip(z.numpy(), -2, 2) + 2) / 0.5 + 0.5) * 0.5 - 2
    np.testing.assert_allclose(got.numpy(), wanted, atol=1e-6)


@pytest.mark.parametrize("name", NOISE)
def test_what_is_added_is_whole_steps_drawn_from_the_secret(name):
    made = noisy(name, 3.0, clip=2.0, levels=4)
    zeros = {"index": torch.arange(500), "values": torch.zeros(500, 10)}
    got = sent(made, zeros)
    steps = got["values"].double().numpy().ravel()  # the step is 1
    drawn = DRAW[name.removeprefix("discrete-")](3.0, 5000, stream("m"))
    assert np.array_equal(steps, drawn)
    assert torch.equal(got["index"], zeros["index"])
    assert not torch.equal(sent(made, zeros, "other")["values"], got["values"])


def test_noise_past_the_outermost_point_goes_to_it_and_codes_take_their_bits():
    made = noisy("discrete-laplace", 1000.0, clip=1.0, levels=8)
    packed = made.release("logits", {"values": torch.zeros(8000)}, stream("m")).tensors
    assert int(packed["values:layout"][0]) == 16
    assert len(packed["values:codes"]) == 16_000
    values = readable(packed)["values"]
    most = (1 << 15) * 0.25
    assert float(values.abs().max()) <= most
    small = noisy("discrete-laplace", 0.5, clip=1.0, levels=8)  # 2 steps wide: 65 on either side, 139 points
    assert (
        int(small.release("logits", {"values": torch.zeros(3)}, stream("m")).tensors["values:layout"][0]) == 8
    )


def test_what_is_no_number_counts_as_nought():
    z = torch.tensor([math.nan, math.inf, -math.inf, 0.0])
    got = sent(noisy("discrete-gaussian", 0.02, clip=2.0, levels=8), {"values": z})["values"]
    assert got.tolist() == [0.0] * 4


# -- the claim ----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(levels=st.integers(1, 40), n=st.integers(1, 12), seed=st.integers(0, 999), clip=st.floats(0.1, 10))
def test_the_event_states_a_sensitivity_in_steps_that_no_two_messages_exceed(levels, n, seed, clip):
    draw = child(seed, "pair")
    pair = [torch.randn(n, 3, generator=draw) * 5 * clip for _ in range(2)]
    step = 2 * clip / levels
    for name, which, order in (
        ("discrete-laplace", DiscreteLaplace, 1),
        ("discrete-gaussian", DiscreteGaussian, 2),
    ):
        made = noisy(name, 2 * step, clip=clip, levels=levels)
        event = made.release("logits", {"values": pair[0]}, stream("m")).event
        assert isinstance(event, which)
        assert event.scale == pytest.approx(2.0)
        assert event.sensitivity == pytest.approx(levels * (3 * n) ** (1 / order))
        assert (event.unit, event.relation, event.covers) == ("client", "replace-one", ("data", "messages"))
        codes = [made._codes(z).double() for z in pair]
        assert float((codes[0] - codes[1]).flatten().norm(p=order)) <= event.sensitivity * (1 + 1e-12)
        far = [made._codes(torch.full((n, 3), x)).double() for x in (1e9, -1e9)]
        assert float((far[0] - far[1]).flatten().norm(p=order)) == pytest.approx(event.sensitivity)


@pytest.mark.parametrize("name", NOISE)
@pytest.mark.parametrize(
    ("n", "extra", "public_index", "word"),
    [
        (3, {"index": torch.arange(3)}, False, "index"),
        (3, {"z_max": torch.tensor(1.0)}, True, "z_max"),
        (0, {}, False, "values"),
    ],
)
def test_what_is_not_covered_leaves_nothing_to_claim(name, n, extra, public_index, word):
    made = noisy(name, 1.0, clip=1.0, public_index=public_index)
    event = made.release("logits", {"values": torch.ones(n), **extra}, stream("m")).event
    assert isinstance(event, NoGuarantee)
    assert word in event.reason

"""Laplace noise on messages: what it draws, what it clips, what it claims."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from fdaudit.events import Laplace, NoGuarantee
from fdaudit.rng import SecretStream, child

from ..helpers.defence_cases import SECRET, defence, released


def laplace(**params):
    return defence("laplace-noise", **params)


def release(made, tensors):
    return released(made, tensors, "ensemble_labels")


def message(n=400, c=10, scale=20.0, seed=0):
    values = torch.randn(n, c, generator=child(seed, "values"), dtype=torch.float64) * scale
    return {"index": torch.arange(n), "values": values}


# -- the draws ----------------------------------------------------------------------------------------------------


def test_the_streams_laplace_draws_have_the_law_and_its_moments():
    drawn = SecretStream(SECRET, "draws").laplace(200, 500)
    assert drawn.shape == (200, 500)
    assert np.isfinite(drawn).all()
    assert kstest(drawn.ravel(), "laplace").pvalue > 0.01
    assert abs(drawn.mean()) < 4 * math.sqrt(2 / drawn.size)
    assert drawn.var() == pytest.approx(2.0, rel=0.05)


def test_a_draw_is_the_quantile_of_a_uniform_draw():
    """The law's quantile: ln 2u below the median, -ln 2(1 - u) above it."""
    u = SecretStream(SECRET, "same").uniform(1000)
    wanted = np.where(u < 0.5, np.log(2 * u), -np.log(2 * (1 - u)))
    np.testing.assert_allclose(SecretStream(SECRET, "same").laplace(1000), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gamma", [0.05, 1.0, 20.0])
def test_what_is_added_is_laplace_of_scale_one_over_gamma(gamma):
    sent = message(2000)
    got = release(laplace(gamma=gamma), sent).tensors
    residual = (got["values"] - sent["values"]).numpy().ravel()
    assert kstest(residual * gamma, "laplace").pvalue > 0.01
    assert torch.equal(got["index"], sent["index"])


# -- the clip and the claim ---------------------------------------------------------------------------------------


def test_every_value_is_clipped_before_the_noise():
    sent = message()
    got = release(laplace(gamma=1e9, clip=3.0), sent).tensors["values"]
    torch.testing.assert_close(got, sent["values"].clamp(-3, 3), rtol=0, atol=1e-7)
    assert float(got.abs().max()) == pytest.approx(3.0)


@settings(deadline=None, max_examples=40)
@given(clip=st.floats(0.1, 100), one=st.integers(0, 50), two=st.integers(51, 99), n=st.integers(1, 30))
def test_the_event_states_a_sensitivity_that_no_two_messages_exceed(clip, one, two, n):
    made = laplace(gamma=1e12, clip=clip, public_index=True)
    a, b = (release(made, message(n, 4, 50.0, seed)).tensors["values"] for seed in (one, two))
    event = release(made, message(n, 4)).event
    assert event == Laplace(
        sensitivity=2 * clip * n * 4,
        scale=1e-12,
        unit="client",
        relation="replace-one",
        covers=("data", "messages"),
    )
    assert float((a - b).abs().sum()) <= event.sensitivity * (1 + 1e-9)


def test_the_sensitivity_is_reached_by_opposite_messages():
    made = laplace(gamma=1e12, clip=1.5, public_index=True)
    up, down = (release(made, {"values": torch.full((3, 2), v)}) for v in (1e3, -1e3))
    assert float((up.tensors["values"] - down.tensors["values"]).abs().sum()) == pytest.approx(
        up.event.sensitivity
    )


def test_the_figures_of_the_paper_give_a_finite_and_empty_epsilon():
    """B = 86, n = 5,000 samples, C = 10 classes, γ = 1: sensitivity over scale is 8.6 million."""
    sent = {"index": torch.arange(5000), "values": torch.zeros(5000, 10)}
    event = release(laplace(gamma=1.0, clip=86.0, public_index=True), sent).event
    assert event.sensitivity / event.scale == pytest.approx(8.6e6)


@pytest.mark.parametrize(
    ("params", "tensors", "word"),
    [
        ({"gamma": 1e-9}, message(3), "clip"),
        ({"gamma": 1.0, "clip": 1.0}, message(3), "index"),
        (
            {"gamma": 1.0, "clip": 1.0, "public_index": True},
            {**message(3), "z_max": torch.tensor(1.0)},
            "z_max",
        ),
        ({"gamma": 1.0, "clip": 1.0, "public_index": True}, {"index": torch.arange(3)}, "values"),
    ],
)
def test_what_is_not_covered_leaves_nothing_to_claim(params, tensors, word):
    event = release(laplace(**params), tensors).event
    assert isinstance(event, NoGuarantee)
    assert word in event.reason

"""DP-FedAvg and sanitised gradients: the clip holds, the noise is that of the event, the event bounds what moves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from fdaudit.errors import ProtocolError
from fdaudit.events import Gaussian, NoGuarantee
from fdaudit.rng import child

from ..helpers.defence_cases import defence, released
from ..helpers.protocol_cases import run


def update(seed=0, scale=1.0, n=40):
    g = child(seed, "update")
    return {
        "w": torch.randn(n, 3, generator=g).double() * scale,
        "b": torch.randn(3, generator=g).double() * scale,
    }


def gradients(seed=0, scale=1.0, n=6):
    sizes = torch.rand(n, 1, 1, 1, generator=child(seed, "sizes")).double() * 4
    return torch.randn(n, 1, 4, 4, generator=child(seed, "gradients")).double() * scale * sizes


# -- DP-FedAvg ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [1, 4, 25])
def test_a_share_of_the_noise_has_that_shares_deviation(shares):
    made = defence("dp-fedavg", clip=2.0, sigma=1.5, shares=shares)
    zeros = {"w": torch.zeros(20_000, dtype=torch.float64)}
    got = released(made, zeros, "model_update")
    scale = 1.5 * 2.0 / math.sqrt(shares)
    assert kstest(got.tensors["w"].numpy() / scale, "norm").pvalue > 1e-3
    assert got.event == Gaussian(
        sensitivity=4.0,
        scale=scale,
        unit="client",
        relation="replace-one",
        covers=("data", "messages"),
    )


def test_the_sum_of_all_shares_has_the_noise_of_one_who_adds_it_all():
    zeros = {"w": torch.zeros(20_000, dtype=torch.float64)}
    made = defence("dp-fedavg", clip=2.0, sigma=1.5, shares=9)
    total = sum(released(made, zeros, "model_update", f"client/{k}").tensors["w"] for k in range(9))
    assert kstest(total.numpy() / 3.0, "norm").pvalue > 1e-3


@settings(deadline=None, max_examples=40)
@given(clip=st.floats(0.1, 10), scale=st.floats(1e-3, 1e3), one=st.integers(0, 99), two=st.integers(0, 99))
def test_no_two_updates_lie_further_apart_than_the_event_says(clip, scale, one, two):
    made = defence("dp-fedavg", clip=clip, sigma=1e-12)
    a, b = (released(made, update(s, scale), "gradient") for s in (one, two))
    flat = [torch.cat([r.tensors[n].flatten() for n in ("w", "b")]) for r in (a, b)]
    assert all(float(f.norm()) <= clip * (1 + 1e-9) for f in flat)
    assert float((flat[0] - flat[1]).norm()) <= a.event.sensitivity * (1 + 1e-9)
    opposite = [
        released(made, {"w": torch.full((5,), s * 1e9).double()}, "gradient").tensors["w"] for s in (1, -1)
    ]
    assert float((opposite[0] - opposite[1]).norm()) == pytest.approx(a.event.sensitivity)


def test_what_is_no_number_in_an_update_counts_as_nought():
    sent = {"w": torch.tensor([math.nan, math.inf, 3.0, 4.0], dtype=torch.float64)}
    got = released(defence("dp-fedavg", clip=1.0, sigma=1e-12), sent, "model_update").tensors["w"]
    assert got.tolist() == pytest.approx([0, 0, 0.6, 0.8], abs=1e-9)


def test_parameters_are_no_update():
    with pytest.raises(ProtocolError, match="no update"):
        released(defence("dp-fedavg", clip=1.0, sigma=1.0), update(), "model_parameters")


# -- sanitised gradients ------------------------------------------------------------------------------------------


def test_each_gradient_is_noised_around_its_own_clipped_value():
    made = defence("sanitized-gradients", clip=2.0, sigma=0.7)
    g = gradients(n=2000)
    got = released(made, {"values": g}, "sample_gradients")
    norms = np.linalg.norm(g.numpy().reshape(2000, -1), axis=1)
    clipped = g.numpy() * np.minimum(1, 2.0 / norms).reshape(-1, 1, 1, 1)
    assert kstest((got.tensors["values"].numpy() - clipped).ravel() / 1.4, "norm").pvalue > 1e-3
    assert got.tensors["values"].shape == g.shape


@settings(deadline=None, max_examples=40)
@given(clip=st.floats(0.1, 10), scale=st.floats(1e-3, 1e3), n=st.integers(1, 9), seed=st.integers(0, 99))
def test_each_gradient_keeps_to_the_clip_and_moves_by_no_more_than_the_event_says(clip, scale, n, seed):
    made = defence("sanitized-gradients", clip=clip, sigma=1e-12, drawn_from=5)
    pair = [
        released(made, {"values": gradients(s, scale, n)}, "sample_gradients") for s in (seed, seed + 100)
    ]
    assert pair[0].event == Gaussian(
        sensitivity=2 * clip,
        scale=1e-12 * clip,
        count=n,
        drawn_from=5,
        unit="client",
        relation="replace-one",
        covers=("data", "messages"),
    )
    rows = [p.tensors["values"].flatten(1) for p in pair]
    assert float(rows[0].norm(dim=1).max()) <= clip * (1 + 1e-9)
    assert float((rows[0] - rows[1]).norm(dim=1).max()) <= pair[0].event.sensitivity * (1 + 1e-9)
    short = gradients(seed, 1.0, n) * clip / 1e3
    torch.testing.assert_close(released(made, {"values": short}, "sample_gradients").tensors["values"], short)


def test_the_bound_of_gs_wgan_follows_from_the_event():
    """RDP 2nα/σ² of n samples: the Gaussian's α Δ²/2s² each (Mironov 2017), with the event's Δ and s."""
    made = defence("sanitized-gradients", clip=1.1, sigma=1.07)
    event = released(made, {"values": gradients(n=32)}, "sample_gradients").event
    for alpha in (1.5, 2, 32):
        rdp = event.count * alpha * event.sensitivity**2 / (2 * event.scale**2)
        assert rdp == pytest.approx(2 * 32 * alpha / 1.07**2)


def test_gradients_that_are_nought_or_no_numbers_stay_finite():
    g = torch.zeros(3, 1, 2, 2, dtype=torch.float64)
    g[1, 0, 0, 0], g[2, 0, 0, 0] = math.nan, math.inf
    got = released(defence("sanitized-gradients", clip=1.0, sigma=1e-9), {"values": g}, "sample_gradients")
    assert float(got.tensors["values"].abs().max()) < 1e-6


def test_a_message_without_gradients_claims_nothing():
    made = defence("sanitized-gradients", clip=1.0, sigma=1.0)
    event = released(made, {"values": torch.zeros(0, 1, 2, 2)}, "sample_gradients").event
    assert isinstance(event, NoGuarantee)


def test_fediod_learns_from_sanitised_gradients_alone(tmp_path):
    """What the server gets has the clip's and the noise's size, whatever the gradients' own."""
    made = defence("sanitized-gradients", clip=1e-6, sigma=50.0, drawn_from=3)
    ran = run(tmp_path / "a", "fediod", defenses={("sample_gradients", "client"): [made]})
    sent = [m for m in ran.messages if m.kind == "sample_gradients"]
    values = [ran.tensors(m)["values"].double() for m in sent]
    for message, each in zip(sent, values, strict=True):
        assert isinstance(message.event, Gaussian)
        assert (message.event.count, message.event.drawn_from) == (len(each), 3)
    assert kstest(torch.cat([v.flatten() for v in values]).numpy() / 50e-6, "norm").pvalue > 1e-4


@pytest.mark.parametrize(
    ("kind", "tensors"),
    [
        ("logits", {"values": gradients()}),
        ("sample_gradients", {"values": torch.ones(3)}),
        ("sample_gradients", {"values": gradients(), "index": torch.arange(6)}),
    ],
)
def test_what_is_no_gradient_at_samples_is_refused(kind, tensors):
    with pytest.raises(ProtocolError, match="sanitized-gradients"):
        released(defence("sanitized-gradients", clip=1.0, sigma=1.0), tensors, kind)

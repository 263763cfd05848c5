"""Bounds on each value, and averages whose sender says what one client's share is: what noise then claims."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit.errors import ProtocolError
from fdaudit.events import Gaussian, Laplace, NoGuarantee
from fdaudit.rng import child
from fdaudit.testing.federation import CLASSES, records
from fdaudit.transcript.encoding import readable
from fdaudit.transcript.wire import Outage

from ..helpers.by_hand import sent
from ..helpers.defence_cases import defence as configured
from ..helpers.defence_cases import released
from ..helpers.protocol_cases import run

TINY = {
    "laplace-noise": {"gamma": 1e12},
    "gaussian-noise": {"sigma": 1e-12},
    "discrete-laplace": {"gamma": 100.0, "levels": 10},
    "discrete-gaussian": {"sigma": 0.01, "levels": 10},
}
"""Hardly any noise."""
BOUND = {"gaussian-noise": "bound"}


def defence(name, B, **params):
    return configured(name, **{**TINY.get(name, {}), BOUND.get(name, "clip"): B, **params})


def release(made, tensors):
    return released(made, tensors, "ensemble_labels")


def said(share, B):
    share = torch.as_tensor(share, dtype=torch.float64)
    return {"client_share": share, "client_bound": torch.tensor(B, dtype=torch.float64)}


# -- a bound on each value ----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(B=st.floats(0.1, 100), n=st.integers(1, 20), one=st.integers(0, 99), two=st.integers(0, 99))
def test_gaussian_noise_with_a_bound_claims_what_no_two_messages_exceed(B, n, one, two):
    made = defence("gaussian-noise", B)
    z = [torch.randn(n, 4, generator=child(s, "z"), dtype=torch.float64) * 50 for s in (one, two)]
    a, b = (release(made, {"values": v}) for v in z)
    assert a.event == Gaussian(
        sensitivity=2 * B * (4 * n) ** 0.5,
        scale=1e-12,
        unit="client",
        relation="replace-one",
        covers=("data", "messages"),
    )
    torch.testing.assert_close(a.tensors["values"], z[0].clamp(-B, B), rtol=0, atol=1e-9)
    assert float((a.tensors["values"] - b.tensors["values"]).norm()) <= a.event.sensitivity * (1 + 1e-9)
    far = [release(made, {"values": torch.full((n, 4), s * 1e9)}).tensors["values"].double() for s in (1, -1)]
    assert float((far[0] - far[1]).norm()) == pytest.approx(a.event.sensitivity)


def test_the_rdp_of_a_bounded_message_is_the_designs():
    """At the client, n samples of C classes: 2αB²Cn/σ² at order α, by Mironov's αΔ²/2σ²."""
    event = release(defence("gaussian-noise", 3.0, sigma=40.0), {"values": torch.zeros(50, 10)}).event
    assert event.sensitivity**2 / (2 * event.scale**2) == pytest.approx(2 * 3.0**2 * 10 * 50 / 40.0**2)


@pytest.mark.parametrize("name", ["laplace-noise", "gaussian-noise"])
def test_what_is_no_number_does_not_go_through_the_noise(name):
    z = torch.tensor([math.nan, math.inf, -math.inf, 9.0])
    got = release(defence(name, 2.0), {"values": z}).tensors["values"]
    assert got.tolist() == pytest.approx([0, 0, 0, 2], abs=1e-9)


# -- averages -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(sorted(TINY)),
    K=st.integers(2, 6),
    n=st.integers(1, 5),
    seed=st.integers(0, 999),
    B=st.floats(0.5, 4),
    ratio=st.sampled_from([0.25, 1.0, 3.0]),
    by_class=st.booleans(),
)
def test_no_client_moves_a_weighted_average_by_more_than_the_event_says(name, K, n, seed, B, ratio, by_class):
    """The average is made here, of values within ±B'; the defence clips to a bound of its own."""
    draw, own = child(seed, "average"), B * ratio
    weights = torch.rand(K, 4, generator=draw, dtype=torch.float64) + 0.01
    weights = weights / weights.sum(0)
    z = (torch.randn(K, n, 4, generator=draw, dtype=torch.float64) * 3).clamp(-B, B)
    changed = z.clone()
    changed[seed % K] = torch.randn(n, 4, generator=draw, dtype=torch.float64).sign() * B
    share = weights.amax(0) if by_class else weights.max()
    made = defence(name, own)
    a, b = (
        release(made, {"values": torch.einsum("knc,kc->nc", v, weights), **said(share, B)})
        for v in (z, changed)
    )
    assert a.event.covers == ("each-client",)
    assert a.tensors.keys() & {"client_share", "client_bound"} == set()
    unit = 2 * own / 10 if name.startswith("discrete") else 1.0
    order = 1 if "laplace" in name else 2
    off = readable(a.tensors)["values"].double() - readable(b.tensors)["values"].double()
    assert float(off.flatten().norm(p=order)) / unit <= a.event.sensitivity * (1 + 1e-6) + 1e-6
    whole = release(made, {"values": z.sum(0)}).event
    assert whole.covers == ("data", "messages")
    assert a.event.sensitivity <= whole.sensitivity * (1 + 1e-12)


def test_the_sensitivity_is_that_of_the_design_and_is_reached():
    """ℓ1: n Σ_c ω_c 2B; ℓ2: 2B √(n Σ_c ω_c²)."""
    share, B, n = [0.5, 0.25, 0.125], 2.0, 7
    ends = [torch.tensor(share).double().repeat(n, 1) * s * B for s in (1, -1)]
    for name, wanted, order in (
        ("laplace-noise", n * sum(share) * 2 * B, 1),
        ("gaussian-noise", 2 * B * math.sqrt(n * sum(w * w for w in share)), 2),
    ):
        made = defence(name, B)
        a, b = (release(made, {"values": v, **said(share, B)}) for v in ends)
        assert a.event.sensitivity == pytest.approx(wanted)
        off = a.tensors["values"] - b.tensors["values"]
        assert float(off.flatten().norm(p=order)) == pytest.approx(wanted)


def test_a_clip_of_the_whole_message_makes_nothing_of_the_share():
    made = configured("gaussian-noise", sigma=1.0, clip=3.0)
    got = release(made, {"values": torch.ones(4, 2), **said(0.1, 1.0)})
    assert got.tensors.keys() == {"values"}
    assert (got.event.sensitivity, got.event.covers) == (6.0, ("data", "messages"))


@pytest.mark.parametrize(
    "helpers",
    [
        {"client_share": torch.tensor(0.5)},
        said(0.5, 0.0),
        said(0.5, math.inf),
        said(0.0, 1.0),
        said(1.5, 1.0),
        said([0.5, 0.5], 1.0),
        said([[0.5, 0.5, 0.5]], 1.0),
    ],
)
def test_shares_that_make_no_sense_are_refused(helpers):
    for name in TINY:
        with pytest.raises(ProtocolError, match="client"):
            release(defence(name, 1.0), {"values": torch.ones(2, 3), **helpers})


# -- FedKD --------------------------------------------------------------------------------------------------------

UNIFORM = {"weights": "uniform", "clip": 0.25, "levels": None}


def labels(ran):
    (message,) = sent(ran, "ensemble_labels")
    return message, readable(ran.tensors(message))


@pytest.mark.parametrize("how", ["uniform", "withheld"])
def test_the_aggregator_of_a_plain_average_answers_for_each_client(how, tmp_path):
    params = {**UNIFORM, "weights": "uniform" if how == "uniform" else "class-counts", "gamma": 1e12}
    ran = run(tmp_path / "a", "fedkd", params, withheld=("class_counts",) if how == "withheld" else ())
    message, tensors = labels(ran)
    assert tensors.keys() == {"values"}
    K, n = len(records()), len(tensors["values"])
    assert isinstance(message.event, Laplace)
    assert (message.event.unit, message.event.covers) == ("client", ("each-client",))
    assert message.event.sensitivity == pytest.approx(n * CLASSES * 2 * 0.25 / K)
    z = [readable(ran.tensors(m))["values"] for m in sent(ran, "logits")]
    assert any(float(z_k.abs().max()) > 0.25 for z_k in z), "there must be something to clip"
    wanted = torch.stack([z_k.clamp(-0.25, 0.25) for z_k in z]).mean(0)
    torch.testing.assert_close(tensors["values"], wanted, rtol=1e-5, atol=1e-6)


def test_who_is_silent_is_not_counted_among_the_shares(tmp_path):
    gone = Outage(party="client/1", first=1, last=1)
    message, tensors = labels(run(tmp_path / "a", "fedkd", UNIFORM, outages=[gone]))
    wanted = len(tensors["values"]) * CLASSES * 2 * 0.25 / (len(records()) - 1)
    assert message.event.sensitivity == pytest.approx(wanted)


def test_of_shares_that_follow_from_counts_nothing_is_said(tmp_path):
    """The whole ensemble is clipped instead: whatever the counts, no change of any message moves it further."""
    message, tensors = labels(run(tmp_path / "a", "fedkd", {**UNIFORM, "weights": "class-counts"}))
    assert message.event.covers == ("data", "messages")
    assert message.event.sensitivity == pytest.approx(len(tensors["values"]) * CLASSES * 2 * 0.25)


def test_gaussian_noise_of_the_spec_in_place_of_the_papers_answers_for_each_client_too(tmp_path):
    made = defence("gaussian-noise", 0.5, public_index=True, sigma=2.0)
    attached = {("ensemble_labels", "aggregator"): [made]}
    message, tensors = labels(run(tmp_path / "a", "fedkd", {**UNIFORM, "gamma": None}, defenses=attached))
    n, K = len(tensors["values"]), len(records())
    assert message.event.covers == ("each-client",)
    assert message.event.sensitivity == pytest.approx(2 * 0.25 * math.sqrt(n * CLASSES) / K)


def test_without_a_clip_or_with_noise_at_the_clients_the_message_is_as_it_was(tmp_path):
    for number, params in enumerate(
        ({"weights": "uniform"}, {**UNIFORM, "noise_at": "client"}, {**UNIFORM, "noise_at": "none"})
    ):
        message, tensors = labels(run(tmp_path / str(number), "fedkd", params))
        assert tensors.keys() == {"values"}
        assert not isinstance(message.event, Laplace)
        assert isinstance(message.event, NoGuarantee) or message.event is None

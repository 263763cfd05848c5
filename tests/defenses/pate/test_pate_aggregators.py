"""PATE's aggregators: what they draw, what they answer, what they claim; and on the wire."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fdaudit.errors import ProtocolError
from fdaudit.events import Composed, Gaussian, NoGuarantee, PureDP
from fdaudit.rng import SecretStream

from ...helpers.defence_cases import SECRET, defence, on_wire
from ...helpers.defence_cases import released as release
from .pate_exact import gaussian, laplace, law

PARAMS = {
    "lnmax": {"gamma": 0.5},
    "gnmax": {"sigma": 2.0},
    "confident-gnmax": {"threshold": 6.0, "sigma_threshold": 3.0, "sigma": 2.0},
}
SILENT = {  # so little noise that the plurality itself comes out
    "lnmax": {"gamma": 1e9},
    "gnmax": {"sigma": 1e-9},
    "confident-gnmax": {"threshold": 6.0, "sigma_threshold": 1e-9, "sigma": 1e-9},
}
FOR_CLIENTS = {"unit": "client", "relation": "replace-one", "covers": ("each-client",)}
by_name = pytest.mark.parametrize("name", list(PARAMS))


def released(made, tensors, path="m"):
    return release(made, tensors, "vote_counts", path)


def votes(rows, dtype=torch.int64):
    return {"index": torch.arange(100, 100 + len(rows)), "counts": torch.tensor(rows, dtype=dtype)}


# -- what comes out -----------------------------------------------------------------------------------------------


@by_name
def test_without_noise_to_speak_of_the_plurality_comes_out_under_its_own_index(name):
    tensors = votes([[9, 1, 0], [0, 2, 8], [1, 7, 2]])
    found = released(defence(name, **SILENT[name]), tensors)
    assert found.kind == "hard_labels"
    assert sorted(found.tensors) == ["index", "values"]
    assert found.tensors["index"].tolist() == [100, 101, 102]
    assert found.tensors["values"].tolist() == [0, 2, 1]
    assert found.tensors["values"].dtype == torch.uint8
    assert tensors["counts"].tolist() == [[9, 1, 0], [0, 2, 8], [1, 7, 2]], "what was given stays as it was"


@by_name
def test_classes_come_out_as_often_as_integration_says(name):
    """Each row the same histogram; of Confident-GNMax those that pass, whose class has noise of its own."""
    row, n = (5, 3, 2), 30_000
    values = released(defence(name, **PARAMS[name]), votes([row] * n)).tensors["values"]
    wanted = law(row, laplace(0.5) if name == "lnmax" else gaussian(2.0))
    counted = torch.bincount(values, minlength=3).numpy()
    assert chisquare(counted, [float(p) * counted.sum() for p in wanted]).pvalue > 1e-6


def test_as_many_pass_the_threshold_as_the_normal_law_says():
    n, p = 30_000, 0.5 * math.erfc((6.0 - 5) / (3.0 * math.sqrt(2)))
    found = released(defence("confident-gnmax", **PARAMS["confident-gnmax"]), votes([(5, 3, 2)] * n))
    answered = len(found.tensors["index"])
    assert abs(answered - n * p) < 5 * math.sqrt(n * p * (1 - p))


@by_name
def test_ties_are_broken_evenly(name):
    """Rows of zeros, where all abstain, among them: no class is preferred for its place."""
    params = PARAMS[name] | ({"threshold": -1e9} if name == "confident-gnmax" else {})
    for row in ((0, 0, 0, 0), (3, 3, 3, 3)):
        values = released(defence(name, **params), votes([row] * 20_000)).tensors["values"]
        assert chisquare(torch.bincount(values, minlength=4).numpy()).pvalue > 1e-6


@by_name
def test_noise_follows_from_the_secret_and_is_drawn_anew_for_each_message(name):
    params = PARAMS[name] | ({"threshold": -1e9} if name == "confident-gnmax" else {})
    made, tensors = defence(name, **params), votes([(4, 4, 3)] * 200)
    one, two = (released(made, tensors).tensors["values"] for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, released(made, tensors, "another").tensors["values"])


def test_more_samples_do_not_change_what_the_threshold_of_the_first_ones_saw():
    """Noise for the threshold and for classes are separate draws."""
    made = defence("confident-gnmax", threshold=5.0, sigma_threshold=3.0, sigma=2.0)
    stream = SecretStream(SECRET, "m")
    passed = np.flatnonzero(5 + 3.0 * stream.normal(300) >= 5.0)
    noisy = np.array([[5, 3, 2]] * 300) + 2.0 * stream.normal(300, 3)
    found = released(made, votes([(5, 3, 2)] * 300)).tensors
    assert found["index"].tolist() == (100 + passed).tolist()
    assert found["values"].tolist() == noisy.argmax(1)[passed].tolist()


def test_no_more_than_the_cap_are_answered_the_first_that_pass_not_the_surest():
    rows = [[7, 0], [1, 2], [8, 1], [0, 50], [90, 0]]
    for cap, wanted in ((1, [100]), (2, [100, 102]), (3, [100, 102, 103]), (9, [100, 102, 103, 104])):
        found = released(defence("confident-gnmax", **SILENT["confident-gnmax"], cap=cap), votes(rows))
        assert found.tensors["index"].tolist() == wanted


def test_where_nobody_agrees_an_empty_answer_goes_out():
    found = released(defence("confident-gnmax", **SILENT["confident-gnmax"]), votes([[2, 2], [1, 0]]))
    assert found.tensors["index"].shape == found.tensors["values"].shape == (0,)


# -- the claim ----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 40), sigma=st.floats(0.1, 50), cap=st.integers(1, 60))
def test_events_state_what_each_sample_costs_a_client(n, sigma, cap):
    tensors = votes([[3, 1]] * n)
    answer = {"sensitivity": math.sqrt(2), "scale": sigma, **FOR_CLIENTS}
    step = Gaussian(sensitivity=1.0, scale=2 * sigma, count=n, **FOR_CLIENTS)
    confident = {"threshold": 2.0, "sigma_threshold": 2 * sigma, "sigma": sigma, "public_index": True}
    for made, wanted in (
        (
            defence("lnmax", gamma=sigma, public_index=True),
            PureDP(epsilon=2 * sigma, count=n, **FOR_CLIENTS),
        ),
        (defence("gnmax", sigma=sigma, public_index=True), Gaussian(count=n, **answer)),
        (defence("confident-gnmax", **confident), Composed(parts=(step, Gaussian(count=n, **answer)))),
        (
            defence("confident-gnmax", **confident, cap=cap),
            Composed(parts=(step, Gaussian(count=min(n, cap), **answer))),
        ),
    ):
        assert released(made, tensors).event == wanted


@by_name
def test_the_event_depends_on_no_vote(name):
    made = defence(name, **SILENT[name], public_index=True)
    rows = ([[9, 0]] * 5, [[0, 0]] * 5, [[3, 3]] * 5)
    assert len({released(made, votes(r)).event for r in rows}) == 1


@settings(deadline=None, max_examples=60)
@given(
    ballots=st.lists(st.integers(-1, 3), min_size=1, max_size=12),
    client=st.integers(0, 11),
    other=st.integers(-1, 3),
)
def test_no_client_moves_counts_by_more_than_the_sensitivities(ballots, client, other):
    """A ballot of -1 is an abstention. √2 in ℓ2 for all counts, 2 in ℓ1, and 1 for the largest."""
    changed = list(ballots)
    changed[client % len(ballots)] = other
    one, two = (np.array([Counter(b)[c] for c in range(4)]) for b in (ballots, changed))
    assert np.linalg.norm(one - two) <= math.sqrt(2) + 1e-12
    assert np.abs(one - two).sum() <= 2
    assert abs(one.max() - two.max()) <= 1


@by_name
def test_nothing_is_claimed_for_samples_that_were_chosen_on_data_nor_for_none(name):
    event = released(defence(name, **PARAMS[name]), votes([[3, 1]])).event
    assert isinstance(event, NoGuarantee)
    assert "index" in event.reason
    empty = {"index": torch.arange(0), "counts": torch.zeros(0, 3)}
    found = released(defence(name, **PARAMS[name], public_index=True), empty)
    assert isinstance(found.event, NoGuarantee)
    assert found.tensors["values"].shape == (0,)


@by_name
def test_counts_of_all_samples_need_no_index_unless_some_are_not_answered(name):
    counts = torch.tensor([[9, 1, 0], [0, 2, 8], [1, 7, 2]])
    found = released(defence(name, **SILENT[name]), {"counts": counts})
    assert found.tensors["values"].tolist() == [0, 2, 1]
    if name == "confident-gnmax":
        assert found.tensors["index"].tolist() == [0, 1, 2]
        assert found.tensors["index"].dtype == torch.uint8
    else:
        assert found.tensors.keys() == {"values"}
    event = released(defence(name, **PARAMS[name], public_index=False), {"counts": counts}).event
    assert isinstance(event, NoGuarantee), "that all were asked about is for the spec to say"


# -- refusals -----------------------------------------------------------------------------------------------------


@by_name
@pytest.mark.parametrize("value", [0.5, -1.0, math.nan, math.inf])
def test_what_is_no_number_of_votes_is_refused(name, value):
    with pytest.raises(ProtocolError, match=f"^{name}: {value} "):
        released(defence(name, **PARAMS[name]), votes([[1.0, 2.0], [3.0, value]], torch.float64))


@by_name
def test_another_message_is_refused(name):
    made, noise = defence(name, **PARAMS[name]), SecretStream(SECRET, "m")
    tensors = votes([[1, 2]])
    for kind, sent in (
        ("soft_labels", tensors),
        ("vote_counts", {"index": tensors["index"]}),
        ("vote_counts", tensors | {"weights": tensors["counts"]}),
        ("vote_counts", tensors | {"index": torch.arange(3)}),
        ("vote_counts", tensors | {"counts": torch.tensor([1])}),
    ):
        with pytest.raises(ProtocolError, match=name):
            made.release(kind, sent, noise)


# -- on the wire --------------------------------------------------------------------------------------------------


@by_name
def test_on_the_wire_votes_become_labels_and_the_record_says_how(name, tmp_path):
    made = defence(name, **SILENT[name], public_index=True)
    way = ("aggregator", "server")
    (got,) = on_wire(tmp_path, [made], votes([[9, 1], [0, 8]]), "vote_counts", way)
    lines = (tmp_path / "messages.jsonl").read_text()
    assert '"kind":"hard_labels"' in lines
    assert "vote_counts" not in lines, "the counts themselves are on no record"
    assert f'"name":"{name}"' in lines
    assert {n: t.tolist() for n, t in got.items()} == {"index": [100, 101], "values": [0, 1]}

"""Rounding, top-k, hard labels and temperature: what is left of an answer, and that nothing is claimed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fdaudit.config import validate
from fdaudit.errors import ProtocolError
from fdaudit.planning.simulated import simulated_case
from fdaudit.rng import child
from fdaudit.spec.schema import Spec

from ..helpers.defence_cases import defence, released
from ..helpers.protocol_cases import run
from ..helpers.refusals import refused
from ..helpers.run_cases import known

NAMES = ("hard-label", "rounding", "temperature", "top-k")
NEEDED = {"temperature": {"temperature": 2.0}}


def answers(n=20, c=6, seed=0, scale=3.0):
    return torch.randn(n, c, generator=child(seed, "answers")) * scale


def made_of(name, values, kind="logits", /, **params):
    return released(defence(name, **params), {"values": values}, kind).tensors["values"]


# -- what all have in common --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_what_a_sender_says_of_its_average_holds_no_longer(name):
    """Each of them may carry a value further than one client moved it; noise after it must not rely on the share."""
    said = {"client_share": torch.tensor(0.1), "client_bound": torch.tensor(1.0)}
    made = released(defence(name, **NEEDED.get(name, {})), {"values": answers(), **said}, "logits")
    assert made.tensors.keys() == {"values"}


# -- rounding -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(decimals=st.integers(0, 6), seed=st.integers(0, 999))
def test_rounding_moves_a_value_by_half_a_unit_at_most_and_stays(decimals, seed):
    z = answers(seed=seed).double()
    got = made_of("rounding", z, decimals=decimals)
    assert float((got - z).abs().max()) <= 0.5 * 10.0**-decimals * (1 + 1e-9)
    np.testing.assert_allclose((got * 10**decimals).numpy(), np.round(z.numpy() * 10**decimals), atol=1e-6)
    assert torch.equal(made_of("rounding", got, decimals=decimals), got)


def test_rounding_is_of_every_kind_and_leaves_whole_numbers_alone():
    sent = {"w": torch.tensor([0.126, -1.5]), "n": torch.tensor(7)}
    got = released(defence("rounding", decimals=1), sent, "model_update").tensors
    assert got["w"].tolist() == pytest.approx([0.1, -1.5])
    assert torch.equal(got["n"], sent["n"])


# -- top-k --------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(k=st.integers(1, 8), seed=st.integers(0, 999))
def test_top_k_of_probabilities_keeps_the_largest_and_the_rows_sum(k, seed):
    p = answers(seed=seed).softmax(1) * torch.rand(20, 1, generator=child(seed, "weights"))
    got = made_of("top-k", p, "soft_labels", k=k)
    for before, after in zip(p.numpy(), got.numpy(), strict=True):
        largest = sorted(before)[-k:]
        wanted = np.where(before >= largest[0], before, 0) * (before.sum() / sum(largest))
        np.testing.assert_allclose(after, wanted, rtol=1e-5, atol=1e-8)


@settings(deadline=None, max_examples=40)
@given(k=st.integers(1, 8), seed=st.integers(0, 999), scale=st.floats(0.1, 50))
@example(k=1, seed=887, scale=37.0)  # the largest logit of a row lies below `rest`
def test_top_k_of_logits_leaves_those_kept_and_makes_the_others_one_constant(k, seed, scale):
    z = answers(seed=seed, scale=scale)
    got = made_of("top-k", z, k=k, rest=-20.0)
    for before, after in zip(z.numpy(), got.numpy(), strict=True):
        order = before.argsort()[::-1]
        assert (after[order[:k]] == before[order[:k]]).all()
        rest = min(np.float32(-20), np.nextafter(before[order[:k]].min(), np.float32(-np.inf)))
        assert (after[order[k:]] == np.float32(rest)).all()
    assert torch.equal(got.argmax(1), z.argmax(1))


def test_of_equal_values_the_lower_class_is_kept():
    assert made_of("top-k", torch.ones(1, 4), k=2, rest=-9.0).tolist() == [[1.0, 1.0, -9.0, -9.0]]
    assert made_of("top-k", torch.zeros(2, 3), "soft_labels").tolist() == [[0.0] * 3] * 2


# -- hard label ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["logits", "soft_labels"])
def test_a_hard_label_is_the_largest_class_and_nothing_else(kind):
    z = answers()
    sent = {"index": torch.arange(20), "values": z, "z_max": torch.tensor(9.0)}
    made = released(defence("hard-label"), sent, kind)
    assert made.kind == "hard_labels"
    assert made.tensors.keys() == {"index", "values"}
    assert made.tensors["values"].tolist() == [int(np.argmax(row)) for row in z.numpy()]


def test_a_protocol_that_reads_hard_labels_gets_them_from_soft_ones(tmp_path):
    attached = {("logits", "client"): [defence("hard-label")]}
    ran = run(tmp_path / "a", "fedmd", rounds=1, defenses=attached)
    kinds = {m.kind for m in ran.messages if m.sender.startswith("client/")}
    assert "hard_labels" in kinds
    assert "logits" not in kinds


# -- temperature --------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(T=st.floats(0.2, 20), seed=st.integers(0, 999))
def test_both_scales_give_one_answer(T, seed):
    """softmax(z / T) is softmax(z)^(1/T), scaled to sum to 1."""
    z = answers(seed=seed).double()
    from_logits = made_of("temperature", z, temperature=T).softmax(1)
    from_probabilities = made_of("temperature", z.softmax(1), "soft_labels", temperature=T)
    torch.testing.assert_close(from_probabilities, from_logits, rtol=1e-6, atol=1e-9)


def test_a_weighted_row_keeps_its_weight_and_a_row_of_noughts_stays():
    p = torch.tensor([[0.1, 0.3], [0.0, 0.0], [0.25, 0.0]])
    got = made_of("temperature", p, "soft_labels", temperature=2.0)
    torch.testing.assert_close(got.sum(1), p.sum(1))
    assert got[0].tolist() == pytest.approx([0.4 / (1 + 3**0.5), 0.4 * 3**0.5 / (1 + 3**0.5)])
    assert got[1].tolist() == [0.0, 0.0]


def test_a_temperature_of_one_changes_nothing_and_a_high_one_makes_all_alike():
    p = answers().softmax(1)
    torch.testing.assert_close(made_of("temperature", p, "soft_labels", temperature=1.0), p)
    flat = made_of("temperature", p, "soft_labels", temperature=1e6)
    torch.testing.assert_close(flat, torch.full_like(p, 1 / 6), rtol=1e-4, atol=1e-4)


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["temperature", "top-k"])
def test_ensemble_labels_must_be_said_to_hold_logits_or_probabilities(name):
    p = answers().softmax(1)
    params = NEEDED.get(name, {})
    with pytest.raises(ProtocolError, match="Set values"):
        made_of(name, p, "ensemble_labels", **params)
    for scale, kind in (("logits", "logits"), ("probabilities", "soft_labels")):
        stated = made_of(name, p, "ensemble_labels", values=scale, **params)
        assert torch.equal(stated, made_of(name, p, kind, **params))


@pytest.mark.parametrize("name", ["hard-label", "temperature", "top-k"])
def test_what_is_no_answer_is_refused(name):
    made = defence(name, **NEEDED.get(name, {}))
    for kind, values in (("model_update", answers()), ("logits", torch.arange(5)), ("logits", torch.ones(3))):
        with pytest.raises(ProtocolError, match=name):
            released(made, {"values": values}, kind)


def test_a_spec_that_attaches_it_to_another_kind_is_refused_before_the_run():
    entry = {"kind": "model_update", "name": "top-k"}
    written = {"protocol": {"name": "fedavg", "params": {"upload": "model_update"}}, "defenses": [entry]}
    written = validate(Spec, written)
    refused(lambda: simulated_case(written, known(0)), "defenses.0.kind", "model_update", ["treats:"])


def test_hard_labels_for_a_protocol_that_cannot_read_them_are_refused_before_the_run():
    entry = {"kind": "logits", "name": "hard-label"}
    written = {"protocol": {"name": "fedkd"}, "defenses": [entry], "splits": {"proxy": 0.2}}
    written = validate(Spec, written)
    refused(lambda: simulated_case(written, known(0)), "defenses.0.name", "hard-label", said="which fedkd")
    read = {"protocol": {"name": "fedmd"}, "defenses": [entry], "splits": {"proxy": 0.2}}
    assert (
        simulated_case(validate(Spec, read), known(0)).defenses[("logits", "client")][0].card.name
        == "hard-label"
    )

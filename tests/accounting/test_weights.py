"""Weights of an average: record counts are on record and charged, constants read no count."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import fdaudit
from fdaudit.errors import SpecError
from fdaudit.testing.federation import SIZES, records
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.messages import SUM, role

from ..helpers.protocol_cases import run

WEIGHTS = [3.0, 2.0, 1.0]
DP_SGD = {
    "at": "training",
    "name": "dp-sgd",
    "params": {"clip": 1.0, "noise_multiplier": 4.0, "sample_rate": 0.2},
}
DP_FEDAVG = {
    "kind": "model_update",
    "name": "dp-fedavg",
    "params": {"clip": 1.0, "sigma": 20.0, "shares": 3},
}


def weighted(folder: Path, defence: dict[str, Any], **params: Any) -> fdaudit.Run:
    spec = small_spec(
        clients=3, defenses=[defence], adversaries=["server", "client/0", "eavesdropper", "world"]
    )
    spec["protocol"]["params"] |= {"weighting": "public", **params}
    return fdaudit.run(spec, folder)


@pytest.mark.thorough
@pytest.mark.parametrize("aggregation", ["plain", "secure"])
@pytest.mark.parametrize("defence", [DP_SGD, DP_FEDAVG], ids=["dp-sgd", "dp-fedavg"])
def test_public_counts_are_charged_as_sent_ones_are(
    defence: dict[str, Any], aggregation: str, tmp_path: Path
) -> None:
    made = weighted(tmp_path / "run", defence, aggregation=aggregation)
    for view in ("server", "client/0", "eavesdropper", "world"):
        found = made.ledger(view, relation="add-or-remove")
        assert (found.epsilon, found.kind) == (math.inf, "sample_count")
        assert made.ledger(view, relation="replace-one", unit="client").epsilon == math.inf
    if defence is DP_FEDAVG:
        assert made.ledger("server", relation="replace-one").finite


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_constant_weights_cost_nothing_and_are_an_assumption(aggregation: str, tmp_path: Path) -> None:
    made = weighted(tmp_path / "run", DP_SGD, aggregation=aggregation, weights=WEIGHTS)
    found = made.ledger("server")
    assert found.relation == "add-or-remove"
    assert found.finite
    assert any("p_k" in line for line in found.assumptions)
    assert not [m for m in made.view("server").messages if m.kind == "sample_count"]


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_least_squares_on_the_servers_view_finds_constants_and_no_counts(aggregation: str, tmp_path) -> None:
    params = {
        "aggregation": aggregation,
        "weighting": "public",
        "weights": WEIGHTS,
        "local_steps": 2,
        "batch_size": 4,
    }
    one = run(tmp_path / "a", "fedavg", params, rounds=2)
    fewer = {k: type(d)(d.x[:4], d.y[:4]) for k, d in records().items()}
    other = run(tmp_path / "b", "fedavg", params, rounds=2, clients=fewer)
    for ran in (one, other):
        sent = [ran.tensors(m) for m in ran.messages if m.kind == "model_parameters"]
        ups = [
            m
            for m in ran.messages
            if m.kind == "model_update" and m.round == 0 and role(m.sender) == "client"
        ]
        flat = torch.stack(
            [torch.cat([t.flatten().double() for _, t in sorted(ran.tensors(m).items())]) for m in ups]
        )
        moved = torch.cat([(sent[1][n] - sent[0][n]).flatten().double() for n in sorted(sent[0])])
        p = torch.linalg.lstsq(flat.T, moved).solution
        wanted = torch.ones(3) if aggregation == "secure" else torch.tensor(WEIGHTS) / sum(WEIGHTS)
        torch.testing.assert_close(p, wanted.double(), rtol=1e-4, atol=1e-4)
        if aggregation == "secure":
            told = [m.fields["weight"] for m in ups]
            assert told == pytest.approx([w / sum(WEIGHTS) for w in WEIGHTS])


def test_messages_that_depend_on_counts_name_them_among_their_inputs(tmp_path) -> None:
    secure = {"aggregation": "secure", "weighting": "public"}
    ran = run(tmp_path / "a", "fedavg", secure)
    counts = {m.seq for m in ran.messages if m.kind == "sample_count"}
    assert [int(ran.tensors(m)["n"]) for m in ran.messages if m.seq in counts] == list(SIZES)
    everybody = {"server", "aggregator", "client/0", "client/1", "client/2", "world"}
    assert all(set(ran.messages[seq].parties()) == everybody for seq in counts)
    for message in ran.messages:
        if message.kind == "model_update":
            assert counts <= set(message.inputs), message.seq
    plain = run(tmp_path / "b", "fedavg", {"weighting": "public"})
    counts = {m.seq for m in plain.messages if m.kind == "sample_count"}
    later = [m for m in plain.messages if m.kind == "model_parameters" and m.round > 0]
    assert later
    assert all(counts <= set(m.inputs) for m in later)


def test_a_sum_with_constant_weights_is_the_sum_of_its_inputs(tmp_path) -> None:
    ran = run(tmp_path / "a", "fedavg", {"aggregation": "secure", "weighting": "public", "weights": WEIGHTS})
    sums = [m for m in ran.messages if m.fields.get(SUM)]
    assert sums
    assert all({ran.messages[i].kind for i in m.inputs} == {"model_update"} for m in sums)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"weighting": "public", "weights": [1.0]}, "1 numbers for 2 clients"),
        ({"weighting": "public", "weights": [1.0, 0.0]}, "greater than 0"),
        ({"weighting": "samples", "weights": [1.0, 2.0]}, "Set weighting to 'public'"),
    ],
)
def test_weights_that_do_not_fit_are_refused(params: dict[str, Any], says: str, tmp_path: Path) -> None:
    spec = small_spec()
    spec["protocol"]["params"] |= params
    with pytest.raises(SpecError, match=says):
        fdaudit.run(spec, tmp_path / "run")


@pytest.mark.thorough
@pytest.mark.parametrize("rate", [None, 0.3])
def test_a_presets_own_sampling_rate_rests_on_the_number_of_records(
    rate: float | None, tmp_path: Path
) -> None:
    preset = {"name": "private", "epsilon": 8.0} | ({} if rate is None else {"sample_rate": rate})
    made = fdaudit.run(small_spec(preset=preset), tmp_path / "run")
    assumed = any("number of all clients' records" in line for line in made.ledger("server").assumptions)
    assert assumed == (rate is None)

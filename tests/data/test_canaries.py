"""Canaries: inserted by fair coins into their clients' training data alone, and asked for with clear errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from scipy.stats import binomtest, chisquare

from fdaudit.config import validate
from fdaudit.data import insert_canaries, load_dataset, make_splits
from fdaudit.planning.simulated import simulated_case
from fdaudit.scoring.ground_truth import Truth
from fdaudit.spec.privacy import CanarySpec
from fdaudit.spec.schema import DatasetSpec, PartitionSpec, SplitSpec, load_spec
from fdaudit.storage.vault import Vault
from fdaudit.testing.specs import small_spec

from ..helpers.refusals import refused
from ..helpers.run_cases import known, stream

DIGITS = load_dataset(DatasetSpec(), stream(0, "dataset"))
SEVERAL = load_dataset(DatasetSpec(name="digits-multilabel"), stream(0, "dataset"))
SHARES = SplitSpec(candidates=20)


def made(dataset=DIGITS, seed=0, **fields: Any):
    """The splits before and after canaries, with the larger dataset."""
    before = make_splits(dataset, 3, PartitionSpec(), SHARES, stream(seed, "splits"))
    asked = validate(CanarySpec, {"count": 30, "clients": [0, 2], **fields}, "canaries")
    larger, after = insert_canaries(dataset, before, asked, lambda k: stream(seed, "canaries", k))
    return before, larger, after


KINDS = [
    (d, k, design)
    for d in (DIGITS, SEVERAL)
    for k in ("mislabelled", "noise")
    for design in ("coin-flips", "matched-pairs")
]


@pytest.mark.parametrize(("dataset", "kind", "design"), KINDS, ids=lambda v: getattr(v, "name", v))
def test_canaries_enter_the_private_data_of_their_clients_and_nothing_else(dataset, kind, design):
    before, larger, after = made(dataset, kind=kind, design=design)
    n, each = len(dataset.y), 30 * (2 if design == "matched-pairs" else 1)
    assert torch.equal(larger.x[:n], dataset.x)
    assert torch.equal(larger.y[:n], dataset.y)
    assert len(larger.y) == n + 2 * each
    assert torch.equal(after.clients[1].train, before.clients[1].train)
    for name in ("proxy", "auxiliary", "test"):
        assert torch.equal(getattr(after, name), getattr(before, name))
    for k in (0, 2):
        old, new = before.clients[k], after.clients[k]
        assert torch.equal(new.members, old.members)
        assert torch.equal(new.non_members, old.non_members)
        assert len(new.canaries) == each
        assert bool((new.canaries >= n).all())
        ordinary = new.train[new.train < n]
        assert bool(torch.isin(ordinary, old.train).all())
        assert len(ordinary) == len(old.train) - (each if kind == "mislabelled" else 0)
        assert bool(torch.isin(new.train[new.train >= n], new.canaries).all())
        assert torch.equal(new.train, new.train.sort().values)
    assert not set(after.clients[0].canaries.tolist()) & set(after.clients[2].canaries.tolist())
    assert after.class_table.shape == before.class_table.shape
    if dataset is DIGITS:
        assert after.class_table.sum(1).tolist() == [len(c.train) for c in after.clients]


def test_mislabelled_canaries_are_own_records_under_other_labels():
    before, larger, after = made(kind="mislabelled")
    for k in (0, 2):
        for canary in after.clients[k].canaries.tolist():
            same = (DIGITS.x == larger.x[canary]).flatten(1).all(1).nonzero().flatten()
            mine = same[torch.isin(same, before.clients[k].train)]
            assert len(mine)
            assert not bool(torch.isin(mine, after.clients[k].train).all())
            assert int(larger.y[canary]) not in DIGITS.y[mine].tolist()
    several_before, several, changed = made(SEVERAL, kind="mislabelled")
    assert len(several_before.clients[0].canaries) == 0
    rows = several.y[changed.clients[0].canaries]
    assert bool(((rows == 0) | (rows == 1)).all())


@pytest.mark.thorough
def test_the_coins_are_fair_and_each_its_own():
    heads = []
    for seed in range(200):
        _, _, after = made(seed=seed, kind="noise", count=10)
        heads += [int(torch.isin(after.clients[k].canaries, after.clients[k].train).sum()) for k in (0, 2)]
    assert binomtest(sum(heads), 10 * len(heads)).pvalue > 0.001
    law = np.array([1, 10, 45, 120, 210, 252, 210, 120, 45, 10, 1]) / 1024 * len(heads)
    pooled = [np.array([v[:3].sum(), *v[3:8], v[8:].sum()]) for v in (np.bincount(heads, minlength=11), law)]
    assert chisquare(*pooled).pvalue > 0.001


@pytest.mark.thorough
def test_of_pairs_exactly_one_is_trained_on_by_a_fair_coin():
    first = []
    for seed in range(100):
        _, _, after = made(seed=seed, kind="noise", count=10, design="matched-pairs")
        one, other = after.clients[0].canaries.view(2, 10)
        inside, outside = torch.isin(one, after.clients[0].train), torch.isin(other, after.clients[0].train)
        assert torch.equal(inside, ~outside)
        first += inside.tolist()
    assert binomtest(sum(first), len(first)).pvalue > 0.001


@pytest.mark.thorough
def test_under_unit_client_one_fair_coin_decides_which_half_a_client_holds():
    sets = []
    for seed in range(1000, 1150):
        _, _, after = made(seed=seed, kind="noise", count=10, design="matched-pairs", unit="client")
        for k in (0, 2):
            one, other = after.clients[k].canaries.view(2, 10)
            inside, outside = (torch.isin(half, after.clients[k].train) for half in (one, other))
            assert len(set(inside.tolist())) == 1
            assert torch.equal(inside, ~outside)
            sets.append(bool(inside[0]))
    assert binomtest(sum(sets), len(sets)).pvalue > 0.001
    both = sum(a == b for a, b in zip(sets[::2], sets[1::2], strict=True))
    assert binomtest(both, len(sets) // 2).pvalue > 0.001  # clients have coins of their own


def test_splits_are_kept_whole_and_a_spec_without_canaries_gives_the_same_records(case):
    before, _, after = made()
    assert not any("canaries" in name for name in before.to_dict())
    named = after.to_dict()
    assert {n for n in named if "canaries" in n} == {"client/0/canaries", "client/2/canaries"}
    back = load(save(named))
    assert back.keys() == named.keys()
    assert all(torch.equal(back[n], t) for n, t in named.items())
    bare = simulated_case(load_spec(small_spec()), known(7))
    assert torch.equal(bare.records("client/1")[0], case.records("client/1")[0])
    x, y = case.records("client/0")
    ordinary = len(bare.records("client/0")[1])
    assert torch.equal(x[:ordinary], bare.records("client/0")[0])
    assert 0 < len(y) - ordinary < 12


@pytest.fixture(scope="module")
def case():
    return simulated_case(load_spec(small_spec(canaries={"count": 12, "kind": "noise"})), known(7))


def test_the_challenge_shows_canaries_in_an_order_that_tells_nothing(case, tmp_path):
    truth = Truth(case, Vault(tmp_path))
    challenge, member = truth.canaries("client/0")
    assert challenge.design == "coin-flips"
    assert sorted(challenge.pair.tolist()) == list(range(12))
    assert challenge.pair.tolist() != list(range(12))
    x, _ = case.records("client/0")
    found = [bool((x == one).flatten(1).all(1).any()) for one in challenge.x]
    assert found == member.tolist()
    assert truth.with_canaries == ("client/0",)
    assert len(truth.canaries("client/1")[1]) == 0
    ordinary, _ = truth.challenge("client/0")
    assert ordinary.design == "matched-pairs"
    assert len(ordinary.y) == 8


@pytest.mark.parametrize(
    ("canaries", "field", "words"),
    [
        ({"count": 0}, "canaries.count", "at least 1"),
        ({"count": 2.5}, "canaries.count", "whole number"),
        ({"clients": []}, "canaries.clients", "Change it"),
        ({"clients": [0, 0]}, "canaries.clients", "twice"),
        ({"clients": [0, 2]}, "canaries.clients.1", "Clients count from 0 to 1"),
        ({"clients": [-1]}, "canaries.clients.0", "at least 0"),
        ({"kind": "loud"}, "canaries.kind", "mislabelled, noise"),
        ({"design": "runs"}, "canaries.design", "coin-flips, matched-pairs"),
        ({"count": 20, "guesses": 21}, "canaries.guesses", "guess fewer"),
        ({"guesses": 0}, "canaries.guesses", "at least 1"),
        ({"unit": "client"}, "canaries.design", "matched-pairs"),
        (
            {"unit": "client", "design": "matched-pairs", "clients": [0, 1], "guesses": 3},
            "canaries.guesses",
            "the 2 coins",
        ),
        ({"coins": 3}, "canaries.coins", "count"),
        ({"count": 60}, "canaries.count", "kind: noise"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(canaries, field, words):
    refused(lambda: simulated_case(load_spec(small_spec(canaries=canaries)), known(7)), field, said=words)

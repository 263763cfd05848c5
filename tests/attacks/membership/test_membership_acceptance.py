"""The loss-threshold attack finds members where there must be a signal, and finds none where there is none."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict

from fdaudit.audit.pipeline import perform
from fdaudit.data import load_dataset, make_splits
from fdaudit.evaluation.controls import controls
from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import DatasetSpec, PartitionSpec, SplitSpec, load_spec

from ...helpers.doubles import SEED, spec
from ...helpers.results import figures_of
from ...helpers.run_cases import known, stream

pytestmark = pytest.mark.thorough

ATTACK = [{"name": "loss-threshold"}]


# -- through the controls -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tried():
    case = simulated_case(
        load_spec(spec(attacks=ATTACK, model={"name": "mlp", "params": {"widths": [64]}})), known(SEED)
    )
    (attack,) = (a for a in case.attacks if a.name == "loss-threshold")
    return controls(attack, case)


def test_on_an_overfit_model_the_auc_is_at_least_three_quarters(tried):
    (auc,) = tried["positive"].figures
    assert tried["positive"].passed
    assert auc.value >= 0.75
    assert auc.low > 0.5


def test_on_an_untrained_model_the_interval_covers_one_half(tried):
    (auc,) = tried["negative"].figures
    assert tried["negative"].passed
    assert auc.low <= 0.5 <= auc.high
    assert auc.high - auc.low < 0.5


# -- through a run ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def random_labels(tmp_path_factory):
    """Noise under labels that have nothing to do with it: what a model knows of it, it knows by heart."""
    path = tmp_path_factory.mktemp("data") / "noise.npz"
    rng = np.random.default_rng(3)
    x, y = rng.integers(0, 256, (260, 8, 8), dtype=np.uint8), rng.integers(0, 4, (260, 1))
    tx, ty = rng.integers(0, 256, (40, 8, 8), dtype=np.uint8), rng.integers(0, 4, (40, 1))
    np.savez(path, train_images=x, train_labels=y, test_images=tx, test_labels=ty)
    return path


def attacked(run, data, lr, seed=SEED):
    wanted = spec(
        seed=seed,
        clients=2,
        dataset={"name": f"npz:{data}"},
        splits={"candidates": 40, "proxy": 0.0, "auxiliary": 0.2},
        model={"name": "mlp", "params": {"widths": [128]}},
        protocol={
            "name": "fedavg",
            "params": {"rounds": 15, "local_epochs": 10, "batch_size": 16, "lr": lr, "momentum": 0.9},
        },
        adversaries=["world", "server"],
        attacks=ATTACK,
    )
    perform(wanted, run)
    found = {}
    for adversary in ("world", "server"):
        cell = json.loads((run / "attacks" / f"{adversary}-loss-threshold.json").read_text())
        assert cell["status"] == "run", cell["reason"]
        found[adversary] = cell
    return found


def figure(cell, name):
    return figures_of(cell)[name]


@pytest.fixture(scope="module")
def overfit(random_labels, tmp_path_factory):
    return attacked(tmp_path_factory.mktemp("overfit") / "run", random_labels, lr=0.02)


@pytest.mark.thorough
def test_a_run_overfit_by_construction_leaks_membership_to_the_world(overfit):
    cell = overfit["world"]
    assert (
        cell["queries"]["spent"]
        == sum(f["n"] for t in cell["targets"] for f in t["figures"] if f["name"] == "auc") * 2
    )
    assert figure(cell, "auc")["value"] >= 0.75
    assert figure(cell, "auc")["low"] > 0.5
    for target in cell["targets"]:
        auc = figures_of(target)["auc"]
        assert auc["value"] >= 0.75


def test_the_server_which_holds_clients_models_finds_no_less_than_the_world_by_asking(overfit):
    """The server asks each victim's own upload, the world the released model."""
    assert overfit["server"]["queries"] is None
    assert figure(overfit["server"], "auc")["value"] >= figure(overfit["world"], "auc")["value"] - 0.01


@pytest.mark.thorough
def test_a_run_that_learnt_nothing_leaks_nothing_measurable(random_labels, tmp_path):
    cell = attacked(tmp_path / "run", random_labels, lr=1e-9, seed=1)["world"]
    auc = figure(cell, "auc")
    assert auc["low"] <= 0.5 <= auc["high"]
    assert auc["high"] - auc["low"] < 0.4


# -- halves that look alike ---------------------------------------------------------------------------------------


def told_apart(x, member, pair):
    """(right, n): how often a classifier on raw pixels tells members of held-out pairs from non-members."""
    guess = cross_val_predict(
        LogisticRegression(C=0.1, max_iter=300),
        x,
        member,
        groups=pair,
        cv=GroupKFold(5),
        method="decision_function",
    )
    # The better one of each pair is called the member, so a shift common to both halves does not count.
    rows = {p: np.flatnonzero(pair == p) for p in np.unique(pair)}
    right = sum(bool(member[r[np.argmax(guess[r])]]) for r in rows.values())
    return right, len(rows)


@pytest.fixture(scope="module")
def candidates():
    """The candidates of six clients, as many pairs as there are, with who is a member."""
    dataset = load_dataset(DatasetSpec(), stream(SEED, "dataset"))
    design = SplitSpec(candidates=1000, test=0.1, proxy=0.0, auxiliary=0.1)
    splits = make_splits(dataset, 6, PartitionSpec(), design, stream(SEED, "splits"))
    inside = torch.cat([c.members for c in splits.clients])
    outside = torch.cat([c.non_members for c in splits.clients])
    x = torch.cat([dataset.x[inside], dataset.x[outside]]).flatten(1).numpy()
    pairs = len(inside)
    return x, np.arange(2 * pairs) < pairs, np.tile(np.arange(pairs), 2)


@pytest.mark.thorough
def test_a_classifier_on_raw_inputs_cannot_tell_the_halves_apart(candidates):
    right, n = told_apart(*candidates)
    assert n > 500
    assert binomtest(right, n).pvalue > 0.01


@pytest.mark.thorough
def test_the_same_classifier_finds_halves_that_differ(candidates):
    """Members chosen by their brightness instead of by a coin: what a careless design would do."""
    x, _, pair = candidates
    pairs = len(x) // 2
    brighter = x[:pairs].sum(1) > x[pairs:].sum(1)
    unfair = np.concatenate([brighter, ~brighter])
    right, n = told_apart(x, unfair, pair)
    assert binomtest(right, n).pvalue < 1e-6

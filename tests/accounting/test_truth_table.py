"""What can be claimed of whom: one run a row, its ledger against what follows from the messages by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import fdaudit
from fdaudit.accounting.costs import epsilon
from fdaudit.events import Gaussian, SampledGaussian

from ..helpers.ledger_cases import RECORD
from ..planning.test_presets import spec

DELTA = 1e-5
DP_SGD = {"clip": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.2}
TRAINING = {"at": "training", "name": "dp-sgd", "params": DP_SGD}


def run_of(folder: Path, protocol: str, params: dict[str, Any], **changes: Any) -> fdaudit.Run:
    asked = spec(protocol, **changes)
    asked["protocol"]["params"] |= params
    return fdaudit.run(asked, folder / "run")


def dp_sgd(steps: int) -> float:
    event = SampledGaussian(sensitivity=1.0, scale=2.0, sample_rate=0.2, count=steps, **RECORD)
    return epsilon({event: 1}, DELTA).value


def unclaimed(run: fdaudit.Run, view: str, kind: str, **asked: Any) -> None:
    found = run.ledger(view, **asked)
    assert (found.epsilon, found.kind) == (math.inf, kind)
    assert kind in found.cause


# -- FedKD --------------------------------------------------------------------------------------------------------


def test_fedkd_as_published_has_no_epsilon_for_server_or_aggregator(tmp_path: Path) -> None:
    run = run_of(tmp_path, "fedkd", {})
    for view in ("server", "aggregator", "world", "eavesdropper"):
        unclaimed(run, view, "class_counts")


def test_fedkd_with_a_public_bound_plain_weights_and_noise_at_the_client_is_finite_and_empty(
    tmp_path: Path,
) -> None:
    """Every client's message: n samples of C = 10 logits within ±B, Laplace noise of scale 1/γ: ε = 2 B C n γ."""
    bound, gamma = 3.0, 0.5
    run = run_of(
        tmp_path,
        "fedkd",
        {
            "z_max": bound,
            "clip": bound,
            "weights": "uniform",
            "noise_at": "client",
            "gamma": gamma,
            "levels": None,
        },
    )
    n = len(run.case.public)
    by_hand = 2 * bound * 10 * n * gamma
    for view in ("server", "aggregator", "world", "client/1+world"):
        assert run.ledger(view).epsilon == pytest.approx(by_hand)
    assert run.ledger("client/1").epsilon == 0.0, "until the model is published a client hears of nobody"
    assert run.ledger("server").accountant.startswith("pure")
    assert run.ledger("server", unit="client").epsilon == pytest.approx(by_hand)


def test_fedkd_with_noise_at_the_aggregator_is_finite_for_the_server_alone(tmp_path: Path) -> None:
    """Uniform weights: one client of K moves each of the ensemble's n C values by 2B/K at most."""
    bound, gamma = 3.0, 0.5
    run = run_of(
        tmp_path,
        "fedkd",
        {"z_max": bound, "clip": bound, "weights": "uniform", "gamma": gamma, "levels": None},
    )
    by_hand = 2 * bound / 3 * 10 * len(run.case.public) * gamma
    assert run.ledger("server").epsilon == pytest.approx(by_hand, rel=1e-5)
    unclaimed(run, "aggregator", "logits")


@pytest.mark.thorough
def test_fedkd_with_dp_sgd_is_undone_by_the_counts_and_without_them_costs_the_training(
    tmp_path: Path,
) -> None:
    counted = run_of(tmp_path / "counted", "fedkd", {}, defenses=[TRAINING])
    for view in ("server", "aggregator"):
        unclaimed(counted, view, "class_counts")
    run = run_of(tmp_path / "plain", "fedkd", {"weights": "uniform"}, defenses=[TRAINING])
    # Two epochs at a rate of 0.2 are ten steps; what is computed from the model is free.
    for view in ("server", "aggregator", "world", "client/0"):
        assert run.ledger(view).epsilon == pytest.approx(dp_sgd(10))
    withheld = run_of(tmp_path / "withheld", "fedkd", {}, defenses=[TRAINING], withhold=["class_counts"])
    assert withheld.ledger("aggregator").epsilon == pytest.approx(dp_sgd(10))


# -- FedAvg -------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("weighting", ["samples", "public", "constants", "uniform"])
def test_fedavg_with_dp_sgd_counts_every_round_unless_a_count_gives_it_away(
    weighting: str, tmp_path: Path
) -> None:
    named = {"weighting": "public", "weights": [3.0, 2.0, 1.0]}
    params = named if weighting == "constants" else {"weighting": weighting}
    params |= {"local_epochs": None, "local_steps": 3}
    run = run_of(tmp_path, "fedavg", params, defenses=[TRAINING])
    if weighting in ("samples", "public"):
        for view in ("server", "world"):
            unclaimed(run, view, "sample_count", relation="add-or-remove")
        return
    agreed = any("agreed on" in a for a in run.ledger("server").assumptions)
    assert agreed == (weighting == "constants")
    for view in ("server", "world", "eavesdropper", "client/2"):
        found = run.ledger(view)
        assert found.relation == "add-or-remove"
        assert found.epsilon == pytest.approx(dp_sgd(6))
    assert "rate 0.2" in run.ledger("server").sampling


# -- DaFKD, Selective-FD ------------------------------------------------------------------------------------------


def test_dafkd_as_published_has_no_epsilon(tmp_path: Path) -> None:
    run = run_of(tmp_path, "dafkd", {})
    for view in ("server", "world", "client/0"):
        unclaimed(run, view, "model_parameters")


@pytest.mark.thorough
def test_selective_fd_is_undone_by_what_its_clients_decline(tmp_path: Path) -> None:
    for selector in ("density-ratio", "confidence"):
        run = run_of(tmp_path / selector, "selective-fd", {"selector": selector}, defenses=[TRAINING])
        unclaimed(run, "server", "hard_labels")
        assert "declined" in run.ledger("server").cause
    everything = run_of(tmp_path / "all", "selective-fd", {"selector": "none"}, defenses=[TRAINING])
    assert everything.ledger("server").finite


# -- others -------------------------------------------------------------------------------------------------------


def test_noise_on_every_table_is_all_that_classwise_means_cost(tmp_path: Path) -> None:
    params = {"clip": 3.0, "sigma": 60.0}
    noise = {"kind": "class_prototypes", "sender": "client", "name": "gaussian-noise", "params": params}
    run = run_of(tmp_path, "fkd", {}, defenses=[noise])
    event = Gaussian(
        sensitivity=6.0, scale=60.0, count=2, unit="record", relation="replace-one", covers=("data",)
    )
    assert run.ledger("server").epsilon == pytest.approx(epsilon({event: 1}, DELTA).value)

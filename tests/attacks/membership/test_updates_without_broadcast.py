"""Coins read off updates without a broadcast, as secure aggregation receives them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.attacks._uploads import updates_without_broadcast
from fdaudit.attacks.membership._study import initial_weights
from fdaudit.attacks.membership.coin_regression import CoinRegression, CoinRegressionConfig

from fdaudit.adversary.view import View, view_of

from .rehearsed_cases import SEED, common, rehearsed, stream
from .test_coin_regression import Case

SECURE = {"aggregation": "secure", "weighting": "uniform", "upload": "model_update"}


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("case"), True)


def federated(place: Path, name: str, case: Case, adversary: str, **params: Any) -> View:
    others = torch.rand(20, 1, 6, 6, generator=stream(3)), torch.arange(20) % 4
    case.knowledge = replace(case.knowledge, initial=common(torch.zeros(0)).networks.initial_seed(SEED))
    params = {"rounds": 3, "local_epochs": 10, "batch_size": 8, "lr": 0.3, **params}
    return rehearsed(place / name, name, [case.records, others], adversary=adversary, **params)


def told(case: Case, view: View, shadows: int = 100) -> float:
    return case.auc_of(case.guess(CoinRegression(CoinRegressionConfig(shadows=shadows)), view))


def test_the_models_behind_updates_follow_from_the_sums(tmp_path: Path, case: Case) -> None:
    view = federated(tmp_path, "fedavg", case, "aggregator", **SECURE)
    assert not view.select(kind="model_parameters")
    initial = initial_weights(case.knowledge)
    assert initial is not None
    found = updates_without_broadcast(view, "client/0", initial)
    whole = view_of(tmp_path / "fedavg", "server", parties=view.parties, hyperparameters=view.hyperparameters)
    sent = {m.round: m for m in reversed(whole.select(kind="model_parameters"))}
    assert [m.round for m, _ in found] == [0, 1, 2]
    for message, start in found:
        for name, value in whole.tensors(sent[message.round]).items():
            assert torch.allclose(start[name], value, atol=1e-5)


def test_momentum_of_the_server_leaves_the_first_update(tmp_path: Path, case: Case) -> None:
    view = federated(tmp_path, "fedavg", case, "aggregator", server_momentum=0.5, **SECURE)
    initial = initial_weights(case.knowledge)
    assert initial is not None
    assert [m.round for m, _ in updates_without_broadcast(view, "client/0", initial)] == [0]


def test_secure_aggregation_reads_members_off_updates(tmp_path: Path, case: Case) -> None:
    assert told(case, federated(tmp_path, "fedavg", case, "aggregator", **SECURE)) > 0.8

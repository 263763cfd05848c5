"""Coins read off mean predictions by class: shadows that are taught as their victim was, on FKD and PLS."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fdaudit.attacks.membership._rounds import tables_of_shadows, tables_sent, teachers_of
from fdaudit.attacks.membership._study import Study
from fdaudit.attacks.membership.prototypes import PrototypeRegression, PrototypeRegressionConfig, averages

from fdaudit.goals.membership import Membership
from fdaudit.types import AttackTask

from .rehearsed_cases import Paired, common, rehearsed, stream

PAIRS, ROUNDS = 8, 8


def noise(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images without a pattern: what a model knows of them, it knows by heart."""
    return torch.rand(n, 1, 6, 6, generator=stream(seed)), torch.arange(n) % 4


class Case(Paired):
    """A federation of three clients, the first of which holds one candidate of each pair, or none of them."""

    def __init__(self, place: Path, protocol: str, *, adversary: str = "server", holds: bool = True) -> None:
        x, y = torch.rand(2 * PAIRS, 1, 6, 6, generator=stream(1)), torch.arange(PAIRS) % 4
        x[1::2] *= 0.3  # a pale one is learnt more slowly, so that each coin moves the mean of its class
        super().__init__(x, y.repeat_interleave(2), torch.rand(PAIRS, generator=stream(2)) < 0.5)
        data = [self.held if holds else noise(PAIRS, 7), noise(8, 8), noise(8, 9)]
        params = {"rounds": ROUNDS, "local_epochs": 3, "batch_size": 4, "lr": 0.2}
        self.view = rehearsed(place / "transcript", protocol, data, x[:0], adversary=adversary, **params)
        self.knows(noise(40, 10))

    def auc(self, shadows: int = 100) -> tuple[float, float, Membership]:
        """AUC, its p-value, and the guess."""
        guess = self.guess(PrototypeRegression(PrototypeRegressionConfig(shadows=shadows)))
        return *self.figure(guess), guess


@pytest.mark.parametrize("protocol", ["fkd", "pls"])
def test_the_server_reads_members_off_class_means(tmp_path: Path, protocol: str) -> None:
    found, _, guess = Case(tmp_path, protocol).auc()
    assert found > 0.7
    assert f"class means of {ROUNDS} rounds" in guess.note


@pytest.mark.thorough
@pytest.mark.parametrize("protocol", ["fkd", "pls"])
def test_a_client_reads_members_off_the_mean_of_the_others(tmp_path: Path, protocol: str) -> None:
    found, _, guess = Case(tmp_path, protocol, adversary="client/1").auc(shadows=160)
    assert found > 0.6
    assert guess.rehearsed is not None
    assert guess.rehearsed > 0.5


def test_a_client_without_the_candidates_gives_nothing_away(tmp_path: Path) -> None:
    assert Case(tmp_path, "fkd", holds=False).auc(shadows=60)[1] > 0.01


@pytest.mark.parametrize("protocol", ["fkd", "pls"])
def test_a_shadow_with_the_clients_own_records_weights_and_batches_sends_its_tables(
    tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The imitation is the protocol's own step: the tables differ by nothing but the draws."""
    from fdaudit.attacks.membership import _rounds

    case = Case(tmp_path, protocol)
    sent = tables_sent(case.view, "client/0")
    start = common(case.challenge.x[:0]).networks.initial(["client/0"], 5)["client/0"]
    monkeypatch.setattr(_rounds, "parameters_of", lambda _: start)
    drawn = _rounds.child
    monkeypatch.setattr(
        _rounds, "child", lambda seed, *path: drawn(5, protocol, "batches", path[1], "client/0", "batches")
        if path[-1] == "batches" else drawn(seed, *path),
    )  # fmt: skip
    x, y = case.held
    study = Study(
        inside=torch.ones(1, len(y), dtype=torch.bool),
        others=torch.zeros(1, 0, dtype=torch.bool),
        coins=torch.ones(1, 1),
        pool=(x, y),
    )
    found = tables_of_shadows(
        case.knowledge, study,
        teachers_of(case.view, "client/0", ROUNDS, 4), training=case.view.hyperparameters,
        only_right=protocol == "pls", most_steps=10_000, seed=0,
    )  # fmt: skip
    mine = torch.stack([sent[now] for now in range(ROUNDS)])
    assert torch.allclose(found[0].double(), mine, atol=1e-4)


def test_teachers_are_the_tables_sent_before(tmp_path: Path) -> None:
    view = Case(tmp_path, "fkd").view
    teachers = teachers_of(view, "client/0", ROUNDS, 4)
    sent = tables_sent(view, "server", "client/0")
    assert not teachers[0].any()
    for now in range(1, ROUNDS):
        assert torch.equal(teachers[now].double(), sent[now - 1])


def test_a_mean_for_one_client_is_over_the_others_and_a_mean_for_all_over_all(tmp_path: Path) -> None:
    others = averages(Case(tmp_path / "a", "fkd", adversary="client/1").view)
    everybody = averages(Case(tmp_path / "b", "pls", adversary="client/1").view)
    assert others is not None
    assert everybody is not None
    assert others[1] == ("client/0", "client/2")
    assert everybody[1] == ("client/0", "client/1", "client/2")


def test_it_says_why_it_does_not_apply(tmp_path: Path) -> None:
    case, attack = Case(tmp_path, "fkd", adversary="world"), PrototypeRegression(PrototypeRegressionConfig())
    told = attack.applicable(case.view, case.knowledge, case.task)
    assert "no class means" in told.reason
    assert "no challenge" in attack.applicable(case.view, case.knowledge, AttackTask(targets=())).reason

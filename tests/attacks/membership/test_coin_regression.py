"""Coins read off recorded answers: the regression alone, matched shadows, and the attack on a rehearsed federation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.attacks.membership import _study
from fdaudit.attacks.membership._answers import recorded
from fdaudit.attacks.membership._ridge import Regressed, regressed, regressed_sum
from fdaudit.attacks.membership._study import before_answers, drawn, trained
from fdaudit.attacks.membership.coin_regression import (
    _SURE,
    CoinRegression,
    CoinRegressionConfig,
    _answers,
    _looks,
    _ranged,
    _sure,
)

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.goals.membership import Membership
from fdaudit.training.trainer import Trainer
from fdaudit.transcript.samples import sample_index
from fdaudit.types import AttackTask

from .membership_cases import studied
from .rehearsed_cases import NETWORK, Paired, rehearsed, stream

PAIRS = 16
NOTHING: dict[str, Any] = {"left_out": torch.zeros(0), "spread": torch.zeros(0), "error": 0.0}


# -- the regression ---------------------------------------------------------------------------------------------


def test_coins_that_move_answers_are_read_off_them() -> None:
    coins = (torch.rand(201, 12, generator=stream(0)) < 0.5).double() * 2 - 1
    answers = coins @ torch.randn(12, 60, generator=stream(1)).double()
    answers = answers + torch.randn(201, 60, generator=stream(2)).double()
    found = regressed(answers[:200], coins[:200], answers[200])
    assert torch.equal(found.coins.sign(), coins[200])
    assert found.error < 0.3


def test_what_is_left_out_is_predicted_by_a_fit_without_it() -> None:
    coins = (torch.rand(15, 3, generator=stream(3)) < 0.5).double() * 2 - 1
    answers = coins @ torch.randn(3, 8, generator=stream(4)).double()
    answers = answers + 0.5 * torch.randn(15, 8, generator=stream(5)).double()
    found = regressed(answers, coins, answers[0])
    x = answers - answers.mean(0)
    x = x / x.square().sum(1).mean().sqrt()
    refitted = []
    for ridge in 10.0 ** torch.arange(-5, 2.01, 0.25, dtype=torch.float64):
        rows = []
        for k in range(15):
            kept = torch.arange(15) != k
            a, b = x[kept], coins[kept]
            rows.append(x[k] @ torch.linalg.solve(a.T @ a + ridge * torch.eye(8).double(), a.T @ b))
        refitted.append(torch.stack(rows))
    errors = torch.stack([(r - coins).square().mean() for r in refitted])
    assert found.error == pytest.approx(float(errors.min()), rel=1e-6)
    assert torch.allclose(found.left_out, refitted[int(errors.argmin())], atol=1e-6)


def test_answers_that_know_nothing_promise_nothing() -> None:
    coins = (torch.rand(100, 10, generator=stream(6)) < 0.5).double() * 2 - 1
    found = regressed(torch.randn(100, 40, generator=stream(7)), coins, torch.randn(40, generator=stream(8)))
    assert found.error > 0.95
    assert float(found.coins.abs().max()) < 0.6


def planted(client: int, shadows: int, d: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    """Answers and coins of one client's shadows; answers are linear in the coins, with noise of the training."""
    draws = stream(20 + client)
    coins = (torch.rand(shadows, 6, generator=draws) < 0.5).double() * 2 - 1
    moves = torch.randn(6, d, generator=stream(40 + client)).double()
    return coins @ moves + 0.3 * torch.randn(shadows, d, generator=draws).double(), coins


def test_coins_of_several_clients_are_read_off_the_sum_of_their_answers() -> None:
    clients = [planted(k, 121) for k in range(3)]
    seen = torch.stack([answers[120] for answers, _ in clients]).sum(0)
    found = regressed_sum([(a[:120], c[:120]) for a, c in clients], seen)
    for (_, coins), one in zip(clients, found, strict=True):
        assert torch.equal(one.coins.sign(), coins[120])
        assert one.right > 0.95


def test_a_sum_of_one_client_is_that_client() -> None:
    answers, coins = planted(0, 31)
    (alone,) = regressed_sum([(answers[:30], coins[:30])], answers[30])
    found = regressed(answers[:30], coins[:30], answers[30])
    assert torch.equal(alone.coins, found.coins)
    assert alone.error == found.error


def test_noise_of_a_defence_is_expected_and_not_fitted() -> None:
    clients = [planted(k, 401) for k in range(2)]
    noise = 6.0
    seen = torch.stack([answers[400] for answers, _ in clients]).sum(0)
    seen = seen + noise * torch.randn(seen.shape, generator=stream(60)).double()
    blind = regressed_sum([(a[:400], c[:400]) for a, c in clients], seen)
    aware = regressed_sum([(a[:400], c[:400]) for a, c in clients], seen, noise**2)
    truth = torch.cat([coins[400] for _, coins in clients])

    def error(found: list[Any]) -> float:
        return float((torch.cat([one.coins for one in found]) - truth).square().mean())

    assert error(aware) < error(blind)
    promised = sum(one.error for one in aware) / 2
    assert abs(error(aware) - promised) < 0.35
    assert all(one.right < 0.95 for one in aware)


def test_clients_with_different_numbers_of_shadows_are_refused() -> None:
    with pytest.raises(ValueError, match="number of shadows"):
        regressed_sum([planted(0, 30), planted(1, 31)], torch.zeros(60))


# -- the federation ---------------------------------------------------------------------------------------------


class Case(Paired):
    """FedKD among two clients; the first holds one of each of 16 pairs and four other records."""

    def __init__(self, place: Path, holds: bool, adversary: str = "aggregator", **params: Any) -> None:
        draws = stream(9)
        x = torch.rand(2 * PAIRS, 1, 6, 6, generator=draws)
        y = torch.randint(4, (PAIRS,), generator=draws).repeat_interleave(2)
        super().__init__(x, y, torch.randint(2, (PAIRS,), generator=draws).bool())

        def others(n: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.rand(n, 1, 6, 6, generator=draws), torch.randint(4, (n,), generator=draws)

        more, apart, public = others(4), others(PAIRS), others(60)[0]
        own = (x[self.member] if holds else apart[0]), y[self.member]
        self.records = tuple(torch.cat([a, b]) for a, b in zip(own, more, strict=True))
        given = {"local_epochs": 20, "batch_size": 8, "lr": 0.2, "distill_rounds": 1, "distill_steps": 1}
        data = [self.records, others(20)]
        self.view = rehearsed(
            place / "transcript", "fedkd", data, public, adversary=adversary, **given | params
        )
        self.knows(others(40), public)

    def auc(
        self, knowledge: Knowledge | None = None, shadows: int = 150, **params: bool
    ) -> tuple[float, float, Membership]:
        """AUC, its p-value, and the guess."""
        attack = CoinRegression(CoinRegressionConfig(shadows=shadows, **params))
        guess = self.guess(attack, knowledge=knowledge)
        return *self.figure(guess), guess


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("case"), True)


def test_shadows_are_like_the_victim(case: Case) -> None:
    made = studied(case.view, case.knowledge, case.challenge, 20, most_steps=1)
    pairs = made.inside.reshape(20, PAIRS, 2)
    assert bool((pairs.sum(2) == 1).all())
    assert torch.equal(pairs[:, :, 0], made.coins > 0)
    assert 0.3 < float((made.coins > 0).double().mean()) < 0.7
    assert len(made.models) == 20


def test_shadows_hold_as_many_records_of_each_class(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def spied(
        knowledge: Knowledge, x: torch.Tensor, y: torch.Tensor, inside: torch.Tensor, **_: object
    ) -> list[None]:
        seen.update(y=y, inside=inside)
        return []

    monkeypatch.setattr("fdaudit.attacks.membership._study.shadow_models", spied)
    for paired in (True, False):
        study = drawn(case.view, case.knowledge, case.challenge, 10, paired=paired, seed=0)
        trained(case.knowledge, study, training={}, most_steps=1)
        counts = torch.stack([seen["y"][row].bincount(minlength=4) for row in seen["inside"]])
        true = case.records[1].bincount(minlength=4)
        if paired:
            assert bool((counts == true).all())
        assert bool(((counts.sum(1) - true.sum()).abs() <= 2).all())


def test_members_are_told_and_left_out_shadows_say_so_beforehand(case: Case) -> None:
    found, _, guess = case.auc()
    assert found > 0.9
    assert guess.rehearsed is not None
    assert guess.rehearsed > 0.75


def test_shadows_are_asked_once_for_all_adversaries_and_messages(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    real = _study.stacked_logits

    def counted(train: Trainer, models: Any, x: torch.Tensor) -> torch.Tensor:
        asked.append(len(models))
        return real(train, models, x)

    monkeypatch.setattr(_study, "stacked_logits", counted)
    first, again = (case.auc(shadows=24)[2] for _ in ("server", "aggregator"))
    assert torch.equal(first.scores, again.scores)
    assert asked == [24]  # for the logits of public samples and for the largest of them
    monkeypatch.setattr(_study, "_MOST_KEPT", 0)
    assert torch.equal(case.auc(shadows=24)[2].scores, first.scores)
    assert len(asked) > 2


@pytest.mark.thorough
def test_without_pairs_it_tells_less(case: Case) -> None:
    whole, _, _ = case.auc()
    apart, p, _ = case.auc(paired=False)
    assert p < 0.05
    assert apart <= whole


def test_a_client_without_the_candidates_gives_nothing_away(tmp_path: Path) -> None:
    assert Case(tmp_path, False).auc(shadows=60)[1] > 0.01


def test_it_says_why_it_does_not_apply(case: Case) -> None:
    attack, task = CoinRegression(CoinRegressionConfig()), AttackTask(targets=("client/0",))
    full = replace(task, challenges={"client/0": case.challenge})
    assert "no challenge" in attack.applicable(case.view, case.knowledge, task).reason
    assert "auxiliary" in attack.applicable(case.view, replace(case.knowledge, auxiliary=None), full).reason
    nobody = replace(task, challenges={"client/7": replace(case.challenge, target="client/7")})
    assert "neither" in attack.applicable(case.view, case.knowledge, nobody).reason


def test_one_round_of_training_lies_before_the_first_answers() -> None:
    assert before_answers({"rounds": 9, "local_epochs": 5}) == {"rounds": 1, "local_epochs": 5}
    waiting = {"rounds": 9, "local_steps": 3, "warm_up_steps": 50, "order": "predict-first"}
    assert before_answers(waiting) == {**waiting, "rounds": 1, "local_steps": 0}


def test_the_first_answers_are_those_of_the_first_round(tmp_path: Path) -> None:
    draws = stream(11)
    public = torch.rand(30, 1, 6, 6, generator=draws)
    data = [(torch.rand(9, 1, 6, 6, generator=draws), torch.arange(9) % 4) for _ in range(2)]
    params = {"rounds": 3, "selector": "none", "labels": "soft", "warm_up_steps": 1, "public_batch": 20}
    view = rehearsed(tmp_path / "transcript", "selective-fd", data, public, seed=1, **params)
    known = Knowledge(architecture=NETWORK, public=public, classes=4)
    sent = view.select(kind="soft_labels", sender="client/0")
    (first,) = (m for m in sent if m.round == 0)
    told = recorded(view, known, 100, first=True)["client/0"]
    assert sorted(told.samples.tolist()) == sorted(sample_index(view.tensors(first)).tolist())
    assert len(recorded(view, known, 100)["client/0"].samples) >= len(told.samples)


def test_the_largest_logit_is_regressed_as_well(tmp_path: Path) -> None:
    case = Case(tmp_path, True)
    (sent,) = case.view.select(kind="logit_range", sender="client/0")
    told = _ranged(case.view, case.knowledge, "client/0")
    assert told is not None
    assert torch.equal(told.values, case.view.tensors(sent)["max_abs"].reshape(1))
    made = studied(case.view, case.knowledge, case.challenge, 3, most_steps=20)
    assert case.knowledge.train is not None
    by_hand = [float(case.knowledge.train.predict(m, case.knowledge.public).abs().max()) for m in made.models]
    assert _answers(case.knowledge, made, told).flatten().tolist() == pytest.approx(by_hand)


# -- the number of shadows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shadows", "looks"), [(8, [8]), (120, [60, 120]), (200, [60, 120, 200]), (2000, [540, 1020, 2000])]
)
def test_coins_are_read_after_a_quarter_half_and_all_shadows(shadows: int, looks: list[int]) -> None:
    assert _looks(shadows) == looks


def test_shadows_end_once_coins_are_read_surely(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert case.auc(shadows=120)[2].note == "120 shadows"
    monkeypatch.setattr("fdaudit.attacks.membership.coin_regression._SURE", 0.6)
    early = case.auc(shadows=120)[2]
    assert early.note == "60 shadows"
    assert torch.equal(early.scores, case.auc(shadows=60)[2].scores)


@pytest.mark.parametrize("coins", [4, 20, 80])
@pytest.mark.parametrize("apart", [0.0, 0.03])
def test_chance_makes_coins_sure_in_one_of_a_hundred_cases_at_most(coins: int, apart: float) -> None:
    """The share of coins that are read right is exactly the bound, so every early end is an error."""
    draws = stream(12)
    ended = 0
    for _ in range(1000):
        chance = _SURE + apart * (torch.randint(2, (150, 1), generator=draws) * 2 - 1)
        right = (torch.rand(150, coins, generator=draws) < chance).double().mean(1)
        looks = [
            Regressed(**NOTHING, coins=torch.zeros(coins), right_by_shadow=right[:count])
            for count in (60, 150)
        ]
        ended += any(map(_sure, looks))
    assert ended / 1000 < 0.01 + 3 * (0.01 * 0.99 / 1000) ** 0.5

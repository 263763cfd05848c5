"""Coin regression on the answers of several rounds: shadows that learn what their victim learnt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.attacks.membership._answers import recorded
from fdaudit.attacks.membership._ridge import Regressed, stacked
from fdaudit.attacks.membership._rounds import answered_in_rounds, followed
from fdaudit.attacks.membership._study import Study, before_answers
from fdaudit.attacks.membership.coin_regression import CoinRegression, CoinRegressionConfig

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import View
from fdaudit.training.trainer import Fit, Job, Trainer

from .rehearsed_cases import SEED, Paired, common, rehearsed, stream

PAIRS = 8
SELECTIVE = {"labels": "soft", "lr": 0.3, "distill_steps": 4, "local_steps": 2, "public_batch": 40}
ROUNDS = (
    ("selective-fd", {**SELECTIVE, "warm_up_steps": 10, "order": "predict-first"}),
    ("selective-fd", {**SELECTIVE, "warm_up_steps": 10, "order": "local-first", "selector": "none"}),
    ("fedmd", {"order": "digest-revisit", "warm_up_steps": 10, "local_steps": 3, "distill_lr": 0.05}),
    ("fedmd", {"order": "revisit-digest", "share": "soft_labels", "local_epochs": 2, "momentum": 0.5}),
    ("ds-fl", {"local_steps": 3, "final_lr": 0.01, "weight_decay": 0.01}),
    ("ds-fl", {"warm_up_steps": 5, "aggregation": "sa", "distill_steps": 3}),
)


class Case(Paired):
    """A federation of two clients in rounds; the first holds one of each of eight pairs and no other record."""

    def __init__(self, place: Path, name: str, holds: bool = True, seed: int = SEED, **params: Any) -> None:
        draws = stream(seed + 4)
        x = torch.rand(2 * PAIRS, 1, 6, 6, generator=draws)
        y = (torch.arange(PAIRS) % 4).repeat_interleave(2)
        super().__init__(x, y, torch.randint(2, (PAIRS,), generator=draws).bool())
        auxiliary, public = torch.rand(40, 1, 6, 6, generator=draws), torch.rand(60, 1, 6, 6, generator=draws)
        own = x[self.member] if holds else torch.rand(PAIRS, 1, 6, 6, generator=draws)
        other = torch.rand(PAIRS, 1, 6, 6, generator=draws), torch.arange(PAIRS) % 4
        # A batch of all records leaves nothing of a client's training to chance.
        params = {"rounds": 4, "batch_size": PAIRS, "lr": 0.2, **params}
        data = [(own, y[self.member]), other]
        self.view = rehearsed(place / "transcript", name, data, public, seed=seed, **params)
        self.knows((auxiliary, torch.arange(40) % 4), public)
        self.start = common(public).networks.initial(["client/0"], seed)["client/0"]

    def told(self, view: View | None = None, **params: Any) -> tuple[float, str]:
        """Return the attack's AUC and its note."""
        attack = CoinRegression(CoinRegressionConfig(**{"shadows": 60, **params}))
        guess = self.guess(attack, view)
        return self.auc_of(guess), guess.note

    def victim(self) -> Study:
        """Return one shadow that holds what the victim holds, trained here by plain steps up to the first answers."""
        public = before_answers(self.view.hyperparameters)
        steps, each = int(public.get("warm_up_steps") or 0), public.get("local_steps")
        # One step is one pass: a batch holds all records.
        later = int(each) if each is not None else int(public.get("local_epochs") or 1)
        assert self.knowledge.train is not None
        model = self.start  # no attack knows it
        plain = {n: float(public.get(n) or 0) for n in ("lr", "momentum", "weight_decay")}
        for count, final in ((steps, public.get("final_lr")), (later, public.get("final_lr"))):
            job = Job(
                party="victim",
                parameters=model,
                x=self.held[0],
                targets=self.held[1],
                batches=[torch.arange(PAIRS)] * count,
            )
            model = self.knowledge.train.fit([job], Fit(final_lr=final, **plain))[0].parameters
        coins = self.member.reshape(PAIRS, 2)[:, 0].double() * 2 - 1
        others = torch.zeros(1, 40, dtype=torch.bool)
        assert self.knowledge.auxiliary is not None
        pool = torch.cat([self.challenge.x, self.knowledge.auxiliary[0]])
        labels = torch.cat([self.challenge.y, self.knowledge.auxiliary[1]])
        return Study(
            models=[model],
            inside=self.member[None],
            others=others,
            coins=coins[None],
            pool=(pool, labels),
        )


def far_from(case: Case, made: Study, answered: Any) -> float:
    """Return the largest difference of one shadow's answers from the recorded ones."""
    assert case.knowledge.train is not None
    z = case.knowledge.train.predict(made.models[0], answered.x)
    mine = z - z.mean(1, keepdim=True) if answered.kind == "logits" else z.softmax(1)
    return float((mine - answered.values).abs().max())


@pytest.mark.thorough
def check_followed(case: Case, heard: Any) -> None:
    """Check that a shadow with the victim's coins answers in each round as the victim."""
    made = case.victim()
    for one in heard:
        made = followed(
            case.knowledge, made, one.lessons,
            training=case.view.hyperparameters, most_steps=2000, seed=0,
        )  # fmt: skip
        assert far_from(case, made, one.answers) < 1e-4


@pytest.mark.parametrize(("name", "params"), ROUNDS)
def test_a_shadow_with_the_true_coins_answers_as_its_victim(
    tmp_path: Path, name: str, params: dict[str, Any]
) -> None:
    case = Case(tmp_path, name, **params)
    heard = answered_in_rounds(case.view, case.knowledge, 1000, 4)["client/0"]
    assert len(heard) == 4
    assert heard[0].lessons == ()
    check_followed(case, heard)
    assert far_from(case, case.victim(), heard[-1].answers) > 1e-2


@pytest.mark.thorough
def test_later_rounds_tell_where_the_first_tells_little(tmp_path: Path) -> None:
    case = Case(tmp_path, "fedmd", warm_up_steps=0, local_steps=5)
    first, note = case.told(rounds=1)
    assert first < 0.7  # nobody has trained before the first answers: initial weights are all that shows
    assert "of 1 round" in note
    later, note = case.told(
        rounds=3, shadows=200
    )  # unknown initial weights are noise: more shadows average it
    assert later > 0.9
    assert "of 3 rounds" in note


@pytest.mark.thorough
def test_without_candidates_later_rounds_tell_nothing(tmp_path: Path) -> None:
    found = []
    for seed in range(5):
        case = Case(tmp_path / str(seed), "fedmd", holds=False, seed=seed, warm_up_steps=5, local_steps=3)
        found.append(case.told(rounds=3)[0])
    # The mean of 5 AUCs of 8 coins each: its standard deviation is 0.09 at most.
    assert abs(sum(found) / 5 - 0.5) < 0.25


def test_a_client_is_followed_as_long_as_its_ensembles_are_in_view(tmp_path: Path) -> None:
    case = Case(tmp_path, "selective-fd", **{**SELECTIVE, "warm_up_steps": 5, "selector": "none"})

    def rounds(view: View, knowledge: Knowledge = case.knowledge, most: int = 9) -> list[int]:
        found = answered_in_rounds(view, knowledge, 1000, most)
        return [len(found[client]) for client in ("client/0", "client/1")]

    assert rounds(case.view) == [4, 4]
    assert rounds(case.view, most=2) == [2, 2]
    kept = tuple(m for m in case.view.messages if (m.kind, m.round) != ("ensemble_labels", 1))
    assert rounds(replace(case.view, messages=kept)) == [2, 2]
    digests = tuple(
        replace(m, payload=None) if (m.kind, m.round) == ("ensemble_labels", 0) else m
        for m in case.view.messages
    )
    assert rounds(replace(case.view, messages=digests)) == [1, 1]
    public = dict(case.view.hyperparameters)
    del public["distill_steps"]
    assert rounds(replace(case.view, hyperparameters=public)) == [1, 1]


def test_a_silent_client_is_followed_to_its_next_answers(tmp_path: Path) -> None:
    case = Case(tmp_path, "fedmd", warm_up_steps=10, local_steps=3)
    kept = tuple(m for m in case.view.messages if m.sender != "client/0" or m.round not in (0, 2))
    heard = answered_in_rounds(replace(case.view, messages=kept), case.knowledge, 1000, 9)["client/0"]
    assert [[lesson.round for lesson in one.lessons] for one in heard] == [[0], [1, 2]]
    check_followed(case, heard)


def test_the_first_round_counts_where_no_round_can_be_followed(tmp_path: Path) -> None:
    case = Case(tmp_path, "fedmd", warm_up_steps=10, local_steps=40)
    kept = tuple(m for m in case.view.messages if m.kind != "ensemble_labels")
    blind = replace(case.view, messages=kept)
    assert case.told(blind, rounds=4) == case.told(rounds=1)
    late = replace(case.view, messages=tuple(m for m in kept if m.round > 1))
    (one,) = answered_in_rounds(late, case.knowledge, 1000, 4)["client/0"]
    first = recorded(late, case.knowledge, 1000, first=True)["client/0"]
    assert torch.equal(one.answers.values, first.values)


def test_a_shadow_that_diverges_ends_the_rounds(tmp_path: Path) -> None:
    case = Case(tmp_path, "fedmd", warm_up_steps=10, local_steps=3)
    hostile = replace(case.view, hyperparameters={**case.view.hyperparameters, "distill_lr": 1e30})
    assert case.told(hostile, rounds=4) == case.told(rounds=1)


def test_shadows_are_followed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tmp_path, "fedmd", warm_up_steps=10, local_steps=3)
    before = case.told(rounds=3)

    def refused(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(Trainer, "fit", refused)
    assert case.told(rounds=3) == before


# -- stacking ---------------------------------------------------------------------------------------------------


def test_stacked_predictions_are_the_least_squares_fit() -> None:
    coins = (torch.rand(200, 6, generator=stream(1)) < 0.5).double() * 2 - 1
    found = [_predicted(coins, noise, seed) for seed, noise in enumerate((0.5, 1.0, 2.0))]
    joined = stacked(found, coins)
    table = torch.stack([one.left_out.flatten() for one in found], 1)
    weights = torch.linalg.lstsq(table, coins.flatten()).solution
    assert torch.allclose(joined.left_out.flatten(), table @ weights)
    assert torch.allclose(joined.coins, torch.stack([one.coins for one in found], 1) @ weights)
    assert joined.error < min(one.error for one in found)


def test_a_prediction_under_noise_counts_less() -> None:
    coins = (torch.rand(200, 6, generator=stream(1)) < 0.5).double() * 2 - 1
    one, other = (_predicted(coins, 0.5, seed) for seed in (1, 2))
    noisy = replace(other, spread=torch.full((6,), 1e6).double())
    joined = stacked([one, noisy], coins)
    alone = stacked([one], coins)
    assert torch.allclose(joined.coins, alone.coins, atol=1e-3)
    assert joined.error == pytest.approx(alone.error, rel=1e-3)


def _predicted(coins: torch.Tensor, noise: float, seed: int) -> Regressed:
    """Return predictions that are the coins with noise, of the shadows and of one victim."""
    wrong = noise * torch.randn(len(coins) + 1, coins.shape[1], generator=stream(seed)).double()
    return Regressed(
        coins=coins[0] + wrong[-1],
        left_out=coins + wrong[:-1],
        spread=torch.zeros(coins.shape[1]).double(),
        error=noise**2,
        right_by_shadow=torch.full((len(coins),), 0.5).double(),
    )

"""Coins read off what was made of all clients together: averages, FedIOD's mixtures, and distilled models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.attacks import _shadows
from fdaudit.attacks._shadows import parts_of
from fdaudit.attacks.membership._averages import Ensemble, ensembles_of, with_selectors
from fdaudit.attacks.membership._derived import Reading, joined
from fdaudit.attacks.membership._mixtures import mixtures
from fdaudit.attacks.membership._ridge import regressed_rehearsed
from fdaudit.attacks.membership._study import Study, before_answers, drawn_of_stranger, trained
from fdaudit.attacks.membership.rehearsed_regression import RehearsedRegression, RehearsedRegressionConfig

from fdaudit import attacks
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import View, view_of
from fdaudit.goals.membership import Membership
from fdaudit.training.trainer import Trainer

from .membership_cases import studied
from .rehearsed_cases import EXECUTION, mlp, rehearsed, stream
from .test_coin_regression import Case


def told(case: Case, **params: Any) -> tuple[float, Membership]:
    """The attack's AUC and its guess."""
    attack = RehearsedRegression(RehearsedRegressionConfig(**{"shadows": 60, **params}))
    guess = case.guess(attack)
    return case.auc_of(guess), guess


# -- the regression ---------------------------------------------------------------------------------------------


def federations(seed: int, m: int = 120, d: int = 80, r: int = 16, rest: float = 1.0) -> dict[str, Any]:
    """Three clients' shadows, and federations whose values are the sum of one shadow of each and a residual."""
    draws = stream(seed)
    clients = []
    for _ in range(3):
        coins = (torch.rand(m + 1, 5, generator=draws) < 0.5).double() * 2 - 1
        moves = torch.randn(5, d, generator=draws).double()
        clients.append((coins @ moves + torch.randn(m + 1, d, generator=draws).double(), coins))
    bias, directions = (
        7 * torch.randn(d, generator=draws).double(),
        torch.randn(3, d, generator=draws).double(),
    )
    residual = bias + 5 * rest * torch.randn(r + 1, 3, generator=draws).double() @ directions
    whole = sum(answers[:r] for answers, _ in clients) + residual[:r]
    return {
        "clients": [(answers[:m], coins[:m]) for answers, coins in clients],
        "seen": sum(answers[m] for answers, _ in clients) + residual[r],
        "residual": residual[:r],
        "rehearsed": whole,
        "truth": torch.cat([coins[m] for _, coins in clients]),
    }


@pytest.mark.thorough
def test_what_rehearsals_show_is_no_client_s_part_is_not_taken_for_coins() -> None:
    right, promised = [], []
    for seed in range(8):
        case = federations(seed)
        truth = case.pop("truth")
        found = regressed_rehearsed(**case)
        right.append(float((torch.cat([one.coins for one in found]).sign() == truth).double().mean()))
        promised.append(sum(one.right for one in found) / 3)
        blind = regressed_rehearsed(
            **{**case, "residual": torch.zeros(16, 80), "rehearsed": case["rehearsed"]}
        )
        assert sum(one.error for one in found) < sum(one.error for one in blind)
    assert sum(right) / 8 > 0.75
    # Of 120 coins: the standard deviation of their share is at most 0.046.
    assert abs(sum(right) - sum(promised)) / 8 < 0.15


def test_a_constant_of_all_values_changes_nothing() -> None:
    case = federations(1)
    del case["truth"]
    plain = regressed_rehearsed(**case)
    moved = {k: case[k] + 100.0 for k in ("seen", "residual", "rehearsed")}
    shifted = regressed_rehearsed(clients=case["clients"], **moved)
    for one, other in zip(plain, shifted, strict=True):
        assert torch.allclose(one.coins, other.coins, atol=1e-6)
        assert torch.allclose(one.left_out, other.left_out, atol=1e-6)


def test_readings_are_joined_of_which_some_were_rehearsed() -> None:
    average = Reading(seen=torch.zeros(3), parts={"a": torch.rand(9, 3, generator=stream(1))}, noise=4.0)
    model = Reading(
        seen=torch.ones(2),
        parts={"a": torch.rand(9, 2, generator=stream(2)), "b": torch.rand(9, 2, generator=stream(3))},
        residual=torch.rand(4, 2),
        rehearsed=torch.rand(4, 2),
    )
    found = joined([average, model])
    assert found.parts["b"].shape == (9, 5)
    assert not bool(found.parts["b"][:, :3].any())
    assert found.residual is not None
    assert found.rehearsed is not None
    assert found.residual.shape == found.rehearsed.shape == (4, 5)
    difference = found.rehearsed[:, :3] - found.residual[:, :3]
    assert torch.allclose(difference, found.parts["a"][:4, :3].double())


def test_shadows_of_two_clients_have_nothing_in_common(tmp_path: Path) -> None:
    """With the same coins and weights in both, a sum's left-out shadows foretold each other: 99 % of coins, of 50 %."""
    case = Case(tmp_path, True)
    one, other = (
        studied(case.view, case.knowledge, replace(case.challenge, target=target), 40, most_steps=1)
        for target in ("client/0", "client/1")
    )
    alike = float((one.coins == other.coins).double().mean())
    assert 0.4 < alike < 0.6  # of 640 coins: the standard deviation is 0.02
    for k in range(3):
        first, second = one.models[k], other.models[k]
        assert all(not torch.equal(first[name], second[name]) for name in first if first[name].ndim > 1)


@pytest.mark.parametrize("profile", ["quick", "standard"])
def test_shadows_of_a_victim_are_whole_blocks_in_all_attacks(profile: str) -> None:
    """Then the fewer shadows of one attack are the first ones of another's, and none is trained twice."""
    counts = {
        name: settings.get("matched", settings.get("shadows"))
        for name in attacks.REGISTRY.names()
        for settings in [attacks.REGISTRY.describe(name).profiles[profile]]
        if "matched" in settings or name in ("coin-regression", "rehearsed-regression")
    }
    assert len(counts) > 4
    most = max(counts.values())
    blocks = {block.stop for block in parts_of(most)}
    assert set(counts.values()) <= blocks, counts


def test_fewer_shadows_of_a_victim_are_the_first_of_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, True)
    blocks = []
    fit = _shadows._fit

    def counted(*args: Any) -> Any:
        blocks.append(args[-1])
        return fit(*args)

    monkeypatch.setattr(_shadows, "_fit", counted)

    def of(count: int) -> Study:
        return studied(case.view, case.knowledge, case.challenge, count, most_steps=3)

    few = of(60)
    many = of(130)
    assert blocks == [range(60), range(60, 120), range(120, 130)]
    assert torch.equal(few.coins, many.coins[:60])
    assert torch.equal(few.held, many.held[:60])
    for one, other in zip(few.models, many.models, strict=False):
        assert all(torch.equal(one[name], other[name]) for name in one)


# -- averages ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_server_reads_members_off_the_average_of_all_clients(tmp_path: Path) -> None:
    found, guess = told(Case(tmp_path, True, "server"), shadows=300)
    assert found > 0.7
    assert guess.rehearsed is not None
    assert guess.rehearsed > 0.55


@pytest.mark.parametrize("params", [{"ensemble": "votes"}, {"weights": "uniform", "gamma": None}])
def test_averages_of_other_forms_are_read_too(tmp_path: Path, params: dict[str, Any]) -> None:
    case = Case(tmp_path, True, "server", **params)
    (ensemble,) = ensembles_of(case.view, case.knowledge, case.task, 4, 1000)
    assert ensemble.noise == 0
    assert ensemble.form == ("hard_labels" if "ensemble" in params else "logits")
    assert "first average" in told(case)[1].note


def test_what_a_coalition_put_into_an_average_is_taken_off(tmp_path: Path) -> None:
    case = Case(tmp_path, True, "server+client/1", gamma=None, levels=None)
    (ensemble,) = ensembles_of(case.view, case.knowledge, case.task, 4, 1000)
    assert list(ensemble.weights) == ["client/0"]
    (mine,) = case.view.select(kind="logits", sender="client/1")
    (whole,) = case.view.select(kind="ensemble_labels")
    rest = case.view.tensors(whole)["values"].double()
    weight = 1 - ensemble.weights["client/0"]
    rest = rest - weight * case.view.tensors(mine)["values"].double()
    assert torch.allclose(ensemble.values, rest, atol=1e-5)


def test_all_rounds_of_an_average_count(tmp_path: Path) -> None:
    """Clients learn from every ensemble, so the answers behind the next one follow from what the view holds."""
    case = Case(tmp_path / "a", True)
    others = torch.rand(20, 1, 6, 6, generator=stream(3)), torch.arange(20) % 4
    params = {"rounds": 3, "warm_up_steps": 10, "local_steps": 3, "batch_size": 20, "lr": 0.2}
    data, public = [case.records, others], case.knowledge.public
    view = rehearsed(tmp_path / "transcript", "fedmd", data, public, adversary="client/1", **params)
    case.view = view
    assert [one.round for one in ensembles_of(view, case.knowledge, case.task, 9, 1000)] == [0, 1, 2]
    assert len(ensembles_of(view, case.knowledge, case.task, 2, 7)[1].x) == 7
    guess = told(case, rounds=3)[1]
    assert "average" in guess.note


def test_the_clients_behind_each_sample_of_a_selective_average_are_found() -> None:
    draws = stream(4)
    true = (torch.rand(3, 40, generator=draws) < 0.6).double()
    true[0, true.sum(0) == 0] = 1
    centre = torch.rand(3, 40, 4, generator=draws).double()
    answers = {
        f"client/{k}": centre[k] + 0.02 * torch.randn(30, 40, 4, generator=draws).double() for k in range(3)
    }
    values = (
        torch.einsum("kn,knc->nc", true, torch.stack([a[0] for a in answers.values()])) / true.sum(0)[:, None]
    )
    weights = {k: torch.ones(4) / 3 for k in answers}
    ensemble = Ensemble(
        x=torch.zeros(40, 1),
        values=values,
        form="soft_labels",
        weights=weights,
        noise=0.0,
        round=0,
        selects=True,
    )
    found = with_selectors(ensemble, answers)
    guessed = torch.stack([found.weights[k][:, 0] > 0 for k in answers])
    assert float((guessed == (true > 0)).double().mean()) > 0.9
    assert torch.allclose(torch.stack([*found.weights.values()]).sum(0), torch.ones(40, 4).double())


# -- mixtures ---------------------------------------------------------------------------------------------------


class Mixed:
    """FedIOD among three clients; the first has no record of half of the classes, and reads its cotangents."""

    def __init__(self, place: Path, **params: Any) -> None:
        draws = stream(12)
        network = mlp(shape=(1, 8, 8))

        def records(n: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.rand(n, 1, 8, 8, generator=draws), torch.arange(n) % classes

        self.knowledge = Knowledge(
            architecture=network, auxiliary=records(40, 4), train=Trainer(network, EXECUTION), classes=4
        )
        self.folder = place / "transcript"
        self.view = rehearsed(
            self.folder, "fediod", [records(10, 2), records(20, 4), records(20, 4)], network=network,
            adversary="client/0", rounds=2, steps_per_round=3, samples=8, local_epochs=5, batch_size=8, lr=0.2,
            latent=4, generator_width=2, discriminator_width=2, **params,
        )  # fmt: skip

    def whole(self) -> View:
        return view_of(
            self.folder, "server", parties=self.view.parties, hyperparameters=self.view.hyperparameters
        )

    def made(self, count: int = 6) -> dict[str, Study]:
        training = before_answers(self.view.hyperparameters)
        shadows = {}
        for client in ("client/1", "client/2"):
            study = drawn_of_stranger(self.view, self.knowledge, client, count, records=10, seed=0)
            shadows[client] = trained(self.knowledge, study, training=training, most_steps=5)
        return shadows


def test_a_cotangent_tells_the_mixture_of_all_answers(tmp_path: Path) -> None:
    """For classes that client 0 lacks, up to a constant of each sample; the truth is what the server saw."""
    mixed = Mixed(tmp_path)
    reading = mixtures(mixed.view, mixed.knowledge, mixed.made(), samples=24, seed=0)
    assert reading is not None
    whole, rows = mixed.whole(), []
    counts = torch.stack([whole.tensors(m)["counts"] for m in whole.select(kind="class_counts")]).double()
    shares = counts.sum(1) / counts.sum()
    for step in range(3):
        z = torch.stack(
            [whole.tensors(m)["values"].double() for m in whole.select(kind="logits") if m.step == step]
        )
        mixture = torch.logsumexp(z.log_softmax(2) + shares.log()[:, None, None], 0)[:, 2:]
        rows.append(mixture - mixture.mean(1, keepdim=True))
    # Samples of a step come in another order: compare as sets, by their own values.
    mine = reading.seen.reshape(24, 2)[:, 0].sort().values
    assert torch.allclose(mine, torch.cat(rows)[:, 0].sort().values, atol=2e-3)


@pytest.mark.parametrize("params", [{"unique": 0.0}, {"weights": "uniform", "shares": "uniform"}])
def test_cotangents_without_a_mixture_are_not_read(tmp_path: Path, params: dict[str, Any]) -> None:
    mixed = Mixed(tmp_path, **params)
    assert mixtures(mixed.view, mixed.knowledge, mixed.made(), samples=24, seed=0) is None


def test_a_mixture_is_the_sum_of_its_parts_and_a_rest(tmp_path: Path) -> None:
    mixed = Mixed(tmp_path)
    reading = mixtures(mixed.view, mixed.knowledge, mixed.made(), samples=24, seed=0)
    assert reading is not None
    assert reading.residual is not None
    assert reading.rehearsed is not None
    total = sum(part[:6] for part in reading.parts.values()) + reading.residual
    assert torch.allclose(torch.as_tensor(total), reading.rehearsed)


# -- distilled models -------------------------------------------------------------------------------------------


def test_members_are_read_off_a_model_that_was_distilled_from_all(tmp_path: Path) -> None:
    case = Case(tmp_path / "case", True, "world", gamma=None, distill_steps=60, distill_lr=0.01)
    asked: list[int] = []

    def again(data: list[Any], seed: int, models: dict[str, Any] | None = None) -> View:
        asked.append(len(data))
        return rehearsed(
            tmp_path / f"rehearsal-{seed}", "fedkd", data, case.knowledge.public, seed=seed, adversary="world",
            models=models, **case.view.hyperparameters,
        )  # fmt: skip

    case.knowledge = replace(case.knowledge, rehearse=again)
    found, guess = told(case, rehearsals=8, shadows=80)
    assert asked == [2] * 8
    assert found > 0.6
    assert "distilled model" in guess.note
    assert guess.rehearsed is not None
    blind = replace(case.knowledge, rehearse=None)
    attack = RehearsedRegression(RehearsedRegressionConfig(shadows=8))
    assert "rehearsed" in attack.applicable(case.view, blind, case.task).reason

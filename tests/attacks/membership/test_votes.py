"""Averages of votes: on generated samples, under selectors, under noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.attacks.membership._averages import Ensemble, averages, ensembles_of, with_selectors

from fdaudit.adversary.view import View
from fdaudit.types import AttackTask

from ...helpers.defence_cases import defence
from .rehearsed_cases import rehearsed, stream
from .test_coin_regression import Case
from .test_rehearsed_regression import Mixed, told

VOTES = {"outputs": "votes", "weights": "uniform", "shares": "uniform"}
NOBODY = AttackTask(targets=("client/1",))


def test_votes_on_generated_samples_are_an_average_of_all_steps(tmp_path: Path) -> None:
    mixed = Mixed(tmp_path, **VOTES)
    view = mixed.whole()
    (one,) = ensembles_of(view, mixed.knowledge, NOBODY, 1, 1000)
    counts = [view.tensors(m)["counts"] for m in view.select(kind="vote_counts")]
    samples = [view.tensors(m)["samples"] for m in view.select(kind="generated_samples")]
    assert torch.equal(one.values, torch.cat(counts).double() / 3)
    assert torch.equal(one.x, torch.cat(samples))
    assert {k: float(w[0]) for k, w in one.weights.items()} == pytest.approx(
        {f"client/{k}": 1 / 3 for k in range(3)}
    )
    (few,) = ensembles_of(view, mixed.knowledge, NOBODY, 1, 8)
    assert torch.equal(few.x, samples[0])


def test_the_parts_of_votes_are_the_shadows_own_votes(tmp_path: Path) -> None:
    mixed = Mixed(tmp_path, **VOTES)
    made = mixed.made()
    (reading,) = averages(
        mixed.whole(), mixed.knowledge, NOBODY, made, rounds=1, samples=99, most_steps=5, seed=0
    )
    assert set(reading.parts) == {"client/1", "client/2"}
    votes = reading.parts["client/1"].reshape(6, -1, 4)
    assert torch.allclose(votes.sum(2), torch.full(votes.shape[:2], 1 / 3).double())


def test_a_coalition_takes_its_own_votes_off(tmp_path: Path) -> None:
    mixed = Mixed(tmp_path, **VOTES)
    whole = mixed.whole()
    own = tuple(m for m in mixed.view.messages if m.kind == "hard_labels")
    messages = tuple(sorted({m.seq: m for m in (*whole.messages, *own)}.values(), key=lambda m: m.seq))
    (one,) = ensembles_of(replace(whole, messages=messages), mixed.knowledge, NOBODY, 1, 1000)
    assert set(one.weights) == {"client/1", "client/2"}
    assert torch.allclose(one.values.sum(1), torch.full((24,), 2 / 3).double())


# -- votes of clients that choose their samples -----------------------------------------------------------------


def selective(place: Path, case: Case, adversary: str, noise: float = 0.0, **params: Any) -> View:
    defenses = {("vote_counts", "server"): [defence("gaussian-noise", sigma=noise)]} if noise else {}
    others = torch.rand(20, 1, 6, 6, generator=stream(3)), torch.arange(20) % 4
    given = {
        "rounds": 2,
        "ensemble": "votes",
        "warm_up_steps": 30,
        "local_steps": 3,
        "batch_size": 8,
        "lr": 0.2,
    }
    return rehearsed(
        place / "votes",
        "selective-fd",
        [case.records, others, others],
        case.knowledge.public,
        adversary=adversary,
        defenses=defenses,
        **given | params,
    )


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("case"), True)


def test_counts_tell_how_many_clients_chose_a_sample(tmp_path: Path, case: Case) -> None:
    case.view = selective(tmp_path, case, "client/1", selector="confidence", tau_client=0.6)
    one = ensembles_of(case.view, case.knowledge, case.task, 1, 1000)[0]
    assert one.voters is not None
    assert int((one.voters < 3).sum()) > 0
    assert set(one.weights) == {"client/0", "client/2"}
    answers = {k: torch.rand(9, len(one.x), 4, generator=stream(5)).double() for k in one.weights}
    found = with_selectors(one, answers)
    behind = torch.stack([w[:, 0] > 0 for w in found.weights.values()]).sum(0)
    mine = (~one.known["client/1"][:, 0].isnan()).sum()
    assert int(behind.sum() + mine) == int(one.voters.sum())
    assert "average" in told(case)[1].note


def test_only_sets_of_the_counted_size_are_compared() -> None:
    """Without the count the two clients that are alike could stand for each other, or for both."""
    centre = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]).double()
    answers = {
        f"client/{k}": centre[k].expand(20, 30, 2) + 0.01 * torch.randn(20, 30, 2, generator=stream(k))
        for k in range(3)
    }
    ensemble = Ensemble(
        x=torch.zeros(30, 1), values=centre[0].expand(30, 2), form="soft_labels",
        weights=dict.fromkeys(answers, torch.ones(2) / 3), noise=0.0, round=0, selects=True,
        voters=torch.arange(30) % 2 + 1.0,
    )  # fmt: skip
    found = with_selectors(ensemble, answers)
    behind = torch.stack([found.weights[k][:, 0] > 0 for k in answers]).sum(0)
    assert torch.equal(behind, torch.arange(30) % 2 + 1)


def test_noise_on_counts_is_noise_on_shares(tmp_path: Path, case: Case) -> None:
    view = selective(tmp_path, case, "client/1", noise=2.0, selector="none")
    one = ensembles_of(view, case.knowledge, case.task, 1, 1000)[0]
    assert one.noise == pytest.approx(4 / 9)
    assert one.voters is None
    assert not one.selects


def test_an_average_of_no_sample_is_passed_over(tmp_path: Path, case: Case) -> None:
    view = rehearsed(
        tmp_path / "none", "selective-fd", [case.records] * 2, case.knowledge.public, adversary="client/1",
        rounds=4, labels="soft", warm_up_steps=0, local_steps=60, batch_size=8, lr=0.5, selector="none",
        tau_server=1.0,
    )  # fmt: skip
    sizes = [len(view.tensors(m)["values"]) for m in view.select(kind="ensemble_labels")]
    assert sizes[0] == 0 < max(sizes)
    first = next(k for k, size in enumerate(sizes) if size)
    assert ensembles_of(view, case.knowledge, case.task, 1, 1000)[0].round == first

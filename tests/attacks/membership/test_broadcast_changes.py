"""Coins read off the change of a broadcast model that averages clients' models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.attacks._shadows import many_at_once
from fdaudit.attacks.membership._derived import Reading, broadcast_changes, changes_of, joined
from fdaudit.attacks.membership._distilled import (
    distilled_broadcasts,
    readings_of_distilled,
    targets_of,
)
from fdaudit.attacks.membership._ridge import regressed_in_parts, regressed_sum, unexplained
from fdaudit.attacks.membership._study import Study
from fdaudit.attacks.membership.rehearsed_regression import RehearsedRegression, RehearsedRegressionConfig

from fdaudit.training.trainer import Parameters
from fdaudit.transcript.samples import sample_index
from fdaudit.types import AttackTask

from .rehearsed_cases import rehearsed, stream
from .test_coin_regression import Case

ATTACK = RehearsedRegression(RehearsedRegressionConfig(shadows=80, broadcasts=2))


def seen(
    place: Path, protocol: str, adversary: str = "client/1", clients: int = 2, **params: Any
) -> tuple[Case, AttackTask]:
    """Return a case in which client/0 holds one of each pair, with the view of a protocol that averages models."""
    case = Case(place / "case", True)
    settings = {"rounds": 2, "local_epochs": 3, "batch_size": 10, "lr": 0.3, **params}
    draws = stream(3)
    others = [(torch.rand(20, 1, 6, 6, generator=draws), torch.arange(20) % 4) for _ in range(clients - 1)]
    data, public = [case.records, *others], case.knowledge.public
    case.view = rehearsed(place / "transcript", protocol, data, public, adversary=adversary, **settings)
    return case, case.task


def guessed(case: Case, task: AttackTask) -> tuple[float, str]:
    guess = case.guess(ATTACK)
    return case.auc_of(guess), guess.note


def shadows_of(case: Case, task: AttackTask) -> Any:
    def made(start: Parameters) -> dict[str, Study]:
        return ATTACK._shadows(case.view, case.knowledge, task, start)

    return made


@pytest.mark.parametrize(
    ("protocol", "params"),
    [
        ("fedavg", {"upload": "model_parameters"}),
        ("fedavg", {"upload": "model_update", "weighting": "uniform"}),
        ("feddf", {"distill_steps": 5}),
    ],
)
def test_a_client_reads_members_off_the_models_that_it_receives(
    tmp_path: Path, protocol: str, params: dict[str, Any]
) -> None:
    found, note = guessed(*seen(tmp_path, protocol, **params))
    assert found > 0.8
    assert "broadcast model" in note


def test_a_server_under_secure_aggregation_reads_members_too(tmp_path: Path) -> None:
    params = {"upload": "model_update", "aggregation": "secure", "weighting": "uniform"}
    case, task = seen(tmp_path, "fedavg", "server", **params)
    assert not case.view.select(kind="model_update", sender="client/0")
    assert guessed(case, task)[0] > 0.8


def test_a_change_is_the_sum_of_all_clients_changes_at_their_weights(tmp_path: Path) -> None:
    case, task = seen(tmp_path, "fedavg", upload="model_parameters")
    first = changes_of(case.view, 1, shadows_of(case, task))[0]
    (start, end) = broadcast_changes(case.view)[0]
    mine = case.view.select(kind="model_parameters", sender="client/1")[0]
    before, after, own = (case.view.tensors(m) for m in (start, end, mine))
    flat = [torch.cat([m[n].flatten() for n in sorted(before)]) for m in (before, after, own)]
    weight = 20 / (20 + 16)  # of the victim's records only its half of the candidates is known
    assert torch.allclose(first.seen, flat[1] - flat[0] - weight * (flat[2] - flat[0]), atol=1e-5)
    assert list(first.parts) == ["client/0"]


def test_what_a_server_adds_is_taken_for_noise(tmp_path: Path) -> None:
    plain, task = seen(tmp_path / "a", "feddf", distill_steps=1, distill_lr=1e-9)
    (exact,) = changes_of(plain.view, 1, shadows_of(plain, task))
    moved, task = seen(tmp_path / "b", "feddf", distill_steps=50, distill_lr=0.01)
    (distilled,) = changes_of(moved.view, 1, shadows_of(moved, task))
    assert distilled.noise > 3 * exact.noise
    coins = shadows_of(moved, task)(moved.view.tensors(broadcast_changes(moved.view)[0][0]))["client/0"].coins
    (told,) = regressed_sum([(distilled.parts["client/0"], coins)], distilled.seen, distilled.noise)
    (blind,) = regressed_sum([(distilled.parts["client/0"], coins)], distilled.seen)
    assert told.right < blind.right


def test_a_noisy_reading_counts_less_among_others() -> None:
    part = torch.rand(9, 3, generator=stream(1))
    clear = Reading(seen=torch.ones(3), parts={"a": part})
    noisy = Reading(seen=torch.ones(3), parts={"a": part}, noise=100.0)
    found = joined([clear, noisy])
    assert float(found.seen[:3].norm()) > 5 * float(found.seen[3:].norm())


def test_rounds_that_a_client_missed_are_not_read(tmp_path: Path) -> None:
    case, _ = seen(
        tmp_path, "fedavg", upload="model_parameters", clients=4, fraction=0.5, rounds=8, local_epochs=1
    )
    pairs = broadcast_changes(case.view)
    assert all(end.round - start.round <= 1 for start, end in pairs)
    received = case.view.select(kind="model_parameters", sender="server")
    assert len(pairs) < len(received) - 1


def test_a_client_reads_members_off_models_that_were_distilled_from_answers(tmp_path: Path) -> None:
    case, task = seen(tmp_path, "feded", distill_steps=300, distill_lr=0.3)
    assert not broadcast_changes(case.view)
    assert [one.start.round for one in distilled_broadcasts(case.view)] == [0, 1]
    found, note = guessed(case, task)
    assert found > 0.8
    assert "distilled broadcast" in note


def test_classes_are_distilled_as_the_share_of_clients_that_named_each(tmp_path: Path) -> None:
    case, task = seen(tmp_path, "feded", share="hard_labels", distill_steps=2)
    one = distilled_broadcasts(case.view)[0]
    index = sample_index(case.view.tensors(one.asked))
    made = shadows_of(case, task)(case.view.tensors(one.start))
    train = many_at_once(case.knowledge)
    assert train is not None
    found = torch.stack(targets_of(case.view, case.knowledge, one, index, made, train, 5))
    assert found.shape == (5, len(index), case.knowledge.classes)
    assert set(found.unique().tolist()) <= {0.0, 0.5, 1.0}
    assert torch.equal(found.sum(2), torch.ones(5, len(index)))


def test_a_rehearsed_distillation_starts_where_the_server_s_did(tmp_path: Path) -> None:
    """A server that takes no step leaves its model as it was, and so do the rehearsals."""
    case, task = seen(tmp_path, "feded", distill_steps=1, distill_lr=1e-9)
    made = shadows_of(case, task)
    (first,) = readings_of_distilled(
        case.view, case.knowledge, case.challenge.x, made, most=1, rehearsals=6, seed=0
    )
    assert first.rehearsed is not None
    assert torch.allclose(first.rehearsed, first.seen.expand_as(first.rehearsed), atol=1e-5)
    total = sum(part[:6] for part in first.parts.values()) + first.residual
    assert torch.allclose(torch.as_tensor(total), first.rehearsed)


def test_a_model_without_its_request_is_not_taken_for_distilled(tmp_path: Path) -> None:
    case, task = seen(tmp_path, "fedavg")
    assert not distilled_broadcasts(case.view)
    case, task = seen(tmp_path / "b", "feded", "world")
    assert not distilled_broadcasts(case.view)
    assert "of models" in ATTACK.applicable(case.view, case.knowledge, task).reason


def test_an_upload_that_shadows_do_not_explain_counts_less() -> None:
    """FedGEN's clients learn generated features from the second round on, which no shadow does."""
    draws = stream(5)
    coins = (torch.rand(81, 6, generator=draws) < 0.5).float() * 2 - 1
    told = coins @ torch.randn(6, 50, generator=draws) + 0.5 * torch.randn(81, 50, generator=draws)
    later = coins @ torch.randn(6, 50, generator=draws) + 0.5 * torch.randn(81, 50, generator=draws)
    later[80] += 20 * torch.randn(50, generator=draws)
    noise = [unexplained([one[:80]], one[80]) for one in (told, later)]
    assert noise[1] > 30 * noise[0]
    parts = [(one[:80], one[80], n) for one, n in zip((told, later), noise, strict=True)]
    found = regressed_in_parts(parts, coins[:80], stack=False)
    assert torch.equal(found.coins.sign(), coins[80].double())
    blind = regressed_in_parts([(a, b, 0.0) for a, b, _ in parts], coins[:80], stack=False)
    truth = coins[80].double()
    assert float((found.coins - truth).square().mean()) < float((blind.coins - truth).square().mean())

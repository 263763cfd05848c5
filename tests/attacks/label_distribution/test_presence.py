"""The classes that a client holds, read off empty rows, fractions and classes that never occur."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.attacks.label_distribution.presence import (
    LabelPresence,
    LabelPresenceConfig,
    present_in_tables,
    records_of_class,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import fdaudit
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.audit.run import Run
from fdaudit.training.class_means import mean_by_class, predictions
from fdaudit.types import AttackTask

from ...helpers.doubles import SEED
from ...helpers.results import cell_of
from ...helpers.run_cases import three_clients
from ..membership import membership_cases as cases

CLASSES = cases.CLASSES


def spec(protocol: str, **params: Any) -> dict[str, Any]:
    """Five clients on digits with five classes each, as in the quickstart."""
    return three_clients(
        seed=SEED,
        clients=5,
        victims=5,
        dataset={"name": "digits", "limit": 1000},
        splits={"test": 0.25, "proxy": 0.35, "auxiliary": 0.1},
        partition={"name": "by-class", "classes_per_client": 5},
        model={"name": "mlp", "params": {"widths": [32]}},
        protocol={"name": protocol, "params": {"rounds": 8, "local_epochs": 5, **params}},
        adversaries=["server"],
        attacks=[{"name": "label-presence"}],
    )


def sets(run: Run) -> list[tuple[set[int], set[int]]]:
    """Return the true and the guessed classes of each victim."""
    cell = cell_of(run, "label-presence")
    assert cell["status"] == "run", cell["reason"]
    shares = [target["shares"] for target in cell["targets"]]
    return [tuple({c for c, v in enumerate(s[part]) if v > 0} for part in ("truth", "guess")) for s in shares]


@pytest.mark.parametrize("protocol", ["fkd", "pls"])
def test_the_class_sets_of_all_clients_are_exact(tmp_path: Path, protocol: str) -> None:
    found = sets(fdaudit.run(spec(protocol), tmp_path / "run"))
    assert len(found) == 5
    assert all(true == guess and len(true) == 5 for true, guess in found)


def guess(
    place: Path, messages: Any, target: str = "client/0", adversary: str = "server", **more: Any
) -> Any:
    attack, task = LabelPresence(LabelPresenceConfig()), AttackTask(targets=(target,))
    knowledge = Knowledge(classes=CLASSES)
    with cases.view(place, messages, adversary, **more) as view:
        told = attack.applicable(view, knowledge, task)
        if not told:
            return told.reason
        (found,) = attack.run(view, knowledge, task, torch.Generator())
        return found.distribution.tolist()


def table(*present: int) -> torch.Tensor:
    found = torch.zeros(CLASSES, CLASSES)
    for c in present:
        found[c] = 1 / CLASSES
    return found


@pytest.mark.parametrize("empty", [0.0, float("nan")], ids=["zeros", "nan"])
def test_empty_rows_name_the_classes_that_a_client_lacks(tmp_path: Path, empty: float) -> None:
    sent = table(1, 3)
    sent[[0, 2]] = empty
    messages = [("client/0", "server", "class_prototypes", {"values": sent})]
    assert guess(tmp_path / "a", messages) == [0, 0.5, 0, 0.5]
    messages = [("client/0", "server", "soft_labels", {"values": sent})]
    assert guess(tmp_path / "b", messages) == [0, 0.5, 0, 0.5]


def test_rows_of_all_rounds_count(tmp_path: Path) -> None:
    """PLS sends no row of a class that it predicts wrongly throughout, which changes as clients learn."""
    messages = [
        ("client/0", "server", "class_prototypes", {"values": table(1)}, 0),
        ("client/0", "server", "class_prototypes", {"values": table(1, 2)}, 1),
    ]
    assert guess(tmp_path / "a", messages) == [0, 0.5, 0.5, 0]


def test_a_client_learns_which_classes_no_other_client_has(tmp_path: Path) -> None:
    mine = torch.eye(CLASSES) * 0
    mine[0] = torch.tensor([0.7, 0.1, 0.1, 0.1])
    mean = table(2)
    mean[0] = mine[0]
    messages = [
        ("client/1", "server", "class_prototypes", {"values": mine}),
        ("server", "client/1", "class_prototypes", {"values": mean}),
    ]
    assert guess(tmp_path / "a", messages, adversary="client/1") == [0, 0, 1, 0]


def test_classes_that_are_never_predicted_are_absent(tmp_path: Path) -> None:
    hard = [
        (
            "client/0",
            "server",
            "hard_labels",
            {"index": torch.arange(4), "values": torch.tensor([1, 3, 3, -1])},
        )
    ]
    assert guess(tmp_path / "a", hard) == pytest.approx([0, 1 / 3, 0, 2 / 3])
    rows = torch.tensor([[0, 9.0, 0, 0], [0, 0, 0, 0], [0, 8, 0, 0]])
    logits = [("client/0", "server", "logits", {"index": torch.arange(3), "values": rows})]
    assert guess(tmp_path / "b", logits) == [0, 1, 0, 0]


def test_without_anything_to_read_it_says_so(tmp_path: Path) -> None:
    counts = [("client/0", "server", "class_counts", {"counts": torch.ones(CLASSES)})]
    reason = guess(tmp_path / "a", counts)
    assert all(kind in reason for kind in ("class_prototypes", "hard_labels", "soft_labels", "logits"))


@given(st.lists(st.integers(0, 12), min_size=CLASSES, max_size=CLASSES), st.integers(0, 2**31))
@settings(deadline=None, max_examples=40)
def test_counts_from_fractions_divide_the_true_ones(counts: list[int], seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    labels = torch.arange(CLASSES).repeat_interleave(torch.tensor(counts))
    tables = [
        mean_by_class(
            predictions(torch.randn(len(labels), CLASSES, generator=draws), "hard"), labels, CLASSES
        )
        for _ in range(3)
    ]
    found = records_of_class(tables)
    assert found is not None
    assert torch.equal(found > 0, torch.tensor(counts) > 0)
    alone = [n for n, got in zip(counts, found.tolist(), strict=True) if n and got == 1]
    for true, got in zip(counts, found.tolist(), strict=True):
        if true and got.is_integer() and not alone:
            assert true % got == 0 or got > true


def test_averaged_noise_leaves_the_classes() -> None:
    draws = torch.Generator().manual_seed(3)
    noisy = [table(0, 2) + 0.3 * torch.randn(CLASSES, CLASSES, generator=draws) for _ in range(60)]
    assert present_in_tables(noisy).tolist() == [True, False, True, False]

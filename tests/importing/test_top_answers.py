"""Records of answers about the k most likely classes are imported, checked and attacked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from fdaudit.attacks import REGISTRY
from fdaudit.attacks.label_distribution.presence import top_classes
from torch import Tensor

import fdaudit
from fdaudit.adversary.forms import with_every_class
from fdaudit.errors import SpecError
from fdaudit.importing.new_card import new_card
from fdaudit.testing import RecordedFederation

KINDS = ("top_logits", "top_soft_labels")


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_likeliest_classes_are_those_of_whole_answers(kind: str, k: int, tmp_path: Path) -> None:
    found = []
    for name in (kind, kind.removeprefix("top_")):
        run = RecordedFederation(kind=name, k=k).run(tmp_path / name)
        view = with_every_class(run.opened.view("server"), 3)
        found.append(top_classes(view, "client/0", 3))
    assert found[0] is not None
    assert torch.equal(found[0], found[1])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_attacks_read_them(kind: str, tmp_path: Path) -> None:
    run = RecordedFederation(kind=kind).run(tmp_path)
    cell = fdaudit.attack("label-presence", run)
    assert cell.status in ("run", "inconclusive"), cell.reason
    assert any(f.name == "label_kl_mean" and f.value is not None for f in cell.figures)


@pytest.mark.parametrize("kind", KINDS)
def test_every_attack_on_answers_declares_them(kind: str) -> None:
    for name in REGISTRY.names():
        card = REGISTRY.describe(name)
        for declared in (card.needs, card.reads):
            assert (kind in declared) == (kind.removeprefix("top_") in declared)


def test_without_an_attack_they_count_as_not_tested(tmp_path: Path) -> None:
    run = RecordedFederation(kind="top_logits").run(tmp_path)
    rows = [row for row in run.result.exposure if row.kind == "top_logits" and row.party == "server"]
    assert rows
    assert all(row.private and not row.unread for row in rows)
    assert "No leak" not in fdaudit.report(run, tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_new_card_names_them(tmp_path: Path) -> None:
    RecordedFederation(kind="top_soft_labels").run(tmp_path)
    card = yaml.safe_load(new_card(tmp_path / "record", tmp_path / "card.yaml").read_text())
    assert card["classes"] == "FILL IN"
    assert {m["kind"] for m in card["messages"]} == {"top_soft_labels"}


def twice(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {**tensors, "classes": torch.zeros_like(tensors["classes"])}


def outside(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {**tensors, "classes": tensors["classes"] + 1}


def too_many(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    n = len(tensors["values"])
    return {"values": torch.rand(n, 5), "classes": torch.arange(5).expand(n, 5).contiguous()}


def fractions(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {**tensors, "classes": tensors["classes"] / 2}


def ragged(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {**tensors, "classes": tensors["classes"][:, :1].contiguous()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (twice, r"record.kind.*names a class twice"),
        (outside, r"record.kind.*names class 3 of 3"),
        (too_many, r"card.classes.*names 5 classes a sample"),
        (fractions, r"record.kind.*no whole numbers"),
        (ragged, r"record.kind.*does not fit message"),
    ],
)
def test_strange_answers_are_refused(kind: str, sent, problem: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=problem):
        RecordedFederation(kind=kind, sent=sent).run(tmp_path)
    assert not (tmp_path / "run").exists()

"""Utility under a budget of time: on fewer test records where measuring would take long."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fdaudit.audit import simulation
from fdaudit.audit.pipeline import federated
from fdaudit.spec.schema import load_spec
from fdaudit.testing.specs import small_spec


def measured(place: Path, budget: float | None) -> list[tuple[str, int]]:
    """Who was measured on how many records."""
    spec = load_spec(small_spec(references=["standalone"], attacks=[]))
    federated(spec, place, budget=budget)
    with (place / "utility.csv").open() as file:
        return [(f"{row['line']} {row['party']}", int(row["n"])) for row in csv.DictReader(file)]


def test_a_budget_limits_the_test_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = measured(tmp_path / "whole", None)
    (all_of_them,) = {n for _, n in everything}
    assert measured(tmp_path / "enough", 60.0) == everything
    monkeypatch.setattr(simulation, "_TESTED", 1)
    monkeypatch.setattr(simulation, "_LEAST_TESTED", 5)
    few = measured(tmp_path / "few", 60.0)
    assert [who for who, _ in few] == [who for who, _ in everything]
    assert {n for _, n in few} == {5}
    assert all_of_them > 5

"""A run whose messages are recorded again, and imported, has the figures of the run: for every protocol and attack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fdaudit.protocols import REGISTRY

import fdaudit
from fdaudit import api
from fdaudit.audit.run import Run
from fdaudit.errors import RunError
from tests.helpers.rerecorded import audit_of, card_of, rerecord, with_coins
from tests.helpers.run_cases import three_clients

from ..helpers.results import cells_of

SETTINGS: dict[str, dict[str, Any]] = {
    "centralized": {"rounds": 1, "publish": True},
    "cronus": {"rounds": 2},
    "ds-fl": {"rounds": 2},
    "fedavg": {"rounds": 2, "batch_size": 2, "local_steps": 1, "upload": "model_update"},
    "feddf": {"rounds": 2},
    "fedftg": {"rounds": 2, "iterations": 2},
    "fedgems": {"rounds": 2},
    "fedgen": {"rounds": 2, "generator_steps": 5},
    "fediod": {"rounds": 2, "steps_per_round": 2, "samples": 8},
    "fedmd": {"rounds": 2},
    "fkd": {"rounds": 2},
    "pls": {"rounds": 2},
    "selective-fd": {"rounds": 2},
    "dafkd": {"rounds": 2},
}
"""Settings that make a protocol short; others have defaults that are short already."""


def spec_of(protocol: str) -> dict[str, Any]:
    """Three clients with 400 digits, so that every kind of attack has what it needs."""
    return three_clients(
        seed=7,
        dataset={"name": "digits", "limit": 400},
        splits={"test": 0.2, "proxy": 0.15, "auxiliary": 0.25, "candidates": 10},
        protocol={"name": protocol, "params": SETTINGS.get(protocol, {})},
        adversaries=["world" if protocol in ("centralized", "standalone") else "server", "eavesdropper"],
        attacks="all",
        power=False,
    )


def needs_a_clients_model(cell: dict[str, Any]) -> bool:
    """Return whether an attack asked a client's own model, or copied one: no recording has it."""
    asked = (cell["queries"] or {}).get("asked", ())
    copied = [t["target"] for t in cell["targets"]] if cell["goal"] == "model-extraction" else []
    return any(str(party).startswith("client/") for party in (*asked, *copied))


def without_head(cell: dict[str, Any]) -> dict[str, Any]:
    """Return a cell without the head of its questions, which are chained from the head of the record."""
    return {**cell, "queries": {**(cell["queries"] or {}), "head": ""}}


ALIKE = ("centralized", "cronus", "ds-fl", "feddf", "feded", "fedftg", "pls")
"""Protocols whose kinds of messages another one has too: only `make slow` runs them."""


def each_protocol() -> list[Any]:
    marks = {True: pytest.mark.slow, False: pytest.mark.thorough}
    return [pytest.param(name, marks=marks[name in ALIKE]) for name in REGISTRY.names()]


@pytest.mark.parametrize("protocol", each_protocol())
def test_a_recording_has_every_figure_of_its_run(protocol: str, tmp_path: Path) -> None:
    run = api.run(spec_of(protocol), tmp_path / "run")
    rerecord(run, tmp_path)
    if not run.result.plain()["run"]["messages"]:
        with pytest.raises(RunError, match="no closed round"):
            fdaudit.import_record(tmp_path / "record", tmp_path / "imported", card=card_of(run))
        return
    with_coins(tmp_path / "truth")
    again = fdaudit.import_record(
        tmp_path / "record",
        tmp_path / "imported",
        card=card_of(run),
        truth=[tmp_path / "truth"],
        audit={**audit_of(run), "attacks": "all"},
        seed_from=tmp_path / "run",
    )
    found = {cell.id: cell.plain() for cell in _attacked(again)}
    expected = cells_of(run)
    assert found.keys() == expected.keys()
    compared = [name for name, cell in expected.items() if not needs_a_clients_model(cell)]
    assert {n: found[n]["status"] for n in compared} == {n: expected[n]["status"] for n in compared}
    for name in compared:
        if expected[name]["status"] in ("run", "inconclusive"):
            assert without_head(found[name]) == without_head(expected[name]), name
    assert _traffic(again) == _traffic(
        run
    )  # without bytes: quantised logits are recorded as the floats they stand for


def _traffic(run: Run) -> list[tuple[str, str, int]]:
    return [(row["kind"], row["sender_role"], row["messages"]) for row in run.result.plain()["wire"]]


def _attacked(run: Run) -> list[Any]:
    from fdaudit.evaluation.runner import attack_cells

    return attack_cells(run.opened)

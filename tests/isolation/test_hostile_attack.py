"""An installed attack that attacks the auditor gets nothing that its case does not hold, and stops nothing."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fdaudit
from fdaudit.adversary.attack_plan import AttackPlan
from fdaudit.errors import SpecError
from fdaudit.evaluation.stage import Stage
from fdaudit.isolation.confinement import landlock_version
from fdaudit.planning.attacks import plan_attack
from fdaudit.result import Cell
from fdaudit.storage import scratch

from ..helpers.doubles import spec
from ..helpers.results import cells_of
from ..helpers.warm import forked_attackers
from .hostile_cases import hostile_package

VERSION = landlock_version()
WALLS = {  # what needs Landlock, and from which version on
    "read": 1, "listed": 1, "written": 1, "another's": 1, "temporary": 1, "processes": 1, "parent": 1, "traced": 1,
    "connected": 4, "signalled": 6,
}  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package `hostile_extras`, installed as far as Python can tell."""
    site = tmp_path_factory.mktemp("site")
    with hostile_package(site):
        yield site


@pytest.fixture(scope="module")
def run(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    """A finished run that nobody has attacked."""
    place = tmp_path_factory.mktemp("hostile") / "run"
    return fdaudit.run(spec(attacks=[], adversaries=["world"], queries=60), place)


@pytest.fixture
def forked() -> Iterator[None]:
    """For tests of what the auditor does with an attack's answers: the attack's process need not be a new program."""
    with forked_attackers():
        yield


@cache
def asked_of(run: fdaudit.Run) -> AttackPlan:
    with forked_attackers():
        return plan_attack("hostile", {}, run.case.spec, "attack", ("world",))


def cell_of(run: fdaudit.Run, mode: str, **params: Any) -> Cell:
    """What becomes of the hostile attack on the released model."""
    stage = Stage(run.opened)
    asked = replace(asked_of(run), params={"mode": mode, **params})
    with stage.adversary("world") as adversary:
        return stage.cell(adversary, asked)


def found_by(cell: Cell) -> dict[str, Any]:
    assert cell.status == "failed"
    kind, _, text = cell.reason.partition(": ")
    assert kind == "FoundError", cell.reason
    found: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]  # the place of the error follows
    return found


@pytest.fixture(scope="module")
def looked(run: fdaudit.Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What it found when it looked everywhere, told even where the run lies."""
    other = tmp_path_factory.mktemp("other")
    (other / "file").write_text("somebody else's")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOME_SECRET", "a token of the user's")
        patch.setenv("FDAUDIT_DATA", str(other))
        patch.setenv("FDAUDIT_CACHE", str(other / "cache"))
        return found_by(cell_of(run, "snoop", place=str(run.directory), other=str(other)))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "where", ["at import", "objects", "frames", "environment", "arguments", "descriptors", *WALLS]
)
def test_it_finds_nothing_of_the_auditors(looked, where):
    if WALLS.get(where, 0) > VERSION:
        pytest.skip(f"this system offers Landlock {VERSION}; {WALLS[where]} is needed")
    assert not looked[where]


def test_the_search_finds_what_there_is_to_find(run, installed, tmp_path):
    """In the auditor's own process the same search finds all of it."""
    source = installed / "hostile_extras" / "attack.py"
    made = importlib.util.module_from_spec(importlib.util.spec_from_file_location("searched", source))
    made.__spec__.loader.exec_module(made)
    (tmp_path / "file").touch()
    held = (run.case, open(run.directory / "result.json"))  # noqa: SIM115  # a descriptor to be found
    with pytest.MonkeyPatch.context() as patch, held[1]:
        patch.setenv("SOME_SECRET", "x")
        found = made._looks(str(run.directory), str(tmp_path))
    for where in (
        "objects",
        "frames",
        "environment",
        "descriptors",
        "read",
        "listed",
        "written",
        "another's",
    ):
        assert found[where], where
    assert {"temporary", "processes", "parent", "signalled"} <= {k for k, v in found.items() if v}


def test_the_auditor_never_loads_its_code(looked):
    assert not [name for name in sys.modules if name.startswith("hostile_extras")]


@pytest.mark.thorough
@pytest.mark.usefixtures("forked")
def test_it_is_run_from_the_command_line_too(run, installed, tmp_path):
    wanted = spec(
        attacks=[{"name": "hostile", "params": {"mode": "guess"}}, {"name": "loss-threshold"}],
        adversaries=["world"],
    )
    made = fdaudit.run(wanted, tmp_path / "run")
    found = cells_of(made, requested=True)
    assert found["world/hostile"]["status"] == "inconclusive"  # its guesses are all alike
    assert found["world/hostile"]["queries"]["spent"] == 0
    assert found["world/loss-threshold"]["status"] == "run"
    assert made.verify() == []


@pytest.mark.usefixtures("forked")
def test_what_it_asks_is_counted_from_the_bytes(run):
    cell = cell_of(run, "overdraw")
    assert cell.status == "failed"
    assert cell.reason.startswith("BudgetExceededError: ")
    assert "budget of 60" in cell.reason


@pytest.mark.thorough
@pytest.mark.usefixtures("forked")
def test_a_question_and_a_guess_of_a_class_of_its_own_are_plain_here(run):
    cell = cell_of(run, "subclass")
    assert cell.status == "inconclusive", cell.reason
    assert cell.queries is not None
    assert (cell.queries.spent, cell.queries.asked) == (5, ("oracle",))
    assert not Path("/tmp/fdaudit-was-here").exists()  # where the plug-in would have left it


@pytest.mark.usefixtures("forked")
def test_what_is_no_frame_fails_its_cell_and_runs_nothing(run):
    cell = cell_of(run, "pickled")
    assert cell.status == "failed"
    assert cell.reason.startswith("MalformedError: ")
    assert not Path("/tmp/fdaudit-was-here").exists()


@pytest.mark.thorough
@pytest.mark.usefixtures("forked")
def test_a_link_in_place_of_its_output_shows_nothing_of_the_auditors(run, tmp_path, capfd):
    private = tmp_path / "private"
    private.write_text("PRIVATE")
    cell = cell_of(run, "linked", place=str(private))
    assert cell.status in ("run", "inconclusive"), cell.reason
    assert "PRIVATE" not in capfd.readouterr().err


@pytest.mark.thorough
def test_its_death_fails_its_cell_alone_and_leaves_nothing_behind(run):
    cell = cell_of(run, "death")
    assert cell.status == "failed"
    assert "ended before" in cell.reason
    assert not [folder for root in scratch._held for folder in root.glob("attack-*")]


@pytest.mark.thorough
@pytest.mark.skipif(not VERSION, reason="this system offers no Landlock")
def test_one_case_leaves_nothing_for_the_next(run):
    assert [found_by(cell_of(run, "remember"))["read"] for _ in range(2)] == [[], []]
    left = [p for p in ("/tmp", "/dev/shm", os.getcwd(), Path.home()) if Path(p, "fdaudit-note").exists()]
    assert left == []


@pytest.mark.thorough
def test_its_settings_are_checked_where_its_code_may_run(run):
    with pytest.raises(SpecError, match=r"^attack\.mood: "):
        plan_attack("hostile", {"mood": "bad"}, run.case.spec, "attack", ("world",))

"""Deviations that fit a recording: listed as not tried, and measured on a stand-in of auxiliary records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fdaudit.deviations import REGISTRY
from fdaudit.reports.public import public
from fdaudit.reports.run.front import front
from fdaudit.reports.untried import not_tried

import fdaudit
from fdaudit.audit.run import Run
from fdaudit.audit.summary import conclude
from fdaudit.errors import RunError
from fdaudit.importing.untried import measure_untried
from fdaudit.result import StandInFigures
from fdaudit.storage.vault import Secrets
from fdaudit.types import Figure

from ..helpers.command import Cli
from ..helpers.rerecorded import audit_of, card_of, rerecord
from ..helpers.run_cases import finished, known

pytestmark = pytest.mark.thorough
Importing = Callable[..., Run]
SHIPPED = [n for n in REGISTRY.names() if "model_parameters" in REGISTRY.describe(n).changes]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A federation that fdaudit ran, and its record and truth as another system's."""
    home = tmp_path_factory.mktemp("source")
    run = Run(
        finished(
            home / "run",
            clients=3,
            dataset__limit=900,
            splits={"test": 0.2, "proxy": 0.0, "auxiliary": 0.4, "candidates": 4},
            model__params__widths=[128, 32],
            protocol__params={"rounds": 2, "batch_size": 8, "local_steps": 1, "upload": "model_update"},
            attacks=[],
        )
    )
    rerecord(run, home)
    return run, home


def imported(source: tuple[Run, Path], out: Path, truth: bool = True) -> Run:
    run, home = source
    return fdaudit.import_record(
        home / "record",
        out,
        card=card_of(run),
        truth=[home / "truth"] if truth else [],
        audit={**audit_of(run), "attacks": [{"name": "analytic"}]},
    )


def test_what_fits_a_recording_is_listed_as_not_tried(source: tuple[Run, Path], tmp_path: Path) -> None:
    run = imported(source, tmp_path / "run")
    recording = run.result.run.recording
    assert recording is not None
    listed = [(one.name, one.role) for one in recording.untried]
    assert listed == [(name, REGISTRY.describe(name).roles[0]) for name in SHIPPED]
    assert {role for _, role in listed} == {"server", "client"}
    said = not_tried(run.result)
    assert all(name in said and f"of the {role}" in said for name, role in listed)
    assert "not measured" in said
    assert said in front(run.result).untested


def test_a_simulation_lists_none(source: tuple[Run, Path]) -> None:
    run, _ = source
    assert not_tried(run.result) == ""
    with pytest.raises(RunError, match="is a simulation"):
        measure_untried(run)


def test_without_auxiliary_records_there_is_no_stand_in(source: tuple[Run, Path], tmp_path: Path) -> None:
    run = imported(source, tmp_path / "run", truth=False)
    with pytest.raises(RunError, match="no stand-in"):
        measure_untried(run)


def test_the_effect_is_measured_without_and_with_each_deviation(
    source: tuple[Run, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    run = imported(source, tmp_path / "run")
    # In some draws no client's batch holds the class that is fished for, so that there is nothing to measure.
    monkeypatch.setattr(Secrets, "draw", lambda seed=None: known(7 if seed is None else seed))
    code, said, _ = cli("active", run.directory)
    assert code == 0
    assert "without it" in said
    recording = Run(run.directory).result.run.recording
    assert recording is not None
    gains = {}
    for one in recording.untried:
        assert "3 clients" in one.stand_in
        assert [f.attack for f in one.measured] == list(REGISTRY.describe(one.name).read_by)
        images = [f for f in one.measured if f.attack == "analytic"]
        if one.role != "server" or not images:  # others are read by attacks on members, or on classes
            continue
        (figures,) = images
        assert figures.goal == "reconstruction"
        assert figures.honest is not None
        assert figures.active is not None
        gains[one.name] = (figures.active.value or 0.0) - (figures.honest.value or 0.0)
    assert gains["imprint"] > 5.0
    shown = public(Run(run.directory).result)
    assert shown.run.recording is not None
    assert [one.name for one in shown.run.recording.untried] == SHIPPED
    assert not any(one.measured or one.stand_in for one in shown.run.recording.untried)
    page = (run.directory / "report" / "index.html").read_text(encoding="utf-8")
    assert "Not tried" in page


def test_a_budget_that_is_too_short_says_so(source: tuple[Run, Path], tmp_path: Path) -> None:
    run = imported(source, tmp_path / "run")
    measured = measure_untried(run, budget="1s")
    assert all("left no time" in one.reason and not one.measured for one in measured)
    assert "effect not measured" in not_tried(Run(run.directory).result)


def test_kept_measurements_that_are_damaged_name_the_remedy(source: tuple[Run, Path], tmp_path: Path) -> None:
    run = imported(source, tmp_path / "run")
    (run.directory / "vault" / "untried.json").write_text(json.dumps({"untried": [{}]}), encoding="utf-8")
    with pytest.raises(RunError, match="fdaudit active RUN"):
        conclude(run.opened)


@pytest.mark.parametrize(
    ("honest", "active", "parts"),
    [((1.0, 2.0), (3.0, 4.0), True), ((1.0, 3.0), (2.0, 4.0), False), ((1.0, None), (3.0, 4.0), False)],
)
def test_a_gain_is_shown_only_where_intervals_part(honest: Any, active: Any, parts: bool) -> None:
    def figure(low: float, high: float | None) -> Figure:
        return Figure(name="psnr_gain", value=low, low=low, high=high)

    assert StandInFigures(attack="a", goal="g", honest=figure(*honest), active=figure(*active)).parts == parts

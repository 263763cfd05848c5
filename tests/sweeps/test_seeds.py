"""One spec with several seeds: a sweep that resumes, whose figures have intervals over the seeds."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fdaudit.reports.curves.sweep_rows import spread_of

import fdaudit
from fdaudit.errors import RunError
from fdaudit.parallel.pool import Answer
from fdaudit.spec.schema import load_spec
from fdaudit.sweeps.grid import expand, load_grid
from fdaudit.sweeps.index import read_index
from fdaudit.sweeps.seeds import over_seeds, seed_grid
from fdaudit.sweeps.sweep import sweep
from fdaudit.testing.specs import small_spec

from ..helpers.cli_cases import Shell
from ..helpers.refusals import refused
from ..helpers.sweep_cases import grid, inline

pytestmark = pytest.mark.usefixtures("forked_processes")


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    monkeypatch.setattr("fdaudit.sweeps.sweep.local", lambda workers=None: inline)
    return Shell(monkeypatch, capsys, tmp_path / "home")


def test_seeds_follow_the_spec_s_and_end_where_a_seed_must() -> None:
    spec = load_spec(small_spec(seed=7))
    runs = expand(load_grid(seed_grid(spec, 3)))
    assert [run.seed for run in runs] == [7, 8, 9]
    for run in runs:
        assert run.spec is not None
        assert run.spec.model_copy(update={"seed": 7, "name": spec.name}) == spec
    drawn = load_spec({**small_spec(), "seed": None})
    assert [run.seed for run in expand(load_grid(seed_grid(drawn, 2)))] == [1, 2]
    last = load_spec(small_spec(seed=2**63 - 2))
    refused(lambda: seed_grid(last, 5), "seed", 2**63 - 2, said="5 seeds")


def test_a_spec_runs_with_several_seeds_and_more_are_added(shell: Shell) -> None:
    spec = shell.spec()
    said, _ = shell.told("run", spec, "--seeds", 2, "--out", "both")
    assert "n = 2" in said
    assert "95 % intervals" in said
    assert said.splitlines()[-1] == "report  both/report/index.html"
    index = read_index(shell.home / "both")
    assert [(e.seed, e.status) for e in index.runs] == [(7, "done"), (8, "done")]
    places = {e.key: shell.home / "both" / "runs" / e.key for e in index.runs}
    before = {key: (place / "result.json").stat().st_mtime_ns for key, place in places.items()}
    value = shell.json("run", spec, "--seeds", 3, "--out", "both", "--resume")
    assert {key: (place / "result.json").stat().st_mtime_ns for key, place in places.items()} == before
    (runs,) = over_seeds(shell.home / "both").values()
    utilities = []
    for place in runs:
        final = fdaudit.load(place).result.utility.final
        utilities.append(next(f.figure.value or 0.0 for f in final if f.party == "server"))
    expected = spread_of(utilities, 1.0)
    found = value["over_seeds"]["utility"]
    assert (found["n"], found["mean"], found["low"], found["high"]) == (
        3,
        expected.mean,
        expected.low,
        expected.high,
    )


def test_a_comparison_takes_the_seeds_of_a_sweep_as_one_row(shell: Shell) -> None:
    spec = shell.spec()
    shell.told("run", spec, "--seeds", 2, "--out", "both", "--no-report")
    shell.told("run", spec, "--out", "one", "--no-report")
    shell.told("compare", "both", "one", "--out", "compared")
    rows = json.loads((shell.home / "compared" / "comparison.json").read_bytes())["runs"]
    assert [(row["name"], row["seeds"]) for row in rows] == [("both", 2), ("one", 1)]
    assert rows[0]["over_seeds"]["bytes"]["n"] == 2
    said, _ = shell.told("compare", "both", "one", "--out", "compared", "--latex")
    assert said.splitlines().count(r"\toprule") == 2
    assert any(line.startswith("both & ") for line in said.splitlines())
    assert (
        shell.json("compare", "both", "one", "--out", "compared", "--latex")["latex"].strip() == said.strip()
    )
    table, _ = shell.told("curve", "both", "--out", "drawn", "--latex")
    assert table.count(r"\toprule") == 1
    assert "fedavg & none" in table


def test_a_gate_that_a_seed_fails_ends_the_command_with_1(shell: Shell) -> None:
    spec = shell.spec(gates={"utility": 0.999})
    said, err = shell.told("run", spec, "--seeds", 2, "--out", "both", code=1)
    assert [line.split(": ")[1] for line in err.splitlines() if "gate utility failed" in line] == [
        "seed 7",
        "seed 8",
    ]
    assert "n = 2" in said


def test_a_run_that_fails_is_named_and_the_other_seeds_stay(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(pieces: Sequence[Mapping[str, Any]]) -> Generator[Answer, None, None]:
        yield 0, {"status": "failed", "reason": "disk full"}
        yield from ((n + 1, answer) for n, answer in inline(pieces[1:]))

    monkeypatch.setattr("fdaudit.sweeps.sweep.local", lambda workers=None: failing)
    said, err = shell.told("run", shell.spec(), "--seeds", 2, "--out", "both", code=1)
    assert "disk full" in err
    assert "seed 7" in err
    assert "n = 1" in said


@pytest.mark.parametrize("option", [("--budget", "9m"), ("--seed-from", "x")])
def test_what_does_not_go_with_seeds_is_refused(option: tuple[str, str], shell: Shell) -> None:
    spec = shell.spec()
    said = shell.refused("run", spec, "--seeds", 2, *option)
    assert re.search(f"{option[0]}.* with --seeds", said)
    assert "is missing" in shell.refused("run", "--seeds", 2, "--resume", "--out", "x")


def test_runs_under_one_name_differ_in_their_seeds_alone(tmp_path: Path) -> None:
    first = fdaudit.run(small_spec(seed=1), tmp_path / "a")
    second = fdaudit.run(small_spec(seed=2), tmp_path / "b")
    other = fdaudit.run(small_spec(seed=3, clients=3), tmp_path / "c")
    page = fdaudit.compare({"x": [first, second], "y": other}, tmp_path / "out")
    rows = json.loads(page.with_name("comparison.json").read_bytes())["runs"]
    assert [(row["name"], row["seeds"]) for row in rows] == [("x", 2), ("y", 1)]
    for groups, said in (
        ({"x": [first, other]}, "differ in clients"),
        ({"x": [first, first]}, "twice"),
        ({"x": [], "y": [first, second]}, "no runs"),
    ):
        with pytest.raises(RunError, match=said):
            fdaudit.compare(groups, tmp_path / "no")
    assert not (tmp_path / "no").exists()


@pytest.mark.thorough
def test_points_of_a_sweep_are_rows_of_their_own(tmp_path: Path) -> None:
    sweep(grid(keep="runs"), tmp_path / "out", executor=inline)
    groups = over_seeds(tmp_path / "out")
    assert {name: len(runs) for name, runs in groups.items()} == {
        "fedavg": 2,
        "standalone": 2,
        "fedavg, clipped at 8": 2,
    }

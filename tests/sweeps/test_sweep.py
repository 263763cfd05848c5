"""Sweeps: each run is a run like any other, whatever interrupts it; what fails or does not apply is shown."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import fdaudit
from fdaudit.errors import RunError, SpecError, UsageError
from fdaudit.parallel.pool import Answer
from fdaudit.storage.locks import writing
from fdaudit.storage.timings import read_timings
from fdaudit.sweeps import sweep as engine
from fdaudit.sweeps.grid import expand, load_grid
from fdaudit.sweeps.index import Index, read_index

from ..helpers import warm
from ..helpers.command import Cli
from ..helpers.refusals import refused
from ..helpers.run_cases import tree
from ..helpers.sweep_cases import grid, inline

pytestmark = pytest.mark.usefixtures("forked_processes")


def nowhere(pieces: Sequence[Mapping[str, Any]]) -> Generator[Answer, None, None]:
    """An executor that must have nothing to do."""
    assert not pieces
    yield from ()


def statuses(index: Index) -> dict[tuple[str, str, int], str]:
    return {(e.protocol, e.defence, e.seed): e.status for e in index.runs if e.in_grid}


def results(out: Path) -> dict[str, bytes]:
    return {p.parent.name: p.read_bytes() for p in sorted(out.glob("runs/*/result.json"))}


def by_itself(out: Path, made: Mapping[str, Any], folder: Path) -> dict[str, bytes]:
    """Results of the grid's specs by `fdaudit run`, with the seeds and secrets that the sweep keeps."""
    found = {}
    for run in expand(load_grid(made)):
        if run.spec is not None and engine.run_directory(out, run.key).is_dir():
            shared = engine.shared_directory(out, run.spec)
            ran = fdaudit.run(run.spec, folder / run.key, seed_from=shared)
            found[run.key] = (ran.directory / "result.json").read_bytes()
    return found


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    engine.sweep(grid(), out, executor=inline)
    return out


# -- a finished sweep ----------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_every_run_is_what_its_spec_makes_by_itself(done: Path, tmp_path: Path) -> None:
    index = read_index(done)
    assert statuses(index) == {
        ("fedavg", "none", 1): "done",
        ("fedavg", "none", 2): "done",
        ("standalone", "none", 1): "done",
        ("standalone", "none", 2): "done",
        ("fedavg", "clipped", 1): "done",
        ("fedavg", "clipped", 2): "done",
        ("standalone", "clipped", 1): "not-applicable",
        ("standalone", "clipped", 2): "not-applicable",
    }
    assert all("model_update" in e.reason for e in index.runs if e.status == "not-applicable")
    assert results(done) == by_itself(done, grid(), tmp_path)
    assert len(results(done)) == 6


def test_a_seed_gives_all_runs_the_same_records_and_another_seed_others(done: Path) -> None:
    tables: dict[int, set[str]] = {}
    for entry in read_index(done).runs:
        if entry.status == "done":
            value = json.loads((engine.run_directory(done, entry.key) / "result.json").read_bytes())
            tables.setdefault(entry.seed, set()).add(
                json.dumps([value["class_table"], value["run"]["seed_commitment"]])
            )
    assert {seed: len(found) for seed, found in tables.items()} == {1: 1, 2: 1}
    assert tables[1] != tables[2]


def test_results_stay_and_records_go(done: Path) -> None:
    for entry in read_index(done).runs:
        place = engine.run_directory(done, entry.key)
        if entry.status == "done":
            assert {p.name for p in place.iterdir()} == set(engine.KEPT)
            assert entry.seconds == pytest.approx(sum(read_timings(place).values()), abs=1e-3)
        else:
            assert not place.exists()
    assert not (done / "scratch").exists()
    vaults = list(done.rglob("vault"))
    assert {v.parent.parent.name for v in vaults} == {"shared"}
    assert {v.stat().st_mode & 0o777 for v in vaults} == {0o700}


def test_points_are_begun_with_different_seeds_and_every_run_is_done_once(tmp_path: Path) -> None:
    handed = list[Mapping[str, Any]]()

    def noting(pieces: Sequence[Mapping[str, Any]]) -> Generator[Answer, None, None]:
        handed.extend(pieces)
        yield from ()

    index = engine.sweep(grid(seeds=[1, 2, 3]), tmp_path / "out", executor=noting)
    entries = {e.key: e for e in index.runs}
    met = [entries[Path(piece["run"]).name] for piece in handed]
    assert sorted(e.key for e in met) == sorted(e.key for e in index.runs if e.status == "pending")
    points = [(e.protocol, e.defence, e.epsilon) for e in met]
    assert [e.seed for e in met] == [1, 2, 3, 2, 3, 1, 3, 1, 2]
    assert [len({p["like"] for p in handed[n : n + 3]}) for n in (0, 3, 6)] == [1, 1, 1]
    assert len({p["like"] for p in handed}) == len(set(points)) == 3


def test_a_finished_sweep_has_nothing_to_do(done: Path) -> None:
    before = tree(done)
    engine.sweep(grid(), done, resume=True, executor=nowhere)
    assert tree(done) == before


def test_whole_runs_are_kept_where_the_grid_says_so(tmp_path: Path) -> None:
    small = grid(keep="runs", seeds=[1], defences=[], epsilon=["inf"])
    index = engine.sweep(small, tmp_path / "out", executor=inline)
    for entry in index.runs:
        assert fdaudit.load(engine.run_directory(tmp_path / "out", entry.key)).verify() == []


# -- interruptions -------------------------------------------------------------------------------------------------


def _children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def _until(condition: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.thorough
def test_killed_in_the_middle_it_leaves_no_process_and_goes_on_to_the_same_results(tmp_path: Path) -> None:
    made = grid(defences=[], epsilon=["inf"], seeds=[1, 2])
    made["protocols"] = made["protocols"][:1]
    made["protocols"][0]["params"]["rounds"] = 75
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(made))
    out = tmp_path / "out"
    command = ["-m", "fdaudit", "sweep", str(tmp_path / "grid.yaml"), "--out", str(out)]
    process = warm.Started([*command, "--workers", "1"], stdout=subprocess.DEVNULL)
    try:
        # One run is done, and another has whole rounds on record but no end.
        _until(lambda: any(out.glob("runs/*/run.json")))
        finished = {p.parent.name for p in out.glob("runs/*/run.json")}
        _until(
            lambda: any(
                p.parents[1].name not in finished and not (p.parents[1] / "manifest.json").exists()
                for p in out.glob("runs/*/vault/round.json")
            )
        )
        workers = _children(process.pid)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(workers) == 1
    _until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 30)
    assert len(results(out)) == 1
    touched = {p: p.stat().st_mtime_ns for p in out.glob("runs/*/run.json")}
    index = engine.sweep(made, out, resume=True, executor=inline)
    assert [e.status for e in index.runs] == ["done", "done"]
    assert {p: p.stat().st_mtime_ns for p in touched} == touched, "finished runs are not run again"
    assert results(out) == by_itself(out, made, tmp_path / "alone")


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["perform", "note", "prune"])
def test_stopped_at_a_seam_it_goes_on(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, out = grid(seeds=[1], defences=[], epsilon=["inf"]), tmp_path / "out"
    made["protocols"] = made["protocols"][:1]

    def stops(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if where == "perform":
            patch.setattr("fdaudit.audit.pipeline.conclude", stops)
        elif where == "note":
            patch.setattr(engine, "save_json", stops)
        else:
            patch.setattr(engine._Book, "_prune", stops)
        with pytest.raises(KeyboardInterrupt):
            engine.sweep(made, out, executor=inline)
    assert read_index(out).count("pending") == 1
    engine.sweep(made, out, resume=True, executor=inline)
    assert results(out) == by_itself(out, made, tmp_path / "alone")
    for entry in read_index(out).runs:
        if entry.status == "done":
            assert {p.name for p in engine.run_directory(out, entry.key).iterdir()} == set(engine.KEPT)


def test_a_changed_grid_adds_runs_and_marks_those_that_it_no_longer_has(done: Path, tmp_path: Path) -> None:
    import shutil

    out = tmp_path / "out"
    shutil.copytree(done, out)
    index = engine.sweep(grid(seeds=[2, 3]), out, resume=True, executor=inline)
    inside = {e.seed: e.status for e in index.runs if e.in_grid and e.protocol == "fedavg"}
    assert inside == {2: "done", 3: "done"}
    outside = [e for e in index.runs if not e.in_grid]
    assert {e.seed for e in outside} == {1}
    assert all(
        (engine.run_directory(out, e.key) / "result.json").is_file() for e in outside if e.status == "done"
    )
    back = engine.sweep(grid(seeds=[1, 2, 3]), out, resume=True, executor=nowhere)
    assert all(e.in_grid for e in back.runs)


# -- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_failed_run_is_shown_and_the_others_go_on(tmp_path: Path, cli: Cli) -> None:
    made = grid(seeds=[1], defences=[], epsilon=["inf"])
    made["protocols"].insert(0, {"name": "fedavg", "label": "wild", "params": {"rounds": 40, "lr": 1e30}})
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(made))
    out = tmp_path / "out"
    code, said, err = cli("sweep", tmp_path / "grid.yaml", "--out", out, "--workers", 1)
    assert code == 1
    assert {k[0]: s for k, s in statuses(read_index(out)).items()} == {
        "wild": "failed",
        "fedavg": "done",
        "standalone": "done",
    }
    (line,) = err.splitlines()
    assert re.match("fdaudit: wild,.* seed 1", line)
    assert "TrainingDivergedError" in line
    assert re.search(r"wild, none\s+1\sfailed", said)
    tried: list[Mapping[str, Any]] = []

    def counting(pieces: Sequence[Mapping[str, Any]]) -> Generator[Answer, None, None]:
        tried.extend(pieces)
        yield from inline(pieces)

    index = engine.sweep(made, out, resume=True, executor=counting)
    assert len(tried) == 1, "a failed run is tried again, and nothing else is"
    assert index.count("failed") == 1


def test_a_lost_process_fails_its_run_alone(tmp_path: Path) -> None:
    def losing(pieces: Sequence[Mapping[str, Any]]) -> Generator[Answer, None, None]:
        yield 0, None
        yield from ((n + 1, line) for n, line in inline(pieces[1:]))

    index = engine.sweep(grid(seeds=[1]), tmp_path / "out", executor=losing)
    assert [e.status for e in index.runs].count("failed") == 1
    assert index.count("done") == 2
    assert "ended before" in next(e.reason for e in index.runs if e.status == "failed")


@pytest.mark.usefixtures("attacks_here")
def test_a_failed_attack_of_a_finished_run_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fdaudit.attacks.loss_threshold import LossThreshold

    def broken(self: Any, *arguments: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(LossThreshold, "run", broken)
    made = grid(seeds=[1], defences=[], epsilon=["inf"], base__attacks=[{"name": "loss-threshold"}])
    index = engine.sweep(made, tmp_path / "out", executor=inline)
    reasons = {e.protocol: e.reason for e in index.runs}
    assert index.count("done") == 2
    assert reasons["fedavg"].startswith("server/loss-threshold failed: RuntimeError")


def test_a_defence_that_fits_nothing_is_a_mistake(tmp_path: Path) -> None:
    made = grid()
    made["defences"][0]["spec"]["defenses"][0]["name"] = "gaussian-nose"
    with pytest.raises(SpecError, match="fits no protocol"):
        engine.sweep(made, tmp_path / "out", executor=nowhere)
    made = grid()
    made["defences"][0]["protocols"] = {"standalone": made["defences"][0]["spec"]}
    with pytest.raises(SpecError, match="standalone, clipped, ε"):
        engine.sweep(made, tmp_path / "out", executor=nowhere)
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_defence_must_be_possible(tmp_path: Path) -> None:
    unknown = grid(base__dataset={"name": "digit"})
    act = partial(engine.sweep, unknown, tmp_path / "out", executor=nowhere)
    refused(act, "dataset.name", "digit", ["digits"], kind=UsageError)
    assert not (tmp_path / "out").exists()


# -- the directory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("what", ["file", "folder", "link"])
def test_what_is_in_the_way_is_left_alone(what: str, resume: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if what == "file":
        out.write_text("mine")
    elif what == "folder":
        (out / "runs").mkdir(parents=True)
    else:
        out.symlink_to(tmp_path / "nowhere")
    before = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*"))
    with pytest.raises(RunError, match="out"):
        engine.sweep(grid(), out, resume=resume, executor=nowhere)
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")) == before


def test_two_sweeps_do_not_share_a_directory(done: Path) -> None:
    with writing(done):
        refused = ThreadPoolExecutor(1).submit(engine.sweep, grid(), done, resume=True, executor=nowhere)
        with pytest.raises(RunError, match="by another process"):
            refused.result()


@pytest.mark.parametrize(
    "damage",
    [
        {"schema": "fdaudit-sweep/9"},
        {"runs": [{"key": "../../../../etc", "protocol": "a", "defence": "b", "epsilon": 1, "seed": 1}]},
        {"runs": [{"key": "0" * 16, "protocol": "a", "defence": "b", "epsilon": -1, "seed": 1}]},
        {"more": 1},
    ],
)
def test_a_changed_index_is_refused(damage: dict[str, Any], done: Path, tmp_path: Path) -> None:
    value = json.loads((done / "sweep.json").read_bytes())
    (tmp_path / "sweep.json").write_text(json.dumps({**value, **damage}))
    with pytest.raises(SpecError):
        read_index(tmp_path)


def test_the_command_prints_its_index(done: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid(epsilon=[8, math.inf])))
    code, out, err = cli("sweep", tmp_path / "grid.yaml", "--out", done, "--resume", "--json")
    value = json.loads(out)
    assert (code, err, value.pop("sweep")) == (0, "", str(done))
    assert value == json.loads((done / "sweep.json").read_bytes())
    code, out, _ = cli("sweep", tmp_path / "grid.yaml", "--out", done)
    assert (code, out) == (2, "")

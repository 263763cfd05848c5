"""What a node does with a run that it does not share: the same bytes, nothing left; without Ray."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fdaudit
from fdaudit.cluster import worker
from fdaudit.cluster.transfer import changes, write_tree
from fdaudit.cluster.worker import ClusterTask, serve
from fdaudit.evaluation.workers import WorkUnit
from fdaudit.parallel.pool import Pool, _standing
from fdaudit.storage.cache import DIRECTORY, KEY
from fdaudit.storage.files import load_json

from ..evaluation.test_attack_stage import SPEC
from ..helpers.run_cases import tree
from .ray_cases import until

ATTACKS = "fdaudit.evaluation.attack_worker"
WRITTEN = ("attacks", "vault/rehearsal", "vault/scores")


def test_a_node_with_other_versions_does_nothing(tmp_path: Path) -> None:
    task = ClusterTask(
        module=ATTACKS,
        piece={},
        mark=tmp_path,
        needed="run",
        files=[],
        reused=True,
        versions={"torch": "0.1"},
    )
    (line,) = serve(task)
    assert "torch" in line["failed"]
    assert "asks has 0.1" in line["failed"]


def test_progress_is_reported_ten_times_a_second_and_at_each_last_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: now))

    def steps(what: str, of: int, seconds: float) -> Iterator[tuple[int, dict[str, Any]]]:
        nonlocal now
        for step in range(1, of + 1):
            now += seconds
            yield 0, {"tick": [what, step, of]}

    def lines(pieces: list[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from steps("quick", 1000, 0.001)
        yield 0, {"cell": "x"}
        for _ in range(100):
            yield from steps("short", 1, 0.001)
        yield from steps("slow", 30, 0.2)
        yield 0, {"status": "done"}

    monkeypatch.setattr(worker, "standing_pool", lambda *given: SimpleNamespace(work=lines))
    told = list(worker._lines("module", {}))
    quick = [line["tick"][1] for line in told if line.get("tick", [""])[0] == "quick"]
    assert quick[0] == 1
    assert quick[-1] == 1000
    assert len(quick) == pytest.approx(11, abs=1)
    assert told[len(quick) :] == [
        {"cell": "x"},
        *[{"tick": ["short", 1, 1]}] * 100,
        *({"tick": ["slow", n, 30]} for n in range(1, 31)),
        {"status": "done"},
    ]


@pytest.mark.thorough
def test_a_worker_of_rays_does_not_load_pytorch() -> None:
    """It would before the process that does the work: twice the time until work begins."""
    code = "import sys, fdaudit.cluster.worker; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- attack cells --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    spec = {**SPEC, "power": True, "attacks": [{"name": "gap"}, {"name": "ideal-hard"}]}
    return fdaudit.run(spec, tmp_path_factory.mktemp("node") / "run")


@pytest.fixture
def bare(run: fdaudit.Run, tmp_path: Path) -> Path:
    """The run as it was before its attacks."""
    shutil.copytree(run.directory, tmp_path / "run")
    for name in ("attacks", *WRITTEN[1:]):
        shutil.rmtree(tmp_path / "run" / name)
    (tmp_path / "run" / "attacks").mkdir()
    return tmp_path / "run"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked_processes: None) -> Iterator[Path]:
    """Where this node keeps temporary files; its process ends with the test. Objects stand for references to them."""
    (tmp_path / "node").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))
    monkeypatch.setattr(worker, "_copies", {})
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda reference: reference))
    pool = Pool(ATTACKS, 1)
    monkeypatch.setitem(_standing, (ATTACKS, 1), pool)
    yield tmp_path / "node"
    pool.close()


def task(
    run: fdaudit.Run, at: Path, name: str, adversary: str, mark: Path, files: list[Any], **more: Any
) -> ClusterTask:
    attack = next(a for a in run.case.attacks if a.name == name)
    piece = WorkUnit(at, attack, (adversary,)).to_json()
    return ClusterTask(module=ATTACKS, piece=piece, mark=mark, needed="run", files=files, reused=True, **more)


@pytest.fixture(scope="module")
def shadowed(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    """A run with an attack that trains shadow models."""
    attack = {"name": "lira-offline", "params": {"shadows": 4}}
    return fdaudit.run(
        {**SPEC, "threads": 1, "attacks": [attack]}, tmp_path_factory.mktemp("shadowed") / "run"
    )


@pytest.mark.thorough
def test_a_node_that_sees_the_cache_of_the_command_shares_it(
    shadowed: fdaudit.Run, node: Path, tmp_path: Path
) -> None:
    (tmp_path / "mark").touch()
    (tmp_path / "cache").mkdir(mode=0o700)
    cache = {DIRECTORY: str(tmp_path / "cache"), KEY: "0" * 64}
    asked = task(shadowed, shadowed.directory, "lira-offline", "world", tmp_path / "mark", [], cache=cache)
    (line,) = serve(asked)
    assert line["cell"] == load_json(shadowed.directory / "attacks" / "world-lira-offline.json")
    assert list((tmp_path / "cache").glob("*.kept"))


@pytest.mark.thorough
def test_nodes_send_each_other_the_shadow_models_that_they_trained(
    shadowed: fdaudit.Run, node: Path, tmp_path: Path
) -> None:
    cache = {DIRECTORY: str(tmp_path / "unseen cache"), KEY: "0" * 64}
    files, trained = list(changes(shadowed.directory)), list[list[str]]()
    results = list[Any]()
    for number in range(2):
        mark = tmp_path / f"mark of node {number}"  # each node makes a directory of its own
        asked = task(
            shadowed,
            shadowed.directory,
            "lira-offline",
            "world",
            mark,
            files,
            cache=cache,
            results=list(results),
        )
        *lines, outcome = serve(asked)
        assert outcome["cell"] == load_json(shadowed.directory / "attacks" / "world-lira-offline.json")
        new = [line for line in lines if "results" in line]
        results += new
        trained.append([name for line in new for name in line["results"] if name.endswith(".kept")])
    assert trained[0]
    assert trained[1] == []
    assert not (tmp_path / "unseen cache").exists()


@pytest.mark.thorough
def test_files_of_a_cell_come_before_its_outcome_and_none_stay(
    run: fdaudit.Run, node: Path, bare: Path, tmp_path: Path
) -> None:
    mark, files = tmp_path / "unseen", list(changes(bare))
    assert list(serve(task(run, bare, "gap", "server", mark, []))) == [{"unshared": True}]
    homes = set[Path]()
    for name in ("gap", "ideal-hard"):
        for adversary in ("server", "world"):
            *lines, outcome = serve(task(run, bare, name, adversary, mark, files))
            assert outcome["adversary"] == adversary
            for line in lines:
                write_tree(line["files"], bare, WRITTEN)
            homes.update(node.iterdir())
    assert len(homes) == 1, "the run is copied once"
    for outcome in run.directory.glob("attacks/*.json"):
        shutil.copy(outcome, bare / "attacks")
    for folder in WRITTEN:
        assert tree(run.directory / folder)
        assert tree(bare / folder) == tree(run.directory / folder)
    list(serve(task(run, bare, "gap", "server", tmp_path / "other", list(changes(bare)))))
    (home,) = node.iterdir()
    assert home not in homes, "another stage has another copy"
    _standing[ATTACKS, 1].close()
    until(lambda: not list(node.iterdir()), 20)


@pytest.mark.thorough
@pytest.mark.parametrize("at_work", [True, False], ids=["at work", "standing by"])
def test_a_process_that_ends_loses_only_the_cell_in_hand(
    at_work: bool, run: fdaudit.Run, node: Path, bare: Path, tmp_path: Path
) -> None:
    files = list(changes(bare))
    list(serve(task(run, bare, "gap", "server", tmp_path / "unseen", files)))
    pool = _standing[ATTACKS, 1]
    until(lambda: pool._idle, 20)
    (process,) = pool._idle
    lines = serve(task(run, bare, "gap", "world", tmp_path / "unseen", files))
    with ThreadPoolExecutor(1) as beside:
        if at_work:
            process.send_signal(signal.SIGSTOP)  # handed the next piece, it does nothing with it
            rest = beside.submit(list, lines)
            until(lambda: pool._at_work, 20)
            process.kill()
        else:
            process.kill()
            process.wait()
            rest = beside.submit(list, lines)
        told = rest.result()
    assert any("cell" in line for line in told) != at_work
    assert bool(list(node.iterdir())) != at_work


@pytest.mark.thorough
def test_a_node_that_shares_the_directory_works_in_it(
    run: fdaudit.Run, node: Path, bare: Path, tmp_path: Path
) -> None:
    (tmp_path / "mark").touch()
    (line,) = serve(task(run, bare, "gap", "server", tmp_path / "mark", []))
    assert line["adversary"] == "server"
    assert (bare / "attacks" / "controls" / "gap.json").is_file()
    assert not list(node.glob("fdaudit-copy-*"))


@pytest.mark.thorough
def test_a_damaged_run_fails_its_cell_with_the_reason(
    run: fdaudit.Run, node: Path, bare: Path, tmp_path: Path
) -> None:
    (tmp_path / "mark").touch()
    os.truncate(bare / "transcript" / "messages.jsonl", 100)
    (line,) = serve(task(run, bare, "gap", "server", tmp_path / "mark", []))
    assert line["failed"].startswith("IntegrityError: ")

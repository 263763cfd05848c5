"""One run's attack cells on Ray: the same bytes as here, whatever becomes of a worker."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdaudit
from fdaudit.cluster import connection, jobs
from fdaudit.cluster.backends import elsewhere
from fdaudit.errors import UsageError
from fdaudit.storage.files import load_json

from ..helpers.cli_cases import Shell
from ..helpers.results import cells_of
from ..helpers.run_cases import finished, three_clients, tree, write_spec
from .ray_cases import cancellations, cluster, unseen, until, workers_of

SPEC = three_clients(
    threads=2,
    clients=4,
    dataset={"name": "digits", "limit": 300},
    protocol={"name": "fedavg", "params": {"rounds": 2, "local_steps": 4, "batch_size": 16}},
    splits={"candidates": 10},
    attacks=[{"name": "ideal-hard"}, {"name": "lira-offline"}, {"name": "gap"}],
)
WORKER = "fdaudit.evaluation.attack_worker"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster of this machine's own with two workers; where its nodes keep temporary files."""
    with cluster(tmp_path_factory.mktemp("node")) as temporary:
        yield temporary


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    """The run on this machine."""
    return fdaudit.run(SPEC, tmp_path_factory.mktemp("runs") / "here")


def federated(here: fdaudit.Run, to: Path) -> Path:
    """The run as it was before its attacks."""
    shutil.copytree(here.directory, to)
    for path in (to / "attacks", to / "vault" / "scores"):
        shutil.rmtree(path)
    (to / "result.json").unlink()
    return to


class Killer:
    """Listens to a run, kills every worker that has cells once some have ended, and counts what is said."""

    def __init__(self, after: set[str]) -> None:
        self._after, self.killed = after, 0
        self.said: Counter[str] = Counter()

    def __call__(self, what: str, done: int, total: int) -> None:
        self.said[what.removeprefix("attacks (").removesuffix(")")] += 1
        if not self.killed and self._after <= self.said.keys():
            for pid in workers_of(WORKER):
                os.kill(pid, signal.SIGKILL)
                self.killed += 1

    @property
    def lost(self) -> dict[str, int]:
        return {what: times for what, times in self.said.items() if "worker lost" in what}


def test_cells_come_out_the_same(node: Path, here: fdaudit.Run, tmp_path: Path) -> None:
    with elsewhere("ray") as far, cancellations() as cancelled:
        there = fdaudit.run(SPEC, tmp_path / "there", seed_from=here.directory, workers=far)
    assert cancelled == []
    assert workers_of(WORKER), "cells were run by workers of Ray"
    assert tree(there.directory) == tree(here.directory)
    assert not list(node.glob("fdaudit-copy-*"))


def test_a_lost_worker_on_a_node_without_the_directory_costs_its_cell_only(
    node: Path, here: fdaudit.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "marked", unseen)
    there = federated(here, tmp_path / "there")
    killer, copies = Killer({"server: gap", "world: gap", "server: ideal-hard"}), set[str]()

    def tick(*said: Any) -> None:
        copies.update(p.name for p in node.glob("fdaudit-copy-*"))
        killer(*said)

    with elsewhere("ray") as far:
        run = fdaudit.run(None, there, resume=True, workers=far, tick=tick)
    assert killer.killed
    assert sum(killer.lost.values()) >= 1
    assert 1 <= len(copies) <= 2 + killer.killed, "one a worker, however many pieces it had"
    assert tree(run.directory) == tree(here.directory)
    ended = Counter({what: n for what, n in killer.said.items() if what.startswith(("server:", "world:"))})
    assert set(ended.values()) == {1}, "nothing was told twice"
    for pid in workers_of(WORKER):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not list(node.glob("fdaudit-copy-*")), 30)


def test_a_cell_that_has_lost_its_worker_too_often_has_failed_and_the_others_go_on(
    node: Path, here: fdaudit.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "RETRIES", 0)
    there = federated(here, tmp_path / "there")
    stop = threading.Event()

    def kill() -> None:  # whoever is the first to work on class shares of the released model
        while not stop.wait(0.02):
            if any((there / "attacks" / "server-ideal-hard").glob("*")):
                for pid in workers_of(WORKER):
                    os.kill(pid, signal.SIGKILL)
                return

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with elsewhere("ray") as far:
            run = fdaudit.run(None, there, resume=True, workers=far)
    finally:
        stop.set()
        thread.join()
    found = cells_of(run, requested=True)
    failed = {name for name, cell in found.items() if cell["status"] == "failed"}
    assert "server/ideal-hard" in failed
    assert "lost 1 times" in found["server/ideal-hard"]["reason"]
    assert len(failed) <= 2, "each worker that was killed had one cell in hand"
    for name in found.keys() - failed:
        file = f"attacks/{name.replace('/', '-')}.json"
        assert load_json(there / file) == load_json(here.directory / file)


def test_nothing_is_begun_where_there_is_nothing_to_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a cluster was begun")

    monkeypatch.setattr(connection, "connected", refuse)
    with elsewhere("ray", 2) as far:
        fdaudit.run({**SPEC, "attacks": []}, tmp_path / "run", workers=far)


# -- without a cluster ---------------------------------------------------------------------------------------------


BAD = [
    (["--executor", "roy"], "is not a known executor. Did you mean 'ray'?"),
    (["--address", "auto"], "is of use to Ray alone"),
    (["--workers", "2"], "is of use to Ray alone"),
    (["--executor", "ray", "--address", "ray://127.0.0.1:10001"], "is no address of a cluster"),
    (["--executor", "ray", "--address", "127.0.0.1:1"], "does not answer"),
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("small") / "run")


@pytest.mark.parametrize("command", ["run", "attack", "quickstart"])
@pytest.mark.parametrize(("options", "problem"), BAD)
def test_a_wrong_executor_or_address_is_refused(
    command: str, options: list[str], problem: str, small: Path, shell: Shell
) -> None:
    if "ray" in options:
        pytest.importorskip("ray")
    before = tree(small)
    line = {
        "run": ["run", write_spec(shell.home / "spec.yaml", SPEC), "--out", "out"],
        "attack": ["attack", small, "--all"],
        "quickstart": ["quickstart", "--out", "out"],
    }[command]
    assert problem in shell.refused(*line, *options)
    assert not (shell.home / "out").exists()
    assert tree(small) == before


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'fdaudit\[scale\]'"), elsewhere("ray"):
        pass


def test_who_is_connected_gives_no_address(node: Path, here: fdaudit.Run, tmp_path: Path) -> None:
    there = federated(here, tmp_path / "there")
    with elsewhere("ray", address="auto") as far, pytest.raises(UsageError, match=r"^address: 'auto' "):
        fdaudit.run(None, there, resume=True, workers=far)

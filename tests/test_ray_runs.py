"""One run's clients, shadow models and attack cells on Ray: the same bytes as here, whatever becomes of a worker."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdaudit
from fdaudit import fleet as fleets
from fdaudit import ray_connection, ray_fleet, ray_tasks
from fdaudit.elsewhere import elsewhere
from fdaudit.errors import RunError, UsageError
from fdaudit.ray_attacks import _Pieces
from fdaudit.rng import child
from fdaudit.storage import load_json
from fdaudit.training import Fit, Job, Trainer, draw_batches

from .ray_cases import cancellations, cluster, descendants, unseen, until, workers_of
from .run_cases import cli, finished, tree, write_spec
from .test_fleet import LOOP, jobs, network, same

SPEC: dict[str, Any] = {
    "seed": 3,
    "device": "cpu",
    "threads": 2,
    "profile": "quick",
    "clients": 4,
    "dataset": {"name": "digits", "limit": 300},
    "model": {"name": "mlp", "params": {"widths": [16]}},
    "protocol": {"name": "fedavg", "params": {"rounds": 2, "local_steps": 4, "batch_size": 16}},
    "splits": {"candidates": 10},
    "references": [],
    "adversaries": ["server", "world"],
    "victims": 2,
    "attacks": [{"name": "ideal-hard"}, {"name": "lira-offline"}, {"name": "gap"}],
}
WORKER = "fdaudit.attack_worker"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster of this machine's own with two workers; where its nodes keep temporary files."""
    with cluster(tmp_path_factory.mktemp("node")) as temporary:
        yield temporary


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is worth sending."""
    monkeypatch.setattr(fleets, "WORTH", 20)


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


def test_clients_and_cells_come_out_the_same(
    node: Path, little: None, here: fdaudit.Run, tmp_path: Path
) -> None:
    with elsewhere("ray") as far, cancellations() as cancelled:
        there = fdaudit.run(SPEC, tmp_path / "there", seed_from=here.directory, elsewhere=far)
    assert cancelled == []
    assert workers_of(WORKER), "cells were run by workers of Ray"
    assert tree(there.directory) == tree(here.directory)
    assert not list(node.glob("fdaudit-run-*"))


def test_a_lost_worker_on_a_node_without_the_directory_costs_its_cell_only(
    node: Path, here: fdaudit.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_connection, "marked", unseen)
    there = federated(here, tmp_path / "there")
    killer, copies = Killer({"server: gap", "world: gap", "server: ideal-hard"}), set[str]()

    def tick(*said: Any) -> None:
        copies.update(p.name for p in node.glob("fdaudit-run-*"))
        killer(*said)

    with elsewhere("ray") as far:
        run = fdaudit.run(None, there, resume=True, elsewhere=far, tick=tick)
    assert killer.killed
    assert sum(killer.lost.values()) >= 1
    assert 1 <= len(copies) <= 2 + killer.killed, "one a worker, however many pieces it had"
    assert tree(run.directory) == tree(here.directory)
    ended = Counter({what: n for what, n in killer.said.items() if what.startswith(("server:", "world:"))})
    assert set(ended.values()) == {1}, "nothing was told twice"
    for pid in workers_of(WORKER):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not list(node.glob("fdaudit-run-*")), 30)


def test_a_cell_that_has_lost_its_worker_too_often_has_failed_and_the_others_go_on(
    node: Path, here: fdaudit.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_tasks, "RETRIES", 0)
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
            run = fdaudit.run(None, there, resume=True, elsewhere=far)
    finally:
        stop.set()
        thread.join()
    found = {c["id"]: c for c in run.result["cells"] if c["status"] != "not-requested"}
    failed = {name for name, cell in found.items() if cell["status"] == "failed"}
    assert "server/ideal-hard" in failed
    assert "the worker that ran it was lost 1 times" in found["server/ideal-hard"]["reason"]
    assert len(failed) <= 2, "each worker that was killed had one cell in hand"
    for name in found.keys() - failed:
        file = f"attacks/{name.replace('/', '-')}.json"
        assert load_json(there / file) == load_json(here.directory / file)


def test_an_attack_that_runs_here_has_its_shadow_models_fitted_there(
    node: Path, here: fdaudit.Run, little: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FDAUDIT_CACHE", raising=False)
    monkeypatch.setattr("fdaudit.cache._kept", OrderedDict())
    run, fitted = fdaudit.load(federated(here, tmp_path / "there")), list[str]()
    real = Trainer._elsewhere

    def watched(self: Trainer, jobs: Any, fit: Fit) -> Any:
        found = real(self, jobs, fit)
        fitted.extend(job.party for job in jobs if found is not None)
        return found

    monkeypatch.setattr(Trainer, "_elsewhere", watched)
    with elsewhere("ray") as far:
        cell = fdaudit.attack("lira-offline", run, "world", elsewhere=far)
    assert {p for p in fitted if p.startswith("shadow ")}
    assert cell.to_json() == load_json(here.directory / "attacks" / "world-lira-offline.json")


def test_a_group_whose_worker_is_lost_is_fitted_again(node: Path, little: None) -> None:
    net, fit = network(), Fit(lr=0.1)
    long = [_longer(job) for job in jobs(2, net)]
    expected, killed = Trainer(net, LOOP).fit(long, fit), list[int]()

    def kill() -> None:
        until(lambda: fitting(), 60)
        pid = fitting()[0]
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

    thread = threading.Thread(target=kill)
    with elsewhere("ray") as far, cancellations() as cancelled:
        assert far.fleet is not None
        trainer = Trainer(net, LOOP, far.fleet)
        thread.start()
        found = trainer.fit(long, fit)
        thread.join()
        assert killed
        assert cancelled == []
        assert all(same(a, b) for a, b in zip(expected, found, strict=True))
        assert len(trainer._sent) == len({*_payloads(long)})


def _longer(job: Job, steps: int = 400) -> Job:
    batches = draw_batches(len(job.x), 8, steps=steps, generator=child(9, job.party))
    return Job(**{**vars(job), "batches": batches})


def _payloads(made: list[Job]) -> Iterator[int]:
    for job in made:  # where FedProx stays near is where the job starts, and that is sent once
        yield from (id(part) for part in (job.parameters, job.x, job.targets, job.batches))


def fitting() -> list[int]:
    """The workers of Ray that fit a group."""
    return [pid for pid, line in descendants(os.getpid()).items() if line.startswith("ray::fit_group")]


def test_what_a_worker_cannot_fit_stops_the_training(node: Path, little: None) -> None:
    net = network()
    with elsewhere("ray") as far:
        trainer = Trainer(net, LOOP, far.fleet)
        with pytest.raises(RunError, match=r"could not fit a group of models .* needs an anchor"):
            trainer.fit(jobs(2, net, anchor=None), Fit(lr=0.1, mu=0.1))


@pytest.mark.parametrize("at", ["sending", "waiting"])
def test_an_interrupted_training_leaves_no_group_at_work(
    at: str, node: Path, little: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = network()
    endless = [_longer(job, 100_000) for job in jobs(2, net)]
    real, sent = ray_fleet._group, list[Any]()

    def interrupt(*_: Any) -> None:
        until(fitting)
        raise KeyboardInterrupt

    def send(*args: Any) -> Any:
        if sent and at == "sending":
            interrupt()
        sent.append(real(*args))
        return sent[-1]

    monkeypatch.setattr(ray_fleet, "_group", send)
    monkeypatch.setattr("ray.get", interrupt)
    with elsewhere("ray") as far, pytest.raises(KeyboardInterrupt):
        Trainer(net, LOOP, far.fleet).fit(endless, Fit(lr=0.1))
    assert len(sent) == {"sending": 1, "waiting": 2}[at]
    until(lambda: not fitting(), 5)


def test_nothing_is_begun_where_there_is_nothing_to_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a cluster was begun")

    monkeypatch.setattr(ray_connection, "connected", refuse)
    with elsewhere("ray", 2) as far:
        fdaudit.run({**SPEC, "attacks": []}, tmp_path / "run", elsewhere=far)


# -- without a cluster ---------------------------------------------------------------------------------------------


def test_a_cell_is_lost_for_good_alone() -> None:
    pieces = _Pieces([{"run": "x", "adversaries": ["a", "b", "c"]}], Path("mark"))
    for times in (1, 2):
        assert pieces.lost(0, "gone") == ({"tick": ["worker lost, tried again", times, 2]}, True)
    said = {"failed": "the worker that ran it was lost 3 times, last: gone"}
    assert pieces.lost(0, "gone") == ({**said, "adversaries": ["a"]}, True)
    assert pieces.lost(0, "gone") == ({"tick": ["worker lost, tried again", 1, 2]}, True)
    pieces.told(0, "b")
    assert pieces.lost(0, "gone") == ({"tick": ["worker lost, tried again", 1, 2]}, True), "another cell"
    pieces.lost(0, "gone")
    assert pieces.lost(0, "gone") == ({**said, "adversaries": ["c"]}, False)
    assert pieces.lost(0, "gone") == ({}, False), "all was told"


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
    command: str,
    options: list[str],
    problem: str,
    small: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "ray" in options:
        pytest.importorskip("ray")
    before = tree(small)
    line = {
        "run": ["run", write_spec(tmp_path / "spec.yaml", SPEC), "--out", tmp_path / "out"],
        "attack": ["attack", small, "--all"],
        "quickstart": ["quickstart", "--out", tmp_path / "out"],
    }[command]
    code, out, err = cli(monkeypatch, capsys, *line, *options)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert problem in err
    assert not (tmp_path / "out").exists()
    assert tree(small) == before


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'fdaudit\[scale\]'"), elsewhere("ray"):
        pass


def test_who_is_connected_gives_no_address(node: Path, little: None) -> None:
    net = network()
    with elsewhere("ray", address="auto") as far, pytest.raises(UsageError, match="connected to a cluster"):
        Trainer(net, LOOP, far.fleet).fit(jobs(2, net), Fit(lr=0.1))

"""Sweeps on Ray: the same bytes as on one machine, whatever becomes of a worker; nothing is left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from fdaudit.cluster import connection, jobs
from fdaudit.cluster.sweeps import _SweepJob, _task, ray_cluster
from fdaudit.errors import UsageError
from fdaudit.sweeps import sweep as engine
from fdaudit.sweeps.index import Index

from ..helpers.cli_cases import Shell
from ..helpers.run_cases import tree, write_spec
from ..helpers.sweep_cases import grid, inline
from .ray_cases import cancellations, cluster, descendants, unseen, until

ROUNDS = 25


def made(**changes: Any) -> dict[str, Any]:
    """Two runs long enough to be interrupted, and kept whole."""
    small = grid(defences=[], epsilon=["inf"], seeds=[1, 2], keep="runs", **changes)
    small["protocols"] = small["protocols"][:1]
    small["protocols"][0]["params"]["rounds"] = ROUNDS
    return small


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster of this machine's own with two workers; where its nodes keep temporary files."""
    with cluster(tmp_path_factory.mktemp("node")) as temporary:
        yield temporary


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep in this process."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    assert engine.sweep(made(), out, executor=inline).count("done") == 2
    return out


def again(done: Path, out: Path, **options: Any) -> Index:
    """The runs once more on Ray, with the seeds and secrets of the first time."""
    shutil.copytree(done, out)
    shutil.rmtree(out / "runs")
    return engine.sweep(made(), out, resume=True, executor=ray_cluster(), **options)


def worker_at(out: Path, key: str) -> int | None:
    """The worker of Ray behind the process that holds a run's lock, or whose files lie where the run is run."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            held = {os.readlink(link) for link in (place / "fd").iterdir()}
            if any(h.startswith(str(out)) and h.endswith(f"/{key}") for h in held):
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                # Its worker may be gone before it; then its parent is another process.
                if b"ray::serve" in Path(f"/proc/{parent}/cmdline").read_bytes():
                    return parent
        except OSError:
            continue
    return None


def records(out: Path) -> dict[str, bytes]:
    """Every file of every run that does not say how long something took."""
    return {n: b for n, b in tree(out / "runs").items() if not n.endswith(("timings.json", "/run.json"))}


class Killer:
    """Listens to a sweep, kills the worker of one run in its middle, and counts what is said."""

    def __init__(self, where: Path, key: str, called: str, times: int = 1) -> None:
        self.where, self.key, self.called, self.left = where, key, called, times
        self.rounds: dict[str, list[int]] = {}
        self.lost: Counter[str] = Counter()
        self._killed = set[int]()

    def __call__(self, what: str, done: int, total: int) -> None:
        run, _, step = what.partition(": ")
        if step.startswith("worker lost"):
            self.lost[run] += 1
        if not step.startswith("fedavg "):
            return
        count = int(step.removeprefix("fedavg ").partition("/")[0])
        if count:
            self.rounds.setdefault(run, []).append(count)
        if run == self.called and self.left and count >= 3:
            pid = worker_at(self.where, self.key)
            if pid is not None and pid not in self._killed:  # what it said before may come after
                self.left -= 1
                self._killed.add(pid)
                os.kill(pid, signal.SIGKILL)


def test_a_killed_worker_costs_only_its_run_and_the_bytes_are_the_same(
    node: Path, done: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = engine.read_index(done).runs[0]
    killer = Killer(out, first.key, first.called)
    index = again(done, out, tick=killer)
    assert killer.left == 0
    assert killer.lost == {first.called: 1}
    assert index.count("done") == 2
    for called, rounds in killer.rounds.items():
        assert rounds == sorted(set(rounds)), f"{called} is not run again, nor from its beginning"
        # A worker may be killed after a last round that it has not told of; who goes on has none to tell of.
        assert called == first.called or rounds[-1] == ROUNDS
    assert records(out) == records(done)
    assert not (out / "scratch").exists()


@pytest.fixture
def apart(node: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cluster, as if its nodes did not see this machine's directories."""
    monkeypatch.setattr(connection, "marked", unseen)
    return node


def test_nodes_without_the_directory_send_their_runs_and_keep_nothing(
    apart: Path, done: Path, tmp_path: Path
) -> None:
    out, seen = tmp_path / "out", set[str]()
    with cancellations() as cancelled:
        index = again(done, out, tick=lambda *said: seen.update(p.name for p in apart.glob("fdaudit-copy-*")))
    assert cancelled == []
    assert index.count("done") == 2
    assert seen, "runs were run in directories of their own"
    assert records(out) == records(done)
    assert {v.stat().st_mode & 0o777 for v in out.glob("runs/*/vault")} == {0o700}
    assert not list(apart.glob("fdaudit-copy-*"))


def test_a_run_that_always_loses_its_worker_fails_with_the_reason_and_leaves_nothing(
    apart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert jobs.RETRIES == 2
    monkeypatch.setattr(jobs, "RETRIES", 1)
    small = made()
    small["seeds"] = [1]
    (run,) = engine.expand(engine.load_grid(small))
    killer, copies = Killer(apart, "lock", run.called, times=9), set[str]()

    def tick(*said: Any) -> None:
        copies.update(p.name for p in apart.glob("fdaudit-copy-*"))
        killer(*said)

    index = engine.sweep(small, tmp_path / "out", executor=ray_cluster(), tick=tick)
    (entry,) = index.runs
    assert (entry.status, killer.left) == ("failed", 7)
    assert "lost 2 times" in entry.reason
    assert len(copies) == 2, "it began anew"
    assert not list((tmp_path / "out").glob("runs/*"))
    until(lambda: not list(apart.glob("fdaudit-copy-*")), 10)


def test_who_is_connected_gives_no_address(node: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^address: 'auto' "):
        engine.sweep(made(), tmp_path / "out", executor=ray_cluster(address="auto"))


# -- without a cluster ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--executor", "roy"], "is not a known executor. Did you mean 'ray'?"),
        (["--address", "auto"], "is of use to Ray alone"),
        (["--executor", "ray", "--address", "ray://127.0.0.1:10001"], "is no address of a cluster"),
        (["--executor", "ray", "--address", "127.0.0.1"], "is no address of a cluster"),
        (["--executor", "ray", "--address", "127.0.0.1:99999"], "does not answer"),
        (["--executor", "ray", "--address", "127.0.0.1:1"], "does not answer"),
    ],
)
def test_a_wrong_executor_or_address_is_refused(options: list[str], problem: str, shell: Shell) -> None:
    if "ray" in options:
        pytest.importorskip("ray")
    write_spec(shell.home / "grid.yaml", grid())
    assert problem in shell.refused("sweep", "grid.yaml", "--out", "out", *options)
    assert not (shell.home / "out").exists()


@pytest.mark.parametrize("status", ["done", "failed"])
def test_the_end_of_a_whole_run_is_told_with_its_outcomes_of_controls_in_common(
    status: str, tmp_path: Path
) -> None:
    """The next run is begun before anything else is done about the end of this one."""
    controls = Path("attacks", "controls", "loss-threshold.json")
    (tmp_path / "run" / controls).parent.mkdir(parents=True)
    (tmp_path / "run" / controls).write_bytes(b"{}")
    piece = {name: str(tmp_path / name) for name in ("run", "lock", "scratch", "shared")}
    _SweepJob(number=0, kind=None, task=_task(piece, tmp_path / "mark")).accept({"status": status})
    assert (tmp_path / "shared" / controls).is_file() == (status == "done")


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    write_spec(shell.home / "grid.yaml", grid())
    line = shell.refused("sweep", "grid.yaml", "--out", "out", "--executor", "ray")
    assert "pip install 'fdaudit[scale]'" in line
    assert not (shell.home / "out").exists()


# -- a cluster for one command -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_command_leaves_nothing_at_work(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(made()))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "fdaudit", "sweep", str(tmp_path / "grid.yaml"), "--out", str(out)]
    process = subprocess.Popen([*command, "--executor", "ray", "--workers", "1"], stdout=subprocess.DEVNULL)
    try:
        until(lambda: any(out.glob("runs/*/vault/round.json")), 300)
        left = descendants(process.pid)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    at_work = {pid for pid, line in left.items() if "ray::serve" in line or "fdaudit.sweeps.worker" in line}
    assert len(at_work) == 2
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in at_work), 30)
    for pid in left:  # Ray's own helpers take a minute or two to notice
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    (folder,) = set(re.findall(r"/tmp/fdaudit-ray-\w+", " ".join(left.values())))
    shutil.rmtree(folder)

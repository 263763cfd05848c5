"""What becomes of a job by what its worker says. A task is not cancelled once it has ended or is about to: Ray would
end the process that asks, or the worker that is at the next task already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fdaudit.cluster import jobs
from fdaudit.cluster.jobs import ClusterJob, work
from fdaudit.cluster.worker import ClusterTask, Line
from fdaudit.errors import IntegrityError

ray = pytest.importorskip("ray")

TICK, FILES, REFUSED = {"tick": ["x", 1, 2]}, {"files": {"x": b""}}, {"files": {"../x": b""}}
DONE = {"status": "done"}
AGAIN = [{"tick": ["worker lost, tried again", n, 2]} for n in (1, 2)]
CRASH = ray.exceptions.WorkerCrashedError()
LOST = "the worker that ran it was lost 3 times, last: "


class Recorded(ClusterJob):
    """Notes the files of its outcome."""

    def accept(self, outcome: Line) -> None:
        trees = list(self.trees())
        if REFUSED["files"] in trees:
            raise IntegrityError(["no such place"])
        outcome["trees"] = len(trees)


class Worker:
    """Ray, as far as jobs use it: each task is the next of some lists of lines. Errors come in the place of lines."""

    def __init__(self, *attempts: list[Any]) -> None:
        self.attempts, self.sent, self.cancelled = iter(attempts), list[Any](), list[Any]()

    def remote(self, task: ClusterTask) -> Any:
        self.sent.append(list(task.files))
        return iter(next(self.attempts))

    def get(self, line: Any) -> Any:
        if isinstance(line, Exception):
            raise line
        return dict(line)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Worker]:
    def made(*attempts: list[Any]) -> Worker:
        worker = Worker(*attempts)
        monkeypatch.setattr(ray, "remote", lambda _: SimpleNamespace(options=lambda **_: worker))
        monkeypatch.setattr(ray, "get", worker.get)
        monkeypatch.setattr(ray, "put", lambda tree: tree)
        monkeypatch.setattr(ray, "wait", lambda lines, num_returns: (lines[:1], lines[1:]))
        monkeypatch.setattr(ray, "cancel", lambda lines, force: worker.cancelled.append(lines))
        return worker

    return made


def job(number: int = 0, kind: str | None = None, needed: Path = Path("x")) -> Recorded:
    task = ClusterTask(
        module="x", piece={"run": needed}, mark=Path("x"), needed="run", files=[], reused=False
    )
    return Recorded(number=number, kind=kind, task=task)


@pytest.mark.parametrize(
    ("attempts", "said"),
    [
        ([[TICK, DONE]], [TICK, {**DONE, "trees": 0}]),
        ([[FILES, FILES, DONE]], [{**DONE, "trees": 2}]),
        ([[{"failed": "x"}]], [{"failed": "x"}]),
        ([[FILES, REFUSED, DONE]], [{"failed": "IntegrityError: no such place"}]),
        (
            [[ray.exceptions.RayTaskError("serve", "traceback", ValueError("no such cell"))]],
            [{"failed": "ValueError: no such cell"}],
        ),
        ([[FILES], [FILES, CRASH], [FILES, DONE]], [*AGAIN, {**DONE, "trees": 1}]),
        ([[], [], [CRASH]], [*AGAIN, {"failed": f"{LOST}WorkerCrashedError"}]),
        ([[], [], []], [*AGAIN, {"failed": f"{LOST}its process ended before the work was done"}]),
    ],
    ids=["done", "files", "failed", "refused", "error", "lost twice", "crashed", "always lost"],
)
def test_a_job_ends_with_its_outcome_or_a_reason(
    attempts: list[Any], said: list[Any], cluster: Callable[..., Worker]
) -> None:
    worker = cluster(*attempts)
    assert [line for _, line in work([job()], 1)] == said
    assert worker.cancelled == []
    assert len(worker.sent) == len(attempts)


def test_the_directory_is_sent_only_when_a_node_asks(cluster: Callable[..., Worker], tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    worker = cluster([{"unshared": True}], [DONE])
    assert [line for _, line in work([job(needed=tmp_path)], 1)] == [{**DONE, "trees": 0}]
    assert worker.sent == [[], [{"x": b"1"}]]


def test_results_of_one_node_are_sent_with_the_tasks_that_follow(cluster: Callable[..., Worker]) -> None:
    line = {"results": {"x.kept": b"1"}}
    worker, results, sent = cluster([line, DONE], [DONE]), list[Any](), list[list[Any]]()
    jobs_ = [job(0), job(1)]
    for one in jobs_:
        one.task = replace(one.task, results=results)
    remote = worker.remote

    def noted(task: ClusterTask) -> Any:
        sent.append(list(task.results))
        return remote(task)

    worker.remote = noted  # type: ignore[method-assign]
    assert [line for _, line in work(jobs_, 1)] == [{**DONE, "trees": 0}] * 2
    assert sent == [[], [line]]


@pytest.mark.parametrize("size", [1, 2])
def test_only_tasks_at_work_are_cancelled_when_the_caller_stops(
    size: int, cluster: Callable[..., Worker]
) -> None:
    worker = cluster([DONE], [TICK], [TICK])
    lines = work([job(), job(), job()], size)
    next(lines)
    lines.close()
    assert len(worker.cancelled) == size, "the job that has ended was replaced before its end was reported"


def test_a_worker_gets_another_job_of_the_same_kind_or_its_lost_one_again(
    cluster: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster([], *[[DONE]] * 5)
    order = list[int]()
    pieces = [job(number, kind) for number, kind in enumerate(["a", "a", "b", "b", "c"])]
    real = jobs.Queue.take

    def take(queue: jobs.Queue, ended: int | None = None) -> int:
        order.append(real(queue, ended))
        return order[-1]

    monkeypatch.setattr(jobs.Queue, "take", take)
    ended = [done.number for done, line in work(pieces, 2) if "status" in line]
    # The older of two tasks is the first to say something.
    assert order == [0, 2, 0, 3, 1, 4]
    assert ended == [2, 0, 3, 1, 4]

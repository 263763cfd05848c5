"""What becomes of an errand by what its worker says last. It is not cancelled once its task has ended or is about to:
Ray would end the process that asks, or the worker that is at the next task already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fdaudit.cluster.tasks import Attempt, spread
from fdaudit.errors import IntegrityError

ray = pytest.importorskip("ray")

FILE, DONE = {"file": "x", "data": b""}, {"status": "done"}


class Lines:
    """An errand's lines, as Ray hands them over: errors come in the place of a line."""

    def __init__(self, *lines: Any) -> None:
        self._lines = iter(lines)

    def __next__(self) -> Any:
        return next(self._lines)


class Watched(Attempt):
    """Refuses one line, and notes whether what has arrived is forgotten."""

    def __init__(self, lines: Any, refused: Any = None) -> None:
        super().__init__(lines)
        self.refused, self.forgotten = refused, 0

    def take(self, line: dict[str, Any]) -> dict[str, Any]:
        if line is self.refused:
            raise IntegrityError(["no such place"])
        return line

    def forget(self) -> None:
        self.forgotten += 1


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, dict[str, Any]]]]:
    """What Ray was asked to cancel, and how."""
    asked: list[tuple[Any, dict[str, Any]]] = []

    def get(line: Any) -> Any:
        if isinstance(line, Exception):
            raise line
        return line

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "cancel", lambda what, **how: asked.append((what, how)))
    return asked


def task_error() -> Exception:
    return ray.exceptions.RayTaskError("serve", "traceback", ValueError("no such cell"))


@pytest.mark.parametrize(
    ("lines", "refused", "said"),
    [
        ([], None, {"lost": "it ended before its work was done"}),
        ([{"lost": True}], None, {"lost": "its process ended before the work was done"}),
        ([task_error()], None, {"status": "failed", "reason": "ValueError: no such cell"}),
        ([DONE], DONE, {"status": "failed", "reason": "IntegrityError: no such place"}),
    ],
    ids=["ended", "process lost", "failed", "last line refused"],
)
def test_what_ends_by_itself_is_forgotten_and_not_cancelled(
    cancelled: list[Any], lines: list[Any], refused: Any, said: dict[str, Any]
) -> None:
    attempt = Watched(Lines(*lines), refused)
    assert attempt.next() == said
    assert (attempt.forgotten, cancelled) == (1, [])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (FILE, {"status": "failed", "reason": "IntegrityError: no such place"}),
        (ray.exceptions.WorkerCrashedError(), {"lost": "WorkerCrashedError"}),
    ],
    ids=["line refused", "worker lost"],
)
def test_what_may_be_at_work_is_cancelled_and_forgotten(
    cancelled: list[Any], line: Any, said: dict[str, Any]
) -> None:
    lines = Lines(line)
    attempt = Watched(lines, line)
    assert attempt.next() == said
    assert (attempt.forgotten, cancelled) == (1, [(lines, {"force": True})])


def test_what_goes_on_is_left_alone(cancelled: list[Any]) -> None:
    attempt = Watched(Lines(FILE, DONE))
    assert [attempt.next(), attempt.next()] == [FILE, DONE]
    assert (attempt.forgotten, cancelled) == (0, [])


class Begun:
    """Errands of which each ends at once, the first but for one loss; and the order in which they were begun."""

    def __init__(self) -> None:
        self.order = list[int]()

    def begin(self, number: int) -> Attempt:
        self.order.append(number)
        return Attempt(Lines({"lost": True} if self.order == [0] else DONE))

    def lost(self, number: int, how: str) -> tuple[dict[str, Any], bool]:
        return {"tick": [how, number, 1]}, True


def test_an_errand_is_followed_by_one_of_its_kind_and_first_of_all_by_itself_where_its_worker_was_lost(
    cancelled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "wait", lambda lines, num_returns: (lines[:1], lines[1:]))
    errands, said = Begun(), list[int]()
    for number, line in spread(errands, ["a", "a", "b", "b", "c"], 2):
        if line == DONE:
            said.append(number)
            assert len(errands.order) == min(6, 3 + len(said)), "begun before the last one's end is told"
    # Which of two errands has ended is the older one's turn each time.
    assert errands.order == [0, 2, 0, 3, 1, 4]
    assert said == [2, 0, 3, 1, 4]
    assert cancelled == []

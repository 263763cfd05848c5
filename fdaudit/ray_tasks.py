"""Errands on the workers of a Ray cluster: so many under way at a time, each tried again where its worker is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, Protocol

from fdaudit.errors import IntegrityError

__all__ = ["RETRIES", "Attempt", "Errands", "after_loss", "spread"]

RETRIES = 2
"""How often something is tried again whose worker was lost."""


class Attempt:
    """An errand under way on some worker.

    Args:
        lines: the lines that the worker says about it, as Ray hands them over.
    """

    def __init__(self, lines: Any) -> None:
        self.lines = lines

    def next(self) -> dict[str, Any]:
        """The next line about it; of one that is lost, `lost` says how; nothing, where a part of a file arrived."""
        import ray

        try:
            line: dict[str, Any] = ray.get(next(self.lines))
        except StopIteration:
            self.forget()
            return {"lost": "it ended before the cell was done"}
        except ray.exceptions.RayTaskError as error:
            self.forget()
            return {"status": "failed", "reason": f"{type(error.cause).__name__}: {error.cause}"}
        except ray.exceptions.RayError as error:
            self.stop()
            return {"lost": type(error).__name__}
        if line.get("lost"):
            self.forget()
            return {"lost": "the cell's process ended before it was done"}
        try:
            return self.take(line)
        except (OSError, IntegrityError) as error:
            if "status" in line:
                self.forget()
            else:
                self.stop()
            return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}

    def take(self, line: dict[str, Any]) -> dict[str, Any]:
        """What is to be said of a line that has arrived."""
        return line

    def stop(self) -> None:
        """Ends the worker that is at it; not to be called once its last line is here: the worker may be at the next."""
        import ray

        ray.cancel(self.lines, force=True)
        self.forget()

    def forget(self) -> None:
        """Forgets what has arrived of it."""


class Errands(Protocol):
    """Errands by number, and what becomes of one whose worker was lost."""

    def begin(self, number: int) -> Attempt:
        """Sends one to the cluster."""
        ...

    def lost(self, number: int, how: str) -> tuple[dict[str, Any], bool]:
        """What is said of it, and whether it is sent again."""
        ...


def after_loss(times: int, how: str) -> tuple[dict[str, Any], bool]:
    """What is said of something whose worker was lost so many times, and whether it is tried again."""
    if times <= RETRIES:
        return {"tick": ["worker lost, tried again", times, RETRIES]}, True
    return {"failed": f"the worker that ran it was lost {times} times, last: {how}"}, False


def spread(errands: Errands, count: int, size: int) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """Keeps so many errands under way until all have ended, and yields every line as it comes.

    An errand ends with a line that has a `status`; one that says `again` is sent once more.
    """
    import ray

    waiting, at_work = deque(range(count)), dict[int, Attempt]()
    try:
        while waiting or at_work:
            while waiting and len(at_work) < size:
                number = waiting.popleft()
                at_work[number] = errands.begin(number)
            (ready,), _ = ray.wait([a.lines for a in at_work.values()], num_returns=1)
            number = next(n for n, a in at_work.items() if a.lines is ready)
            line = at_work[number].next()
            if "lost" in line:
                del at_work[number]
                line, again = errands.lost(number, line["lost"])
                if again:
                    waiting.appendleft(number)
            elif "again" in line:
                del at_work[number]
                waiting.appendleft(number)
                continue
            elif "status" in line:
                del at_work[number]
            if line:
                yield number, line
    finally:
        for attempt in at_work.values():
            attempt.stop()

"""Errands on the workers of a Ray cluster: a fixed number at a time, each tried again if its worker is lost."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from typing import Any, Protocol

from fdaudit.errors import IntegrityError
from fdaudit.parallel.task_queue import Queue

__all__ = ["RETRIES", "Attempt", "Errands", "after_loss", "spread"]

RETRIES = 2
"""Number of retries after a lost worker."""


class Attempt:
    """An errand that some worker is running.

    Args:
        lines: the lines that the worker says about it, as Ray hands them over.
    """

    def __init__(self, lines: Any) -> None:
        self.lines = lines

    def next(self) -> dict[str, Any]:
        """Return the next line about it: `lost` gives the reason of a loss; empty if a part of a file arrived."""
        import ray

        try:
            line: dict[str, Any] = ray.get(next(self.lines))
        except StopIteration:
            self.forget()
            return {"lost": "it ended before its work was done"}
        except ray.exceptions.RayTaskError as error:
            self.forget()
            return {"status": "failed", "reason": f"{type(error.cause).__name__}: {error.cause}"}
        except ray.exceptions.RayError as error:
            self.stop()
            return {"lost": type(error).__name__}
        if line.get("lost"):
            self.forget()
            return {"lost": "its process ended before the work was done"}
        try:
            return self.take(line)
        except (OSError, IntegrityError) as error:
            if "status" in line:
                self.forget()
            else:
                self.stop()
            return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}

    def take(self, line: dict[str, Any]) -> dict[str, Any]:
        """Return what to report for a line that has arrived."""
        return line

    def stop(self) -> None:
        """Cancel this task and kill its worker.

        Do not call after the last line arrives: the worker may already run another task.
        """
        import ray

        ray.cancel(self.lines, force=True)
        self.forget()

    def forget(self) -> None:
        """Discard the files that have arrived."""


class Errands(Protocol):
    """Errands by number, with a rule for lost workers."""

    def begin(self, number: int) -> Attempt:
        """Send an errand to the cluster."""
        ...

    def lost(self, number: int, how: str) -> tuple[dict[str, Any], bool]:
        """Return the line to report after a loss, and whether the errand is sent again."""
        ...


def after_loss(times: int, how: str) -> tuple[dict[str, Any], bool]:
    """Return the line to report after a number of lost workers, and whether the errand is tried again."""
    if times <= RETRIES:
        return {"tick": ["worker lost, tried again", times, RETRIES]}, True
    return {"failed": f"the worker that ran it was lost {times} times, last: {how}"}, False


def spread(
    errands: Errands, kinds: Sequence[Hashable | None], size: int
) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """Run a fixed number of errands at a time until all have ended, and yield every line as it arrives.

    An errand ends with a line that has a `status`. An errand whose line says `again` is sent once more.

    Args:
        errands: numbered from 0.
        kinds: kind of each errand, as for a `Queue`: a worker's next errand is of the same kind if possible. This
            assumes that Ray gives the next errand to the worker that has become free.
        size: number of errands at a time.
    """
    import ray

    waiting, at_work = Queue(kinds), dict[int, Attempt]()

    def fill(ended: int | None = None) -> None:
        while waiting and len(at_work) < size:
            number = waiting.take(ended)
            at_work[number] = errands.begin(number)

    try:
        fill()
        while at_work:
            (ready,), _ = ray.wait([a.lines for a in at_work.values()], num_returns=1)
            number = next(n for n, a in at_work.items() if a.lines is ready)
            line = at_work[number].next()
            if "lost" in line or "again" in line or "status" in line:
                del at_work[number]
            if "lost" in line:
                line, again = errands.lost(number, line["lost"])
                if again:
                    waiting.put_back(number)
            elif "again" in line:
                waiting.put_back(number)
                line = {}
            fill(number)  # first: a free worker must not wait for the handling of a line
            if line:
                yield number, line
    finally:
        for attempt in at_work.values():
            attempt.stop()

"""Jobs on the workers of a Ray cluster.

Guarantees:
  * a job has bit for bit the same outcome as on one machine, with the same versions, threads and processors;
  * the loss of a worker or node affects only the job that it was doing. The job is tried again, at most `RETRIES`
    times, and then fails;
  * no job keeps running on the cluster after its caller has stopped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fdaudit.cluster.transfer import Tree, changes
from fdaudit.cluster.worker import ClusterTask, Line, serve
from fdaudit.errors import IntegrityError
from fdaudit.parallel.task_queue import Queue

__all__ = ["RETRIES", "ClusterJob", "work"]

RETRIES = 2
"""Number of retries after a lost worker."""

Next = Literal["running", "again", "over"]
"""What comes next for a job: more lines of its worker, another worker, or nothing."""


@dataclass(kw_only=True)
class ClusterJob(ABC):
    """A piece of work with one outcome.

    Attributes:
        number: number of the piece for the caller; several jobs may share it.
        kind: a worker's next job is of the same kind if possible; None matches no other kind.
        task: the work.
        arrived: references to lines with files of the outcome.
        losses: number of workers that were lost.
    """

    number: int
    kind: Hashable | None
    task: ClusterTask
    arrived: list[Any] = field(default_factory=list)
    losses: int = 0

    @abstractmethod
    def accept(self, outcome: Line) -> None:
        """Put the files of the outcome in place.

        Raises:
            IntegrityError: they are not files that it may have.
        """

    def trees(self) -> Iterator[Tree]:
        """Yield the files that have arrived."""
        import ray

        for reference in self.arrived:
            yield ray.get(reference)["files"]

    def listen(self, lines: Any) -> tuple[Line, Next]:
        """Return the next line to report, if any, and what comes next.

        Args:
            lines: references to the worker's lines, as Ray hands them over.
        """
        import ray

        try:
            reference = next(lines)
            line: Line = ray.get(reference)
            if "tick" in line:
                return line, "running"
            if "files" in line:
                self.arrived.append(reference)
                return {}, "running"
            if "results" in line:
                self.task.results.append(reference)
                return {}, "running"
            if "unshared" in line:
                if not self.task.files:
                    needed = Path(self.task.piece[self.task.needed])
                    self.task.files.extend([ray.put(tree) for tree in changes(needed)])
                return {}, "again"
            if "failed" not in line:
                self.accept(line)
        except StopIteration:
            return self._lost("its process ended before the work was done")
        except ray.exceptions.RayTaskError as error:
            return {"failed": f"{type(error.cause).__name__}: {error.cause}"}, "over"
        except ray.exceptions.RayError as error:
            return self._lost(type(error).__name__)
        except (OSError, IntegrityError) as error:
            return {"failed": f"{type(error).__name__}: {error}"}, "over"
        return line, "over"

    def _lost(self, how: str) -> tuple[Line, Next]:
        """Return the line to report about a lost worker, and what comes next."""
        self.arrived.clear()
        self.losses += 1
        if self.losses > RETRIES:
            return {"failed": f"the worker that ran it was lost {self.losses} times, last: {how}"}, "over"
        return {"tick": ["worker lost, tried again", self.losses, RETRIES]}, "again"


def work(jobs: Sequence[ClusterJob], size: int) -> Generator[tuple[ClusterJob, Line], None, None]:
    """Do the jobs, and yield each line about a job: progress, then its outcome, or `failed` with a reason.

    The order of jobs assumes that Ray gives the next task to the worker that has become free.

    Args:
        jobs: the jobs.
        size: number of jobs at a time.
    """
    import ray

    remote = ray.remote(serve).options(num_cpus=1, max_retries=0, num_returns="streaming")
    waiting = Queue([job.kind for job in jobs])
    running: dict[Any, int] = {}

    def fill(last: int | None = None) -> None:
        while waiting and len(running) < size:
            index = waiting.take(last)
            running[remote.remote(jobs[index].task)] = index

    try:
        fill()
        while running:
            (lines,), _ = ray.wait(list(running), num_returns=1)
            index = running[lines]
            line, then = jobs[index].listen(lines)
            if then != "running":
                del running[lines]
            if then == "again":
                waiting.put_back(index)
            fill(index)  # before the line is reported: a free worker must not wait for that
            if line:
                yield jobs[index], line
    finally:
        # A task that has ended is not here. Ray may kill this process, or another task's worker, if asked to cancel it.
        for lines in running:
            ray.cancel(lines, force=True)

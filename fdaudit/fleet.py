"""Groups of jobs for other machines: which jobs of a training core may be fitted elsewhere, and in what company.

Guarantees:
  * what is fitted elsewhere is what one thread here would have made, bit for bit: a job of a `loop` on a CPU has one
    thread to itself wherever it runs;
  * no secret leaves: a job under a guard carries the coins of its noise, and stays;
  * who goes with whom follows from the numbers of records that jobs use and of workers, never from timing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fdaudit.jobs import Fit, Fitted, Job

if TYPE_CHECKING:
    from fdaudit.execution import Execution
    from fdaudit.models import Architecture

__all__ = ["WORTH", "Fleet", "groups_of", "may_leave"]

WORTH = 10_000
"""Records that the steps of a group use in all, at least, where it is worth sending."""


class Fleet(Protocol):
    """Workers elsewhere that fit groups of jobs. It holds nothing of what it has sent: attacks are handed training
    cores, and whatever a core refers to."""

    @property
    def size(self) -> int:
        """Groups at a time; asked only where there is enough to do for two."""
        ...

    def fit(
        self,
        network: Architecture,
        execution: Execution,
        groups: Sequence[Sequence[Job]],
        fit: Fit,
        sent: dict[str, Any],
    ) -> list[list[Fitted]]:
        """Fits each job by itself, on one thread, the jobs of a group one after another.

        Args:
            network: what is trained.
            execution: the memory format; the rest is a `loop` on one thread of a CPU.
            groups: none empty.
            fit: how.
            sent: what the core that asks has sent before, and need not send again; the fleet's to fill.

        Raises:
            RunError: a group could not be fitted.
        """
        ...


def may_leave(jobs: Sequence[Job]) -> bool:
    """Whether jobs can be fitted elsewhere: none has a guard, and there is enough to do for two groups."""
    return len(jobs) > 1 and all(job.guard is None for job in jobs) and sum(map(_records, jobs)) >= 2 * WORTH


def groups_of(jobs: Sequence[Job], size: int) -> list[list[int]]:
    """The jobs' numbers in at most `size` groups of about as many records; each job is in one.

    A group is worth `WORTH` on average. The job with most records is placed first, each where there is least to do.
    """
    records = [_records(job) for job in jobs]
    number = min(size, len(jobs), sum(records) // WORTH)
    groups, load = [list[int]() for _ in range(number)], [0] * number
    for job in sorted(range(len(jobs)), key=lambda n: -records[n]) if number else ():
        least = load.index(min(load))
        groups[least].append(job)
        load[least] += records[job]
    return [sorted(group) for group in groups if group]


def _records(job: Job) -> int:
    """How many records the job's steps use, each as often as it is used."""
    return sum(len(batch) for batch in job.batches)

"""Executors of a run's attack cells, by name: processes of this machine, or workers of a Ray cluster.

Guarantees, in addition to those of `fdaudit.cluster.jobs`:
  * if a node does not share the run's directory, a cell's files are in place before the cell has an outcome. Only
    files that cells may write are accepted;
  * no cluster starts before there is something to send.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from fdaudit.cluster import connection
from fdaudit.cluster.jobs import ClusterJob, work
from fdaudit.cluster.transfer import write_tree
from fdaudit.cluster.worker import ClusterTask, Line
from fdaudit.errors import UsageError, nearest
from fdaudit.evaluation.attack_pool import common_cache
from fdaudit.parallel.pool import Answer, Workers

__all__ = ["EXECUTORS", "elsewhere", "refuse_misfit"]


EXECUTORS = ("local", "ray")
"""Names of the executors."""
_WRITTEN = ("attacks", "vault/rehearsal", "vault/scores")
"""The parts of a run's directory that cells may write."""


@contextmanager
def elsewhere(
    executor: str, workers: int | None = None, address: str | None = None
) -> Iterator[Workers | None]:
    """Yield the machines that run attack cells, by the executor's name, as long as they are needed; None: this one.

    Args:
        executor: one of `EXECUTORS`.
        workers: workers of a cluster at a time, each on one thread; default: one per processor of the cluster.
        address: address of a cluster, as for `fdaudit.cluster.sweeps.ray_cluster`.

    Raises:
        UsageError: there is no such executor, or it is not available.
    """
    refuse_misfit(executor, address)
    if executor == "local":
        if workers is not None:
            remedy = "Set threads in the spec, or add --executor ray."
            raise UsageError("workers", workers, "is of use to Ray alone", remedy)
        yield None
        return
    connection.refuse_unusable(address)
    with ExitStack() as stack:
        yield _Cluster(lambda: stack.enter_context(connection.connected(workers, address)))


def refuse_misfit(executor: str, address: str | None) -> None:
    """Refuse an unknown executor, and an address without a cluster.

    Raises:
        UsageError: executor and address do not fit.
    """
    if executor not in EXECUTORS:
        raise UsageError("executor", executor, "is not a known executor", nearest(executor, EXECUTORS))
    if executor != "ray" and address is not None:
        raise UsageError("address", address, "is of use to Ray alone", "Leave it out, or add --executor ray.")


class _Cluster:
    """Workers of a cluster; see `fdaudit.parallel.pool.Workers`.

    Args:
        connect: connects to the cluster and returns the number of cells at a time; called when there is work.
    """

    def __init__(self, connect: Callable[[], int]) -> None:
        self._connect = connect

    @cached_property
    def size(self) -> int:
        """Return the number of cells at a time."""
        return self._connect()

    def work(self, pieces: Sequence[Mapping[str, Any]]) -> Generator[Answer, None, None]:
        """Run pieces of one run's attack stage; a line with `failed` says why `adversaries` have no outcome."""
        if not pieces:
            return
        size, files, results = self.size, list[Any](), list[Any]()
        jobs = list[ClusterJob]()
        with connection.marked(Path(pieces[0]["run"]) / "vault") as mark:
            for number, piece in enumerate(pieces):
                for adversary in piece["adversaries"]:
                    task = ClusterTask(
                        module="fdaudit.evaluation.attack_worker",
                        piece={**piece, "adversaries": [adversary]},
                        mark=mark,
                        needed="run",
                        files=files,
                        reused=True,
                        cache=common_cache(),
                        results=results,
                    )
                    jobs.append(_CellJob(number=number, kind=number, task=task))
            for job, line in work(jobs, size):
                yield job.number, {"adversaries": job.task.piece["adversaries"], **line}


class _CellJob(ClusterJob):
    """An attack cell of a run."""

    def accept(self, outcome: Line) -> None:
        """Put the files that the cell wrote in place."""
        for tree in self.trees():
            write_tree(tree, Path(self.task.piece["run"]), _WRITTEN)

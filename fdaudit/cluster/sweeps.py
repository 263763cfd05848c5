"""A sweep's runs on the workers of a Ray cluster.

Guarantees, in addition to those of `fdaudit.cluster.jobs`:
  * if the worker of a run is lost, the run continues after its last complete round, provided that the sweep's directory
    is shared;
  * a run from a node that does not share the directory is placed completely or not at all, and only its owner has
    access.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

from fdaudit.cluster import connection
from fdaudit.cluster.jobs import ClusterJob, work
from fdaudit.cluster.transfer import write_tree
from fdaudit.cluster.worker import ClusterTask, Line
from fdaudit.evaluation.controls.kept import take_controls
from fdaudit.parallel.pool import Answer
from fdaudit.storage.files import sync_path
from fdaudit.storage.locks import writing
from fdaudit.sweeps.sweep import Executor
from fdaudit.sweeps.worker import alone

__all__ = ["ray_cluster"]


def ray_cluster(workers: int | None = None, address: str | None = None) -> Executor:
    """Return workers of a Ray cluster, each on one thread.

    Args:
        workers: runs at a time; default: one per processor of the cluster.
        address: address of an existing cluster: `HOST:PORT`, or `auto` for the one of this machine. Default: the
            cluster that this process is connected to; without one, a cluster of this machine's own, which ends with the
            sweep.

    Raises:
        UsageError: Ray is not installed, or nothing answers at the address.
    """
    connection.refuse_unusable(address)

    def carry_out(pieces: Sequence[Mapping[str, Any]]) -> Generator[Answer, None, None]:
        if not pieces:
            return
        scratch = Path(pieces[0]["scratch"])
        with connection.connected(workers, address) as size, connection.marked(scratch) as mark:
            jobs = list[_SweepJob]()
            for number, piece in enumerate(pieces):
                jobs.append(_SweepJob(number=number, kind=piece["like"], task=_task(piece, mark)))
            for job, line in work(jobs, size):
                if "failed" in line:
                    yield job.number, {"status": "failed", "reason": line["failed"]}
                else:
                    yield job.number, line

    return carry_out


def _task(piece: Mapping[str, Any], mark: Path) -> ClusterTask:
    """Return the task of a run. Its scratch directory is its own: two nodes may have equal numbers of processes."""
    piece = {**piece, "scratch": str(Path(piece["scratch"]) / uuid4().hex)}
    return ClusterTask(
        module="fdaudit.sweeps.worker", piece=piece, mark=mark, needed="shared", files=[], reused=False
    )


class _SweepJob(ClusterJob):
    """A run of a sweep."""

    def accept(self, outcome: Line) -> None:
        """Put a whole run in place, and share its outcomes of controls with other runs."""
        if outcome["status"] != "done":
            return
        piece = self.task.piece
        run = Path(piece["run"])
        if self.arrived:
            staging = Path(tempfile.mkdtemp(prefix="arrival-", dir=self.task.mark.parent))
            for tree in self.trees():
                write_tree(tree, staging)
            with alone(Path(piece["lock"])), writing(run, wait=True) if run.is_dir() else nullcontext():
                shutil.rmtree(run, ignore_errors=True)
                staging.rename(run)
                sync_path(run.parent)
        take_controls(run, Path(piece["shared"]))

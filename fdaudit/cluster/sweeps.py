"""A sweep's runs on the workers of a Ray cluster: this machine's own, or an existing one.

Guarantees:
  * runs give bit for bit the same outcomes as on one machine, with the same versions, threads and processors;
  * the loss of a worker or node affects only its own run: the run is tried again, at most
    `fdaudit.cluster.tasks.RETRIES` times. It continues after its last complete round if the sweep's directory is
    shared;
  * a run from a node that does not share the directory is placed completely or not at all;
  * a cluster that was started here ends here, and no run keeps running on any other cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

from fdaudit.cluster import connection
from fdaudit.cluster.tasks import Attempt, after_loss, spread
from fdaudit.cluster.transfer import Arrival
from fdaudit.cluster.worker import Errand, serve_here, surroundings, versions
from fdaudit.evaluation.controls.kept import take_controls
from fdaudit.parallel.pool import Answer
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
    connection.refuse_absent()
    connection.refuse_unreachable(address)

    def work(pieces: Sequence[Mapping[str, Any]]) -> Generator[Answer, None, None]:
        if not pieces:
            return
        scratch = Path(pieces[0]["scratch"])
        with connection.connected(workers, address) as size, connection.marked(scratch) as mark:
            yield from spread(_Runs(pieces, mark), [p.get("like") for p in pieces], size)

    return work


class _Runs:
    """A sweep's runs as errands."""

    def __init__(self, pieces: Sequence[Mapping[str, Any]], mark: Path) -> None:
        self._pieces, self._mark = pieces, mark
        self._losses = Counter[int]()

    def begin(self, number: int) -> Attempt:
        return _begin(self._pieces[number], self._mark)

    def lost(self, number: int, how: str) -> tuple[dict[str, Any], bool]:
        self._losses[number] += 1
        said, again = after_loss(self._losses[number], how)
        return (said if again else {"status": "failed", "reason": said["failed"]}), again


class _Run(Attempt):
    """A run that some worker is running."""

    def __init__(self, piece: Mapping[str, Any], lines: Any) -> None:
        super().__init__(lines)
        self._piece = piece
        self._arrival: Arrival | None = None

    def take(self, line: dict[str, Any]) -> dict[str, Any]:
        """Return the line, after its files are in place and its control outcomes are shared with other runs."""
        if "folder" in line or "file" in line:
            if self._arrival is None:
                place = Path(self._piece["run"])
                self._arrival = Arrival(Path(self._piece["scratch"]) / f"arrival-{uuid4().hex}", place)
            self._arrival.take(line)
            return {}
        if line.get("status") == "done":
            if self._arrival is not None:
                place = Path(self._piece["run"])
                with (
                    alone(Path(self._piece["lock"])),
                    writing(place, wait=True) if place.is_dir() else nullcontext(),
                ):
                    self._arrival.place()
            take_controls(Path(self._piece["run"]), Path(self._piece["shared"]))
        return line

    def forget(self) -> None:
        if self._arrival is not None:
            self._arrival.drop()


def _begin(piece: Mapping[str, Any], mark: Path) -> Attempt:
    """Send a run to the cluster, with the files that earlier runs left for it."""
    import ray

    shared = Path(piece["shared"])
    errand = Errand(
        piece=piece,
        mark=mark,
        given={
            p.relative_to(shared).as_posix(): p.read_bytes()
            for p in (shared / "vault" / "secrets.json", *sorted(shared.glob("attacks/controls/*.json")))
        },
        versions=versions(),
        surroundings=surroundings(),
    )
    task = ray.remote(serve_here).options(num_cpus=1, max_retries=0, num_returns="streaming")
    return _Run(piece, task.remote(errand))

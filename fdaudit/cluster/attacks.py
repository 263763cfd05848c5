"""A run's attack cells on the workers of a Ray cluster, and the transfer of the run's files.

Guarantees:
  * cells give bit for bit the same outcomes as processes of one machine, with the same versions, threads and
    processors;
  * the loss of a worker or node affects only its own cell: the cell is tried again, at most
    `fdaudit.cluster.tasks.RETRIES` times, and then fails without affecting others;
  * if a node does not share the run's directory, a cell's files are in place before the cell has an outcome. Only
    files that cells may write are accepted;
  * no cluster starts before there is something to send; a cluster that was started here ends here.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

from fdaudit.audit.backend import Elsewhere
from fdaudit.cluster import connection
from fdaudit.cluster.attack_worker import Parcel, serve_piece_here
from fdaudit.cluster.tasks import Attempt, after_loss, spread
from fdaudit.cluster.transfer import Arrival, pack
from fdaudit.cluster.worker import Errand, surroundings, versions
from fdaudit.parallel.pool import Answer

__all__ = ["ray_elsewhere"]

_OBJECTS = 512 << 20
"""Bytes of shared memory for a cluster of this machine's own, through which records and models pass."""
_PART = 8 << 20
"""Approximate bytes of files in a part of a parcel."""
_WRITTEN = ("attacks", "vault/scores")
"""The parts of a run's directory that cells may write."""


@contextmanager
def ray_elsewhere(workers: int | None = None, address: str | None = None) -> Iterator[Elsewhere]:
    """Yield workers of a Ray cluster, each on one thread, for attack cells.

    Args:
        workers: number of workers at a time; default: one per processor of the cluster.
        address: address, as for `fdaudit.cluster.sweeps.ray_cluster`.

    Raises:
        UsageError: Ray is not installed, or nothing answers at the address.
    """
    connection.refuse_absent()
    connection.refuse_unreachable(address)
    with ExitStack() as opened:
        cluster = _Cluster(lambda: opened.enter_context(connection.connected(workers, address, _OBJECTS)))
        yield Elsewhere(cells=cluster)


class _Cluster:
    """Workers of a cluster; the connection is made when the first worker is needed."""

    def __init__(self, connect: Callable[[], int]) -> None:
        self._connect = connect

    @cached_property
    def size(self) -> int:
        """Return the number of pieces at a time."""
        return self._connect()

    def work(self, pieces: Sequence[Mapping[str, Any]]) -> Generator[Answer, None, None]:
        """Run pieces of one run's attack stage; see `fdaudit.parallel.pool.Workers`.

        A line with `failed` gives the reason why `adversaries` have no outcome; without that field, all remaining ones.
        """
        if not pieces:
            return
        size, vault = self.size, Path(pieces[0]["run"]) / "vault"
        with (
            tempfile.TemporaryDirectory(prefix=".elsewhere-", dir=vault) as scratch,
            connection.marked(Path(scratch)) as mark,
        ):
            (vault.parent / "attacks").mkdir(exist_ok=True)
            for number, line in spread(_Pieces(pieces, mark), [None] * len(pieces), size):
                if line.get("status") == "failed":
                    yield number, {"failed": line["reason"]}
                elif "status" not in line:
                    yield number, line


class _Pieces:
    """Pieces of an attack stage as errands; a piece that is sent again holds only its remaining cells."""

    def __init__(self, pieces: Sequence[Mapping[str, Any]], mark: Path) -> None:
        self._pieces, self._mark = pieces, mark
        self._left = [list(p["adversaries"]) for p in pieces]
        self._losses = Counter[int]()
        self._parcel: Parcel | None = None

    def begin(self, number: int) -> Attempt:
        import ray

        errand = Errand(
            piece={**self._pieces[number], "adversaries": tuple(self._left[number])},
            mark=self._mark,
            given={},
            versions=versions(),
            surroundings=surroundings(),
        )
        task = ray.remote(serve_piece_here).options(num_cpus=1, max_retries=0, num_returns="streaming")
        return _Piece(self, number, task.remote(errand, self._parcel))

    def lost(self, number: int, how: str) -> tuple[dict[str, Any], bool]:
        if not self._left[number]:  # all cells have their outcomes already
            return {}, False
        self._losses[number] += 1
        said, again = after_loss(self._losses[number], how)
        if again:
            return said, True
        name = self._left[number][0]  # cells of a piece are run in their order
        self.told(number, name)
        return {**said, "adversaries": [name]}, bool(self._left[number])

    def told(self, number: int, adversary: str) -> None:
        """Record that a cell has its outcome, and reset the count of lost workers for the next cell."""
        self._left[number].remove(adversary)
        self._losses[number] = 0

    def arrival(self, number: int) -> Arrival:
        """Return a place for a cell's changes to the run's directory."""
        run = Path(self._pieces[number]["run"])
        return Arrival(self._mark.with_name(f"arrival-{uuid4().hex}"), run, below=_WRITTEN)

    def pack(self, number: int) -> None:
        """Make a parcel of the run's directory; called when the first node that does not share it asks."""
        if self._parcel is None:
            self._parcel = _parcel(Path(self._pieces[number]["run"]))


class _Piece(Attempt):
    """A piece that some worker is running."""

    def __init__(self, pieces: _Pieces, number: int, lines: Any) -> None:
        super().__init__(lines)
        self._pieces, self._number = pieces, number
        self._arrival: Arrival | None = None

    def take(self, line: dict[str, Any]) -> dict[str, Any]:
        """Return the line, after the cell's changes are in place."""
        if "wanted" in line:
            self._pieces.pack(self._number)
            return {"again": True}
        if "cell" not in line and "status" not in line:
            if self._arrival is None:
                self._arrival = self._pieces.arrival(self._number)
            self._arrival.take(line)
            return {}
        if "cell" in line:
            if self._arrival is not None:
                self._arrival.merge()
                self._arrival = None
            self._pieces.told(self._number, line["adversary"])
        return line

    def forget(self) -> None:
        if self._arrival is not None:
            self._arrival.drop()


def _parcel(run: Path) -> Parcel:
    """Return a run's directory, except its reports, as a parcel in Ray's object store."""
    import ray

    digest, parts, part, size = hashlib.sha256(), list[Any](), list[dict[str, Any]](), 0
    for line in pack(run):
        name = str(line.get("folder", line.get("file")))
        if name == "report" or name.startswith(("report/", "vault/.elsewhere-")):
            continue
        data = line.get("data", b"")
        digest.update(json.dumps([name, line.get("mode"), len(data)]).encode() + data)
        part.append(line)
        size += len(data)
        if size >= _PART:
            parts.append(ray.put(part))
            part, size = [], 0
    return Parcel(digest=digest.hexdigest(), parts=[*parts, ray.put(part)])

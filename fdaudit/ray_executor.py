"""A sweep's cells on the workers of a Ray cluster: of this machine's own, or of one that stands already.

Guarantees:
  * cells come out bit for bit as side by side on one machine, given the same versions, threads and processors;
  * a worker or node that is lost costs its own cell's time only: the cell is tried again, at most `RETRIES` times, and
    goes on from its last whole round where the sweep's directory is shared;
  * a cell from a node that does not share the directory is laid down whole or not at all;
  * a cluster that was started here ends here, and no cell is left at work on one that was not.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from fdaudit.errors import IntegrityError, UsageError
from fdaudit.parcels import Arrival
from fdaudit.pool import Answer
from fdaudit.ray_worker import Errand, serve, surroundings, versions
from fdaudit.sweep import Executor
from fdaudit.sweep_worker import alone

__all__ = ["RETRIES", "ray_cluster"]

RETRIES = 2
"""How often a cell is tried again whose worker was lost."""
_PATIENCE = 10.0
"""Seconds that a cluster's address has to answer."""
_OBJECTS = 128 << 20
"""Bytes of shared memory for a cluster of this machine's own: only short lines pass through it."""
_VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def ray_cluster(workers: int | None = None, address: str | None = None) -> Executor:
    """Workers of a Ray cluster, each on one thread.

    Args:
        workers: cells at a time; default: one a processor of the cluster.
        address: of a cluster that stands already: `HOST:PORT`, or `auto` for the one of this machine. Default: the
            cluster that this process is connected to; where there is none, one of this machine's own, which ends with
            the sweep.

    Raises:
        UsageError: Ray is not installed, or nothing answers at the address.
    """
    _refuse_absent()
    if address not in (None, "auto"):
        _refuse_unreachable(str(address))

    def work(pieces: Sequence[Mapping[str, Any]]) -> Generator[Answer, None, None]:
        if not pieces:
            return
        with _connected(workers, address) as size, _marked(Path(pieces[0]["scratch"])) as mark:
            yield from _spread(pieces, lambda piece: _begin(piece, mark), size)

    return work


# -- cells -----------------------------------------------------------------------------------------------------


class _Attempt:
    """A cell under way on some worker."""

    def __init__(self, piece: Mapping[str, Any], lines: Any) -> None:
        self.lines, self._piece = lines, piece
        self._arrival: Arrival | None = None

    def next(self) -> dict[str, Any]:
        """The next line about it; of one that is lost, `lost` says how; nothing, where a part of a file arrived."""
        import ray

        try:
            line: dict[str, Any] = ray.get(next(self.lines))
        except StopIteration:
            return {"lost": "it ended before the cell was done"}
        except ray.exceptions.RayTaskError as error:
            return {"status": "failed", "reason": f"{type(error.cause).__name__}: {error.cause}"}
        except ray.exceptions.RayError as error:
            return {"lost": type(error).__name__}
        if line.get("lost"):
            return {"lost": "the cell's process ended before it was done"}
        try:
            return self._laid_down(line)
        except (OSError, IntegrityError) as error:
            return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}

    def _laid_down(self, line: dict[str, Any]) -> dict[str, Any]:
        """The line, once what came before it lies at its place."""
        if "folder" in line or "file" in line:
            if self._arrival is None:
                place = Path(self._piece["cell"])
                self._arrival = Arrival(Path(self._piece["scratch"]) / f"arrival-{uuid4().hex}", place)
            self._arrival.take(line)
            return {}
        if line.get("status") == "done" and self._arrival is not None:
            with alone(Path(self._piece["lock"])):
                self._arrival.place()
        return line

    def stop(self) -> None:
        """Ends the worker that is at it, and forgets what it has sent."""
        import ray

        ray.cancel(self.lines, force=True)
        if self._arrival is not None:
            self._arrival.drop()


def _spread(
    pieces: Sequence[Mapping[str, Any]], begin: Callable[[Mapping[str, Any]], _Attempt], size: int
) -> Generator[Answer, None, None]:
    """Keeps so many cells under way until all have ended, and yields every line as it comes."""
    import ray

    waiting, losses, at_work = deque(range(len(pieces))), Counter[int](), dict[int, _Attempt]()
    try:
        while waiting or at_work:
            while waiting and len(at_work) < size:
                number = waiting.popleft()
                at_work[number] = begin(pieces[number])
            (ready,), _ = ray.wait([a.lines for a in at_work.values()], num_returns=1)
            number = next(n for n, a in at_work.items() if a.lines is ready)
            line = at_work[number].next()
            if "lost" in line:
                at_work.pop(number).stop()
                losses[number] += 1
                line = _after_loss(losses[number], line["lost"])
                if "tick" in line:
                    waiting.appendleft(number)
            elif "status" in line:
                del at_work[number]
            if line:
                yield number, line
    finally:
        for attempt in at_work.values():
            attempt.stop()


def _after_loss(times: int, how: str) -> dict[str, Any]:
    """What is said of a cell whose worker was lost so many times."""
    if times <= RETRIES:
        return {"tick": ["worker lost, tried again", times, RETRIES]}
    return {"status": "failed", "reason": f"the worker that ran it was lost {times} times, last: {how}"}


def _begin(piece: Mapping[str, Any], mark: Path) -> _Attempt:
    """Sends a cell to the cluster, with what earlier cells have left for it."""
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
    task = ray.remote(_serve_here).options(num_cpus=1, max_retries=0, num_returns="streaming")
    return _Attempt(piece, task.remote(errand))


def _serve_here(errand: Errand) -> Iterator[dict[str, Any]]:
    """The task itself."""
    import ray

    yield from serve(errand, ray.get_runtime_context().get_node_id())


# -- the cluster -----------------------------------------------------------------------------------------------


@contextmanager
def _connected(workers: int | None, address: str | None) -> Iterator[int]:
    """A connection to a cluster, and how many cells it is to run at a time."""
    import ray

    if ray.is_initialized():
        if address is not None:
            problem = "is given, and this process is connected to a cluster already"
            raise UsageError("address", address, problem, "Leave it out, or call ray.shutdown() first.")
        yield workers or _processors()
        return
    with _variables(_VARIABLES), _short_directory() as folder:
        mine = {
            "num_cpus": workers,
            "include_dashboard": False,
            "object_store_memory": _OBJECTS,
            "_temp_dir": folder,
        }
        try:
            try:
                ray.init(
                    address=address or "local",
                    log_to_driver=False,
                    logging_level="ERROR",
                    **({} if address else mine),
                )
            except (OSError, RuntimeError, ValueError) as error:
                problem = f"cannot be used ({str(error).splitlines()[0]})"
                remedy = "Name a Ray cluster that runs; if it asks for a token, set RAY_AUTH_MODE=token."
                raise UsageError("address", address or "local", problem, remedy) from None
            yield workers or _processors()
        finally:
            ray.shutdown()


@contextmanager
def _short_directory() -> Iterator[str]:
    """A directory for a cluster's sockets and logs, which goes with it; sockets have short paths, hence `/tmp`."""
    top = "/tmp" if Path("/tmp").is_dir() else None  # noqa: S108  # a private directory is made in it
    folder = tempfile.mkdtemp(prefix="fdaudit-ray-", dir=top)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Variables of this process, for as long as they are needed."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _marked(scratch: Path) -> Iterator[Path]:
    """A file by whose name, which nobody guesses, a node knows that it sees the sweep's directory."""
    mark = scratch / f"mark-{uuid4().hex}"
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def _processors() -> int:
    """Of the cluster, as it stands."""
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _refuse_absent() -> None:
    try:
        import ray  # noqa: F401
    except ImportError:
        remedy = "Install it: pip install 'fdaudit[scale]'."
        raise UsageError("executor", "ray", "needs Ray, which is not installed", remedy) from None


def _refuse_unreachable(address: str) -> None:
    """Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not (port.isascii() and port.isdigit()):
        problem = "is no address of a cluster"
        raise UsageError("address", address, problem, "Give HOST:PORT, or auto, on a machine of the cluster.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        problem = f"does not answer ({error})"
        raise UsageError("address", address, problem, "Name a Ray cluster that runs.") from None

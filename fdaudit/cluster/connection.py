"""A connection to a Ray cluster: an existing one, or one of this machine's own, which ends here.

Guarantees:
  * a missing Ray and an address without an answer are refused at once, with a remedy;
  * a cluster that was started here ends here, with its directory; any other cluster keeps running.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from fdaudit.errors import UsageError

__all__ = ["OBJECTS", "connected", "marked", "refuse_absent", "refuse_unreachable"]

OBJECTS = 128 << 20
"""Bytes of shared memory for a cluster of this machine's own, where only short lines pass through it."""
_PATIENCE = 10.0
"""Seconds that a cluster's address has to answer."""
_VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@contextmanager
def connected(workers: int | None, address: str | None, objects: int = OBJECTS) -> Iterator[int]:
    """Connect to a cluster, and yield the number of pieces of work to run at a time.

    Args:
        workers: number of workers at a time; default: one per processor of the cluster.
        address: address of an existing cluster; default: the one that this process is connected to, or one of this
            machine's own.
        objects: bytes of shared memory, if the cluster is this machine's own.

    Raises:
        UsageError: the cluster cannot be used.
    """
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
            "object_store_memory": objects,
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
    """Yield a directory for a cluster's sockets and logs, then remove it; sockets need short paths, hence `/tmp`."""
    top = "/tmp" if Path("/tmp").is_dir() else None  # noqa: S108  # a private directory is made in it
    folder = tempfile.mkdtemp(prefix="fdaudit-ray-", dir=top)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, as long as they are needed."""
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
def marked(scratch: Path) -> Iterator[Path]:
    """Yield a file with an unguessable name: a node that sees it shares this machine's directory."""
    mark = scratch / f"mark-{uuid4().hex}"
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def _processors() -> int:
    """Return the cluster's current number of processors."""
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def refuse_absent() -> None:
    """Refuse to continue without Ray.

    Raises:
        UsageError: Ray is not installed.
    """
    try:
        import ray  # noqa: F401
    except ImportError:
        remedy = "Install it: pip install 'fdaudit[scale]'."
        raise UsageError("executor", "ray", "needs Ray, which is not installed", remedy) from None


def refuse_unreachable(address: str | None) -> None:
    """Refuse an address where nothing answers; Ray itself tries for minutes.

    Raises:
        UsageError: it is not an address, or does not answer.
    """
    if address in (None, "auto"):
        return
    address = str(address)
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not (port.isascii() and port.isdigit()):
        problem = "is no address of a cluster"
        raise UsageError("address", address, problem, "Give HOST:PORT, or auto, on a machine of the cluster.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        problem = f"does not answer ({error})"
        raise UsageError("address", address, problem, "Name a Ray cluster that runs.") from None

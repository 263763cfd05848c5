"""A connection to a Ray cluster: an existing one, or one of this machine's own, which ends here.

Guarantees:
  * a missing Ray and an address without an answer are refused at once, with a remedy;
  * a cluster that was started here ends here, with its directory; any other cluster keeps running.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fdaudit.errors import UsageError

__all__ = ["connected", "marked", "refuse_unusable"]

_OBJECTS = 128 << 20
"""Bytes of shared memory for a cluster of this machine's own: its node shares all directories, so only lines pass."""
_PATIENCE = 10.0
"""Seconds that a cluster's address has to answer."""
_VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@contextmanager
def connected(workers: int | None, address: str | None) -> Iterator[int]:
    """Connect to a cluster, and yield the number of pieces of work to run at a time.

    Args:
        workers: number of workers at a time; default: one per processor of the cluster.
        address: address of an existing cluster; default: the one that this process is connected to, or one of this
            machine's own.

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
    top = "/tmp" if Path("/tmp").is_dir() else None  # noqa: S108  # sockets need short paths; the folder is private
    folder = tempfile.TemporaryDirectory(prefix="fdaudit-ray-", dir=top, ignore_cleanup_errors=True)
    options: dict[str, Any] = {"address": address}
    if address is None:
        options = {
            "address": "local",
            "num_cpus": workers,
            "include_dashboard": False,
            "object_store_memory": _OBJECTS,
            "_temp_dir": folder.name,
        }
    with folder, _variables(_VARIABLES), ExitStack() as stack:
        stack.callback(ray.shutdown)
        try:
            ray.init(log_to_driver=False, logging_level="ERROR", **options)
        except Exception as error:  # Ray raises a bare one where a node does not start
            problem = f"cannot be used ({str(error).splitlines()[0]})"
            remedy = "Name a Ray cluster that runs; if it asks for a token, set RAY_AUTH_MODE=token."
            raise UsageError("address", options["address"], problem, remedy) from None
        yield workers or _processors()


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
def marked(directory: Path) -> Iterator[Path]:
    """Yield a new file below a directory: a node that may write to it shares this machine's directory."""
    with tempfile.NamedTemporaryFile(prefix=".shared-", dir=directory) as file:
        yield Path(file.name)


def _processors() -> int:
    """Return the cluster's current number of processors."""
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def refuse_unusable(address: str | None) -> None:
    """Refuse to continue without Ray, and an address where nothing answers; Ray itself tries for minutes.

    Raises:
        UsageError: Ray is not installed, or the address is none, or does not answer.
    """
    try:
        import ray  # noqa: F401
    except ImportError:
        remedy = "Install it: pip install 'fdaudit[scale]'."
        raise UsageError("executor", "ray", "needs Ray, which is not installed", remedy) from None
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

"""The Ray worker for a run of a sweep: it gives the run to a process and forwards the process's output.

Guarantees:
  * the run is run by the code that runs it on one machine (`fdaudit.sweeps.worker`), with the same versions and the
    same thread variables;
  * if the node does not share the sweep's directory, nothing of the run stays on it, unless the node itself or all
    processes of the run are killed at once;
  * killing a worker also kills its process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fdaudit.cluster.transfer import pack
from fdaudit.errors import RunError
from fdaudit.parallel.pool import standing_pool

__all__ = ["Errand", "prepare", "serve", "serve_here", "surroundings", "told", "versions"]

_WORKER = "fdaudit.sweeps.worker"
_VERSIONS = ("fdaudit", "numpy", "scikit-learn", "scipy", "torch")
_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "OPENBLAS_NUM_THREADS",
)
"""Ray sets some of these for a task; numbers of threads change bits."""
_TICKS = 10.0
"""Lines of progress in a burst, and per second."""


@dataclass(frozen=True, kw_only=True)
class Errand:
    """A piece of work with everything that a node needs for it.

    Attributes:
        piece: the piece as its process receives it, with paths of the requesting machine.
        mark: a file below the directory of the sweep or run: a node that sees it shares the directory.
        given: files of a run's `shared` directory, by relative name: seed, secret, outcomes of controls.
        versions: versions of the packages that affect results, on the requesting machine.
        surroundings: variables for threads and devices on the requesting machine; None if not set.
    """

    piece: Mapping[str, Any]
    mark: Path
    given: Mapping[str, bytes]
    versions: Mapping[str, str]
    surroundings: Mapping[str, str | None]


def versions() -> dict[str, str]:
    """Return the versions on this machine of the packages that affect results."""
    return {name: version(name) for name in _VERSIONS}


def surroundings() -> dict[str, str | None]:
    """Return this process's variables for threads and devices."""
    return {name: os.environ.get(name) for name in _VARIABLES}


def prepare(wanted: Mapping[str, str], variables: Mapping[str, str | None]) -> None:
    """Make this worker match the requesting machine, as far as results depend on it.

    Args:
        wanted: `versions()` of that machine.
        variables: its `surroundings()`.

    Raises:
        RunError: a package has another version.
    """
    here = versions()
    for name, other in wanted.items():
        if here[name] != other:
            problem = f"is what this node has; the machine that asks has {other}"
            raise RunError(name, here[name], problem, "Install the same on every node.")
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def serve(errand: Errand, node: str) -> Iterator[dict[str, Any]]:
    """Carry out a run on this node.

    Args:
        errand: the run.
        node: a unique name of the node in the cluster.

    Yields:
        Lines as `fdaudit.sweeps.worker` prints them. If the node does not share the sweep's directory, the run's
        directory comes before the last line, as `pack` gives it. `{"lost": True}` if the run's process ended early.
    """
    try:
        prepare(errand.versions, errand.surroundings)
        if _shares_directory(errand):
            # Numbers of processes are unique to a node only.
            yield from told(_WORKER, {**errand.piece, "scratch": str(Path(errand.piece["scratch"]) / node)})
        else:
            yield from _told_elsewhere(errand)
    except Exception as error:  # every error belongs to this run, and few survive the way to the sweep
        yield {"status": "failed", "reason": f"{type(error).__name__}: {error}"}


def serve_here(errand: Errand) -> Iterator[dict[str, Any]]:
    """Run `serve` as a Ray task.

    It is defined in this module, which does not import PyTorch: a worker imports the module of its task.
    """
    import ray

    yield from serve(errand, ray.get_runtime_context().get_node_id())


def _told_elsewhere(errand: Errand) -> Iterator[dict[str, Any]]:
    """Carry out the run below a temporary directory; yield its lines, and the directory before the last line."""
    home, last = Path(tempfile.mkdtemp(prefix="fdaudit-sweep-")), dict[str, Any]()
    try:
        for line in told(_WORKER, _elsewhere(errand, home)):
            if line.get("status") == "done":
                yield from pack(home / "run")
            if "status" in line:
                last = line
            else:
                yield line
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if last:
        yield last


def told(module: str, piece: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a process of `module` about a piece, with few progress lines; keep the process afterwards.

    The line is `{"lost": True}` if the process ended early.
    """
    yield from _paced(
        {"lost": True} if line is None else dict(line) for _, line in standing_pool(module, 1).work([piece])
    )


def _paced(lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Drop progress lines above a rate, except an initial burst and the last step: Ray takes long for each line."""
    left, before = _TICKS, time.monotonic()
    for line in lines:
        if "tick" in line:
            now = time.monotonic()
            left, before = min(_TICKS, left + _TICKS * (now - before)), now
            _, step, of = line["tick"]
            if left < 1 and step < of:
                continue
            left = max(0.0, left - 1)
        yield line


def _shares_directory(errand: Errand) -> bool:
    """Return whether this node sees the sweep's own directory, and may read and write there."""
    secrets = Path(errand.piece["shared"]) / "vault" / "secrets.json"
    runs = Path(errand.piece["run"]).parent
    readable = all(os.access(path, os.R_OK) for path in (errand.mark, secrets))
    return readable and os.access(runs, os.W_OK)


def _elsewhere(errand: Errand, home: Path) -> dict[str, Any]:
    """Return the piece with all paths below a directory of its own, which is removed with its process."""
    for name, data in errand.given.items():
        path = home / "shared" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return {
        **errand.piece,
        "run": str(home / "run"),
        "lock": str(home / "lock"),
        "shared": str(home / "shared"),
        "scratch": str(home / "scratch"),
        "home": str(home),
    }

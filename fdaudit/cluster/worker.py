"""What a worker of a Ray cluster does with a cell of a sweep: it hands it to a process, and passes on what that says.

Guarantees:
  * the cell is run by the code that runs it on one machine (`fdaudit.sweeps.worker`), of the same versions and under
    the same variables for threads;
  * where the node does not share the sweep's directory, nothing of the cell stays on it, unless the node itself or all
    processes of the cell are killed at once;
  * a worker that is killed takes the process with it.
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
"""Lines of progress in a burst, and a second."""


@dataclass(frozen=True, kw_only=True)
class Errand:
    """A piece of work with all that a node needs to do it.

    Attributes:
        piece: the piece as the process that does it is told of it, with paths of the machine that asks.
        mark: a file below the directory of the sweep or run: who can see it shares the directory.
        given: what lies in a cell's `shared` directory, by relative name: seed, secret, outcomes of controls.
        versions: of the packages that decide results, on the machine that asks.
        surroundings: variables for threads and devices on the machine that asks; None where one is not set.
    """

    piece: Mapping[str, Any]
    mark: Path
    given: Mapping[str, bytes]
    versions: Mapping[str, str]
    surroundings: Mapping[str, str | None]


def versions() -> dict[str, str]:
    """Of the packages that decide results, on this machine."""
    return {name: version(name) for name in _VERSIONS}


def surroundings() -> dict[str, str | None]:
    """This process's variables for threads and devices."""
    return {name: os.environ.get(name) for name in _VARIABLES}


def prepare(wanted: Mapping[str, str], variables: Mapping[str, str | None]) -> None:
    """Makes this worker like the machine that asks, as far as results depend on it.

    Args:
        wanted: `versions()` of that machine.
        variables: its `surroundings()`.

    Raises:
        RunError: a package is of another version.
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
    """Runs a cell on this node.

    Args:
        errand: the cell.
        node: a name that no other node of the cluster has.

    Yields:
        Lines as `fdaudit.sweeps.worker` prints them; before the last one, where the node does not share the sweep's
        directory, the cell's directory as `pack` gives it. `{"lost": True}` where the cell's process ended early.
    """
    try:
        prepare(errand.versions, errand.surroundings)
        if _shares_directory(errand):
            # Numbers of processes are unique to a node only.
            yield from told(_WORKER, {**errand.piece, "scratch": str(Path(errand.piece["scratch"]) / node)})
        else:
            yield from _told_elsewhere(errand)
    except (
        Exception
    ) as error:  # whatever it is, it is this cell's, and few errors survive the way to the sweep
        yield {"status": "failed", "reason": f"{type(error).__name__}: {error}"}


def serve_here(errand: Errand) -> Iterator[dict[str, Any]]:
    """`serve` as a task of Ray's. It lies here, where PyTorch is not: a worker imports what its task comes from."""
    import ray

    yield from serve(errand, ray.get_runtime_context().get_node_id())


def _told_elsewhere(errand: Errand) -> Iterator[dict[str, Any]]:
    """What is said about the cell, run below a directory of its own, which is sent before the last line and goes."""
    home, last = Path(tempfile.mkdtemp(prefix="fdaudit-cell-")), dict[str, Any]()
    try:
        for line in told(_WORKER, _elsewhere(errand, home)):
            if line.get("status") == "done":
                yield from pack(home / "cell")
            if "status" in line:
                last = line
            else:
                yield line
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if last:
        yield last


def told(module: str, piece: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What a process of `module` says about a piece, though not of every step; it stands by for the worker's next.

    `{"lost": True}` where it ended early.
    """
    yield from _paced(
        {"lost": True} if line is None else dict(line) for _, line in standing_pool(module, 1).work([piece])
    )


def _paced(lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Leaves out progress after a burst but for so many lines a second and the last step: Ray takes long for each."""
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
    """Whether this node sees the sweep's own directory, and may read and write there."""
    secrets = Path(errand.piece["shared"]) / "vault" / "secrets.json"
    cells = Path(errand.piece["cell"]).parent
    readable = all(os.access(path, os.R_OK) for path in (errand.mark, secrets))
    return readable and os.access(cells, os.W_OK)


def _elsewhere(errand: Errand, home: Path) -> dict[str, Any]:
    """The piece with everything below a directory of its own, which goes with the process that works in it."""
    for name, data in errand.given.items():
        path = home / "shared" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return {
        **errand.piece,
        "cell": str(home / "cell"),
        "lock": str(home / "lock"),
        "shared": str(home / "shared"),
        "scratch": str(home / "scratch"),
        "home": str(home),
    }

"""The task of a Ray worker: it gives a piece of work to a process of its node, and forwards the process's lines.

Guarantees:
  * work is done by the code that does it on one machine, with the same versions and the same thread variables;
  * a node that does not share the command's directory works in a temporary directory, and returns every change to the
    run. The directory is removed with the worker at the latest, unless the node itself or all processes that know of it
    are killed at once;
  * shadow models and other shared results are computed once: workers of the command's machine share its cache, and
    workers elsewhere send each other theirs between two tasks;
  * killing a worker also kills its process.

A Ray worker imports this module, so it does not import PyTorch.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fdaudit.cluster.transfer import changes, snapshot, write_tree
from fdaudit.errors import RunError
from fdaudit.parallel.pool import standing_pool
from fdaudit.storage.cache import DIRECTORY

__all__ = ["ClusterTask", "Line", "serve"]

Line = dict[str, Any]
"""A line about a task: progress, files of its outcome, its outcome, or the reason why it has none."""

_VERSIONS = ("fdaudit", "numpy", "scikit-learn", "scipy", "torch")
_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "OPENBLAS_NUM_THREADS",
)
"""Ray sets some of these for a task; numbers of threads change bits."""
_PLACES = ("lock", "run", "scratch", "shared")
"""Fields of a piece that hold paths to write to."""
_CACHE = "cache"
"""The folder of shared results in a worker's temporary directory."""
_PAUSE = 0.1
"""Seconds between two lines of progress."""
_copies: dict[Path, Path] = {}
"""This worker's temporary directory by the task's mark; at most one."""


class _LostError(Exception):
    """The process that did the work has ended early."""


def _installed() -> dict[str, str]:
    """Return the versions on this machine of the packages that affect results."""
    return {name: version(name) for name in _VERSIONS}


def _environment() -> dict[str, str | None]:
    """Return this process's variables for threads and devices."""
    return {name: os.environ.get(name) for name in _VARIABLES}


@dataclass(frozen=True, kw_only=True)
class ClusterTask:
    """A piece of work with everything that a node needs for it; made on the machine of the command.

    Attributes:
        module: what `python -m` runs.
        piece: the piece as the module receives it, with paths of the command's machine.
        mark: a file below the command's directory: a node that may write to it shares the directory.
        needed: the field of `piece` that names the directory that a node without the command's directory needs.
        files: references to the trees of that directory in Ray's object store; empty until a node asks for them.
        reused: whether a worker uses its copy of that directory again for tasks with the same mark.
        cache: variables with which processes of the command's machine share results; empty if the work shares none.
        results: references to lines with results that nodes without the command's directory computed.
        versions: versions of the packages that affect results.
        variables: variables for threads and devices; None if not set.
    """

    module: str
    piece: Mapping[str, Any]
    mark: Path
    needed: str
    files: list[Any]
    reused: bool
    cache: Mapping[str, str] = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)
    versions: Mapping[str, str] = field(default_factory=_installed)
    variables: Mapping[str, str | None] = field(default_factory=_environment)

    def prepare(self) -> None:
        """Make this worker match the machine of the command, as far as results depend on it.

        Raises:
            RunError: a package has another version.
        """
        installed = _installed()
        for name, wanted in self.versions.items():
            if installed[name] != wanted:
                problem = f"is what this node has; the machine that asks has {wanted}"
                raise RunError(name, installed[name], problem, "Install the same on every node.")
        for name, value in self.variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def serve(task: ClusterTask) -> Iterator[Line]:
    """Do a task on this node, as a generator task of Ray.

    Yields:
        Lines as the task's process prints them, with less progress. If the node does not share the command's directory,
        trees in `files`, and in `results` for other nodes, come before the outcome. If the task brings no files, only
        `{"unshared": True}` comes. A line with `failed` is the reason of a failure. The process ended early if the last
        line is none of these.
    """
    try:
        task.prepare()
        if os.access(task.mark, os.W_OK):
            visible = os.access(task.cache.get(DIRECTORY, ""), os.W_OK)
            yield from _lines(
                task.module, {**task.piece, "cache": dict(task.cache)} if visible else task.piece
            )
        elif task.files:
            yield from _apart(task)
        else:
            yield {"unshared": True}
    except _LostError:
        _forget()
    except Exception as error:  # every error belongs to this task, and few survive the way back
        _forget()
        yield {"failed": f"{type(error).__name__}: {error}"}


def _apart(task: ClusterTask) -> Iterator[Line]:
    """Do a task in this worker's temporary directory, with a copy of the directory that the task needs.

    Yields:
        The task's lines, and what it changes in the run before its outcome.
    """
    import ray

    home = _copies.get(task.mark)
    if home is None or not home.is_dir():
        _forget()
        home = Path(tempfile.mkdtemp(prefix="fdaudit-copy-"))
        _copies[task.mark] = home
        for name in (task.needed, _CACHE):
            (home / name).mkdir(mode=0o700)
        for reference in task.files:
            write_tree(ray.get(reference), home / task.needed)
    cache = home / _CACHE
    for reference in task.results:
        unknown = dict(ray.get(reference)["results"])
        for name in list(unknown):
            if (cache / name).exists():
                del unknown[name]
        write_tree(unknown, cache)
    places = dict[str, str]()
    for name in _PLACES:
        if name in task.piece:
            places[name] = str(home / name)
    run, outcome = home / "run", Line()
    before = snapshot(run)
    known = snapshot(cache)
    given = {"cache": {**task.cache, DIRECTORY: str(cache)}} if task.cache else {}
    for line in _lines(task.module, {**task.piece, **places, **given, "home": str(home)}):
        if "tick" in line:
            yield line
        else:
            outcome = line
    for tree in changes(run, before):
        yield {"files": tree}
    for tree in changes(cache, known):
        yield {"results": tree}
    if not task.reused:
        _forget()
    yield outcome


def _lines(module: str, piece: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the lines of a process of `module` about a piece; keep the process for the next one.

    Ray takes long for each line. Progress within a pause is dropped, except the last step of an activity.

    Raises:
        _LostError: the process ended early.
    """
    due = 0.0
    for _, line in standing_pool(module, 1, piece.get("cache", {})).work([piece]):
        if line is None:
            raise _LostError
        if "tick" in line:
            _, step, of = line["tick"]
            now = time.monotonic()
            if now < due and step < of:
                continue
            due = now + _PAUSE
        yield dict(line)


def _forget() -> None:
    """Remove this worker's temporary directory, if there is one."""
    for home in _copies.values():
        shutil.rmtree(home, ignore_errors=True)
    _copies.clear()

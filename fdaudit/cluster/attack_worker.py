"""The Ray worker for attack cells of a run: it gives cells to a process and forwards the process's output.

Guarantees:
  * a cell is run by the code that runs it on one machine (`fdaudit.evaluation.attack_worker`), with the same versions
    and the same thread variables;
  * if the node does not share the run's directory, a worker uses a copy of its own and returns every change that a
    cell makes. The copy is made once and kept as long as the run stays unchanged;
  * the copy is removed with the worker, unless the node itself or all processes that know of it are killed at once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdaudit.cluster.transfer import Arrival, changes, snapshot
from fdaudit.cluster.worker import Errand, prepare, told

__all__ = ["Parcel", "serve_piece", "serve_piece_here"]

_WORKER = "fdaudit.evaluation.attack_worker"
_copy: tuple[str, Path] | None = None
"""The digest of this worker's unpacked parcel, and its directory."""


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """A run's directory prepared for transfer.

    Attributes:
        digest: digest of the whole content.
        parts: references to lines of `fdaudit.cluster.transfer.pack`; a node fetches each once.
    """

    digest: str
    parts: Sequence[Any]


def serve_piece(
    errand: Errand, parcel: Parcel | None, fetch: Callable[[Any], Sequence[Mapping[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """Run the cells of a piece on this node.

    Args:
        errand: the piece.
        parcel: the run's directory, if this node asked for it.
        fetch: returns the lines of a part of the parcel.

    Yields:
        Lines as `fdaudit.evaluation.attack_worker` prints them. If the node does not share the run's directory, the
        changes of a cell come before its line. Only `{"wanted": "run"}` if the node needs a parcel. At the end a line
        with a `status`; `{"lost": True}` if the process ended early.
    """
    try:
        prepare(errand.versions, errand.surroundings)
        shared = _shares_directory(errand)
        if parcel is None and not shared:
            yield {"wanted": "run"}
            return
        if shared or parcel is None:
            lines = told(_WORKER, errand.piece)
        else:
            lines = _told_elsewhere(errand.piece, _laid_down(parcel, fetch))
        for line in lines:
            if "failed" in line:
                yield {"status": "failed", "reason": line["failed"]}
                return
            yield line
    except Exception as error:  # every error belongs to this piece, and few survive the way back
        yield {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    else:
        yield {"status": "done"}


def serve_piece_here(errand: Errand, parcel: Parcel | None) -> Iterator[dict[str, Any]]:
    """Run `serve_piece` as a Ray task.

    It is defined in this module, which does not import PyTorch; see `fdaudit.cluster.worker.serve_here`.
    """
    import ray

    yield from serve_piece(errand, parcel, ray.get)


def _told_elsewhere(piece: Mapping[str, Any], home: Path) -> Iterator[dict[str, Any]]:
    """Run each cell in the copy below `home`; yield its changes and then the lines about it."""
    run = home / "run"
    for adversary in piece["adversaries"]:
        before = snapshot(run)
        for line in told(_WORKER, {**piece, "run": str(run), "home": str(home), "adversaries": [adversary]}):
            if "lost" in line:
                _forget()
            else:
                yield from changes(run, before)
            yield line


def _laid_down(parcel: Parcel, fetch: Callable[[Any], Sequence[Mapping[str, Any]]]) -> Path:
    """Return a directory of this worker that holds the run."""
    global _copy
    if _copy is not None and _copy[0] == parcel.digest and _copy[1].is_dir():
        return _copy[1]
    _forget()
    home = Path(tempfile.mkdtemp(prefix="fdaudit-run-"))
    try:
        arrival = Arrival(home / "staging", home / "run")
        for part in parcel.parts:
            for line in fetch(part):
                arrival.take(line)
        arrival.place()
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    _copy = (parcel.digest, home)
    return home


def _forget() -> None:
    """Remove the copy, if there is one."""
    global _copy
    if _copy is not None:
        shutil.rmtree(_copy[1], ignore_errors=True)
    _copy = None


def _shares_directory(errand: Errand) -> bool:
    """Return whether this node sees the run's own directory, and may read and write there."""
    run = Path(errand.piece["run"])
    readable = all(os.access(path, os.R_OK) for path in (errand.mark, run / "vault" / "secrets.json"))
    return readable and all(os.access(run / folder, os.W_OK) for folder in ("attacks", "vault"))

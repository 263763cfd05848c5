"""Open the directories that a command names. Only a URL loads `fdaudit.remote`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fdaudit.storage.paths import Place, is_url

if TYPE_CHECKING:
    from fdaudit.remote.workspace import Mode

__all__ = ["Choice", "open_directory", "runs_below"]

Choice = Literal[
    "but_reports",
    "everything",
    "for_comparison",
    "for_curves",
    "for_verification",
    "seed_and_controls",
    "whole_runs",
]
"""A function of `fdaudit.remote.selection`, by name, so that a local path does not load it."""


def open_directory(
    where: str,
    mode: Mode = "read",
    *,
    field: str = "run",
    need: Choice = "everything",
    ready: Choice = "everything",
    quiet: bool = True,
) -> AbstractContextManager[Place]:
    """Return a context manager of a local directory, or of the copy of one behind a URL.

    Args:
        where: a directory, or the URL of one.
        mode: the use of the directory, as `fdaudit.mirrored` takes it.
        field: what errors call it.
        need: selects the remote files to fetch.
        ready: selects the local files that may be sent.
        quiet: show no bars.
    """
    if not is_url(where):
        return nullcontext(Place(Path(where)))
    from fdaudit.remote import selection
    from fdaudit.remote.workspace import mirrored

    return mirrored(
        where,
        mode,
        field=field,
        need=getattr(selection, need),
        ready=getattr(selection, ready),
        quiet=quiet,
    )


def runs_below(where: str) -> list[str]:
    """Return the run directories in a folder of runs, as the quickstart or a sweep writes it; else the path itself."""
    from fdaudit.transcript.manifest import MANIFEST

    folder = Path(where)
    if is_url(where) or not folder.is_dir() or (folder / MANIFEST).is_file():
        return [where]
    found = sorted(str(p.parent) for p in (*folder.glob(f"*/{MANIFEST}"), *folder.glob(f"runs/*/{MANIFEST}")))
    return found or [where]

"""The folders that an adversary's attacks may read; nothing in them leads to the run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fdaudit.adversary.view import View, export_view, open_view
from fdaudit.isolation.attacker import home

__all__ = ["Adversary", "handed_folder", "without_records"]


@dataclass(frozen=True, eq=False)
class Adversary:
    """An adversary with its exported view and a directory for its rehearsals, as long as both are on disk."""

    name: str
    view: View
    scratch: Path


@contextmanager
def handed_folder() -> Iterator[Path]:
    """Yield a directory that fdaudit's own attacks may read; it is removed when the block ends."""
    with tempfile.TemporaryDirectory(dir=home()) as folder:
        yield Path(folder)


def without_records(adversary: Adversary, view: View) -> View:
    """Return an adversary's exported view without its members' own records, which show classes.

    Args:
        adversary: the adversary; the new view is in the same folder as its own.
        view: the adversary's view of the run's transcript.
    """
    if not adversary.view.own_data:
        return adversary.view
    folder = adversary.scratch.parent / "without-records"
    if not folder.exists():
        export_view(replace(view, own_data={}), folder)
    return open_view(folder)

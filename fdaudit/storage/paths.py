"""Paths from users and untrusted sources: a local directory, and a name that stays inside it."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from fdaudit.errors import IntegrityError, UsageError

if TYPE_CHECKING:
    from fdaudit.progress import Tick

__all__ = ["Place", "inside", "is_url", "local_path"]


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(::[A-Za-z0-9+.-]+)*://")
"""At least two letters, because one letter before a colon is a drive, as in `C:/runs`."""


class Place:
    """A directory that a user named.

    Attributes:
        path: the directory, or its local copy.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def push(self) -> None:
        """Send what was written; do nothing for a local directory."""

    def ticking(self, tick: Tick) -> Tick:
        """Return a progress callback that also pushes complete files at intervals."""
        return tick

    def shown(self, path: Path) -> str:
        """Return a path in the directory as the user would write it."""
        return str(path)


def is_url(where: object) -> bool:
    """Return whether a value names a directory by a URL; a drive letter is not a scheme."""
    return isinstance(where, str) and _URL.match(where) is not None


def local_path(where: Path | str, field: str) -> Path:
    """Return a local directory as a path.

    Raises:
        UsageError: it is a URL.
    """
    if is_url(where):
        remedy = "Open it with `fdaudit.mirrored` first, and give the path of what that yields."
        raise UsageError(field, where, "is a URL, and no directory of this machine", remedy)
    return Path(where)


def inside(directory: Path, name: object) -> Path:
    """Return the path of a file with an untrusted name below a directory.

    Args:
        directory: the directory that must contain the file.
        name: the file's name, relative, with slashes.

    Raises:
        IntegrityError: the name leads out of the directory, or is not a name.
    """
    parts = PurePosixPath(name).parts if isinstance(name, str) else ()
    if not parts or "\0" in str(name) or PurePosixPath(str(name)).is_absolute() or ".." in parts:
        raise IntegrityError([f"{name!r} is no name of a file that was sent"])
    return directory.joinpath(*parts)

"""Paths from users and strangers: a directory of this machine, and a name that stays inside one."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from fdaudit.errors import IntegrityError, UsageError

__all__ = ["inside", "is_url", "local_path"]


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(::[A-Za-z0-9+.-]+)*://")
"""Two letters at least: what stands before the colon of `C:/runs` is a drive."""


def is_url(where: object) -> bool:
    """Whether something names a directory by a URL; a drive letter is no scheme."""
    return isinstance(where, str) and _URL.match(where) is not None


def local_path(where: Path | str, field: str) -> Path:
    """A directory of this machine, as a path.

    Raises:
        UsageError: it is a URL.
    """
    if is_url(where):
        remedy = "Open it with `fdaudit.mirrored` first, and give the path of what that yields."
        raise UsageError(field, where, "is a URL, and no directory of this machine", remedy)
    return Path(where)


def inside(directory: Path, name: object) -> Path:
    """Where a file of a stranger's naming lies below a directory.

    Args:
        directory: what the file is to lie in.
        name: its name, relative, with slashes.

    Raises:
        IntegrityError: the name leads elsewhere, or is none.
    """
    parts = PurePosixPath(name).parts if isinstance(name, str) else ()
    if not parts or "\0" in str(name) or PurePosixPath(str(name)).is_absolute() or ".." in parts:
        raise IntegrityError([f"{name!r} is no name of a file that was sent"])
    return directory.joinpath(*parts)

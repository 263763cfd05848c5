"""Scratch directories: one for each process, removed after the process ends, even if it is killed.

Guarantees:
  * only the user can read them;
  * files of a killed process are removed by the next process that needs scratch space in the same place.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

__all__ = ["new_folder", "remove_all", "scratch"]

_PREFIX = "fdaudit-scratch-"
_LOCK = ".lock"
_held: dict[Path, IO[str]] = {}


@contextmanager
def scratch(purpose: str) -> Iterator[Path]:
    """Yield a directory that is removed when the block ends; `purpose` begins its name."""
    folder = new_folder(purpose)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_folder(purpose: str) -> Path:
    """Return a directory that lasts as long as this process, unless it is removed earlier."""
    return Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=_root(tempfile.gettempdir(), os.getpid())))


def remove_all() -> None:
    """Remove every scratch directory of this process."""
    for root, lock in list(_held.items()):
        shutil.rmtree(root, ignore_errors=True)
        lock.close()
        _held.pop(root, None)
    _root.cache_clear()


@cache
def _root(above: str, process: int) -> Path:
    """Return this process's own directory, locked while the process lives."""
    _remove_left_over(Path(above))
    made = Path(tempfile.mkdtemp(prefix=".new-" + _PREFIX, dir=above))
    lock = (made / _LOCK).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    root = made.with_name(made.name.removeprefix(".new-"))  # from here on others look at the lock
    made.rename(root)
    _held[root] = lock
    if len(_held) == 1:
        atexit.register(_remove_own, process)
    return root


def _remove_own(process: int) -> None:
    if os.getpid() == process:
        remove_all()


def _remove_left_over(above: Path) -> None:
    """Remove directories of ended processes: those whose lock is free."""
    for root in above.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if root.is_symlink() or root.lstat().st_uid != os.getuid():
                continue
            with (root / _LOCK).open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(root, ignore_errors=True)

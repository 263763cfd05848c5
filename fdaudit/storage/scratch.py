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
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import IO

__all__ = ["new_folder", "remove_all", "remove_tree", "scratch"]

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


def remove_tree(folder: Path) -> None:
    """Remove a directory that a stranger filled: however deep, whatever its modes, and following no link.

    What the system does not let go stays.
    """
    with suppress(OSError):
        top = _entered(str(folder), None)
        try:
            while names := os.listdir(top):
                for name in names:
                    _remove_entry(name, top)
        finally:
            os.close(top)
        folder.rmdir()


def _remove_entry(name: str, top: int) -> None:
    """Remove an entry of a directory; the directories in it are moved up, to be next."""
    if not _is_directory(name, top):
        os.unlink(name, dir_fd=top)
        return
    inner = _entered(name, top)
    try:
        for below in os.listdir(inner):
            if _is_directory(below, inner):
                os.close(_entered(below, inner))  # its mode must let it be moved
                os.rename(below, token_hex(16), src_dir_fd=inner, dst_dir_fd=top)
            else:
                os.unlink(below, dir_fd=inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)


def _is_directory(name: str, folder: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def _entered(name: str, folder: int | None) -> int:
    """Open a directory, and no link, after giving its owner every right to it."""
    only = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    if hasattr(os, "O_PATH"):
        descriptor = os.open(name, os.O_PATH | only, dir_fd=folder)
        try:
            os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
        finally:
            os.close(descriptor)
    return os.open(name, os.O_RDONLY | only, dir_fd=folder)


def remove_all() -> None:
    """Remove every scratch directory of this process."""
    for root, lock in list(_held.items()):
        remove_tree(root)
        lock.close()
        _held.pop(root, None)
    _root.cache_clear()


@cache
def _root(above: str, process: int) -> Path:
    """Return this process's own directory, locked while the process lives."""
    # Directories of ended processes: their lock is free.
    for other in Path(above).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if other.is_symlink() or other.lstat().st_uid != os.getuid():
                continue
            with (other / _LOCK).open("r") as other_lock:
                fcntl.flock(other_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(other)
    folder = Path(tempfile.mkdtemp(prefix=".new-" + _PREFIX, dir=above))
    lock = (folder / _LOCK).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    root = folder.with_name(folder.name.removeprefix(".new-"))  # from here on others look at the lock
    folder.rename(root)
    _held[root] = lock
    if len(_held) == 1:
        atexit.register(_remove_own, process)
    return root


def _remove_own(process: int) -> None:
    if os.getpid() == process:
        remove_all()

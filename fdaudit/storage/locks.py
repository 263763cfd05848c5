"""One writer at a time: private directories, and a lock on the directory being written.

Guarantees:
  * only one process or thread writes to a directory; others are refused at once with an error that says so;
  * the lock is on the directory itself. No lock file can become stale, and the lock ends with the process that holds
    it;
  * functions called by the lock's holder may write, in its own thread or in one that runs in its context;
  * a directory made here is private to its owner before anything is put in it, independent of the umask.

A network file system may know of the lock on one machine only.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from fdaudit.errors import RunError

__all__ = ["make_private", "together", "writing"]

_Key = tuple[int, int]
"""A directory by its device and inode."""


@dataclass(frozen=True)
class _Locks:
    """The locks of the current context, and the stack that holds locks to be kept beyond their block."""

    keys: set[_Key]
    kept: ExitStack | None = None


_locks: ContextVar[_Locks] = ContextVar("_locks", default=_Locks(set()))  # noqa: B039  # never changed: see `writing`


@contextmanager
def writing(directory: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock on a directory for the duration of the block, unless the current context already holds it.

    Args:
        directory: the directory.
        wait: wait for another writer to end, instead of raising.

    Raises:
        RunError: another process is writing to the directory, or it does not exist.
    """
    locks = _locks.get()
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        problem = f"cannot be opened ({error.strerror})"
        raise RunError("run", str(directory), problem, "Give a directory that can be written.") from None
    status = os.fstat(descriptor)
    key = status.st_dev, status.st_ino
    if key in locks.keys:
        os.close(descriptor)
        yield
        return
    try:
        _lock(descriptor, directory, wait)
    except BaseException:
        os.close(descriptor)
        raise
    if locks.kept is not None:
        locks.kept.callback(os.close, descriptor)
        locks.keys.add(key)
        yield
        return
    token = _locks.set(_Locks({*locks.keys, key}))
    try:
        yield
    finally:
        _locks.reset(token)
        os.close(descriptor)


@contextmanager
def together() -> Iterator[None]:
    """Keep every lock taken in the block until the block ends, so that no other process writes in between."""
    with ExitStack() as stack:
        token = _locks.set(_Locks(set(_locks.get().keys), stack))
        try:
            yield
        finally:
            _locks.reset(token)


def make_private(directory: Path) -> None:
    """Make a directory that only its owner may enter; restrict an existing one in the same way.

    Raises:
        RunError: it cannot be made, or belongs to another user.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.stat().st_mode & 0o077:
            directory.chmod(0o700)
    except OSError as error:
        problem = f"cannot be made ({error.strerror})"
        raise RunError("out", str(directory), problem, "Choose another directory.") from None


def _lock(descriptor: int, directory: Path, wait: bool) -> None:
    operation = fcntl.LOCK_EX
    if not wait:
        operation |= fcntl.LOCK_NB
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        problem = "is being written by another process"
        raise RunError("run", str(directory), problem, "Wait until it has ended, or end it.") from None
    except OSError as error:
        problem = f"cannot be locked ({error.strerror})"
        raise RunError("run", str(directory), problem, "Choose a directory on another file system.") from None

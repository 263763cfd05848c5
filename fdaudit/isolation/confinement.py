"""Confinement: a process gives up, for good, all files but those it is told, by Linux's Landlock.

Where the kernel has no Landlock (another system, or Linux before 5.13) nothing is given up, and `confine` says so.

Guarantees, where it returns True:
  * files outside the given directories can be neither read nor written, the memory and the descriptors of processes
    outside (`/proc`) included; neither this process nor its children can take that back;
  * from Linux 6.7 on no TCP connection can be made, from 6.12 on no process outside can be signalled.

Loads nothing of PyTorch: it must run before a library has started a thread, since it holds for the calling thread
and what that starts.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable

__all__ = ["confine", "offered"]

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PR_SET_NO_NEW_PRIVS = 38
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE = 1 << 14
_ALL_BY_VERSION = ((1, (1 << 13) - 1), (2, 1 << 13), (3, _TRUNCATE))
"""Rights over files that each version of Landlock can take away; those over devices (5) are left alone."""
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_TCP_SINCE, _TCP = 4, 0b11
_SCOPE_SINCE, _SCOPE = 6, 0b11
"""Abstract sockets and signals."""


def offered() -> int:
    """The version of Landlock that this system offers; 0 where there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, _syscall(_CREATE_RULESET, None, 0, 1))


def confine(readable: Iterable[str], writable: Iterable[str]) -> bool:
    """Gives up every file but those below the given paths; whether this system can.

    Args:
        readable: files and directories that may be read, programs among them run. What does not exist is left out.
        writable: those that may be written as well.

    Raises:
        OSError: the system has Landlock and refuses.
    """
    version = offered()
    if not version:
        return False
    files = sum(rights for since, rights in _ALL_BY_VERSION if version >= since)
    tcp = _TCP if version >= _TCP_SINCE else 0
    scope = _SCOPE if version >= _SCOPE_SINCE else 0
    attributes = struct.pack("=QQQ", files, tcp, scope)
    size = 24 if version >= _SCOPE_SINCE else 16 if version >= _TCP_SINCE else 8
    ruleset = _checked(_syscall(_CREATE_RULESET, attributes, size, 0))
    try:
        for paths, rights in ((readable, _READ), (writable, files)):
            for path in paths:
                _allow(ruleset, path, rights & files)
        _checked(_libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked(_syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)
    return True


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            rights &= _ON_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        _checked(_syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0))
    finally:
        os.close(descriptor)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _syscall(number: int, *arguments: object) -> int:
    return int(_libc().syscall(number, *arguments))


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result

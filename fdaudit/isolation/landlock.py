"""The layer of files: a process permanently gives up access to all but the given files, through Linux's Landlock.

Without Landlock in the kernel (another system, or Linux before 5.13) no access is given up, and `restrict` says so.

Guarantees, if it returns True:
  * files outside the given directories can be neither read nor written. This includes memory and descriptors of
    outside processes (`/proc`). Neither this process nor its children can undo it;
  * from Linux 6.7 on no TCP connection can be made, from 6.12 on no outside process can be signalled.

Landlock does not govern modes, owners, times and attributes of files, nor what exists: `system_calls` and `tree` do.

This module loads nothing of PyTorch: confinement must start before a library starts a thread, since it holds for the
calling thread and its descendants.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable

from fdaudit.isolation.system_calls import checked, libc, syscall

__all__ = ["offered", "restrict"]

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PR_SET_NO_NEW_PRIVS = 38
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE = 1 << 14
_ALL_BY_VERSION = ((1, (1 << 13) - 1), (2, 1 << 13), (3, _TRUNCATE))
"""Rights over files that each version of Landlock can take away; those over devices (5) are kept."""
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_TCP_SINCE, _TCP = 4, 0b11
_SCOPE_SINCE, _SCOPE = 6, 0b11
"""Abstract sockets and signals."""


def offered() -> int:
    """Return the version of Landlock that this system offers; 0 if there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, syscall(_CREATE_RULESET, None, 0, 1))


def restrict(readable: Iterable[str], writable: Iterable[str]) -> bool:
    """Give up access to every file except those below the given paths; return whether this system can.

    Args:
        readable: files and directories that may be read and run. Missing ones are left out.
        writable: files and directories that may also be written.

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
    size = 8
    if version >= _SCOPE_SINCE:
        size = 24
    elif version >= _TCP_SINCE:
        size = 16
    ruleset = checked(syscall(_CREATE_RULESET, attributes, size, 0))
    try:
        for paths, rights in ((readable, _READ), (writable, files)):
            for path in paths:
                _allow(ruleset, path, rights & files)
        checked(libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        checked(syscall(_RESTRICT_SELF, ruleset, 0))
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
        checked(syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0))
    finally:
        os.close(descriptor)

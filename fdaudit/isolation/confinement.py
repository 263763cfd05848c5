"""Confinement: a process and all that it starts keep access to what they were given, for good.

It has layers, and each can be missing on some system. No layer is silently left out: `confine` says which hold.

| Layer | What it takes away |
| --- | --- |
| `user` | the auditor's user: files of the run belong to someone else (only a third party's attack that root starts) |
| `network` | every network, and sockets of every family |
| `processes` | the sight of other processes, and every way to signal them; none of its own outlives it |
| `tree` | the existence of all other files; the files that may only be read are mounted read-only |
| `files` | opening of other files, by rules of the kernel (Landlock, from Linux 5.13 on) |
| `system calls` | modes, owners, times and attributes of files, and interfaces that no attack needs (seccomp) |
| `memory` | more memory, processes and disk than an attack may take |

Landlock's rules are for good: files outside the given directories can be neither read nor written. This includes memory
and descriptors of outside processes (`/proc`). From Linux 6.7 on no TCP connection can be made either, from 6.12 on no
outside process can be signalled. The filter of system calls governs modes, owners, times and attributes of files.

This module loads nothing of PyTorch: confinement must start before a library starts a thread, since it holds for the
calling thread and its descendants.
"""

from __future__ import annotations

import os
import resource
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from fdaudit.isolation import keeper, namespaces, system_calls
from fdaudit.isolation.system_calls import checked, libc, syscall

__all__ = ["LAYERS", "Allowed", "confine", "landlock_version", "restrict_files"]

LAYERS = ("user", "network", "processes", "tree", "files", "system calls", "memory")
_SWITCHED_OFF = "switched off"
_NOT_LINUX = "this system is not Linux"
_OWN_USER = "only root can start a process of another user"
_HIDDEN = "another user could not read the files that it needs"
_TRUSTED = "fdaudit's own attacks share the auditor's cache"
_NO_LANDLOCK = "the kernel has no Landlock"
_MOST_OPEN, _MOST_TASKS = 4096, 1024
_OUT_OF_MEMORY = "/proc/self/oom_score_adj"
_TASKS_BY_NAMESPACE = (5, 14)
"""The version of Linux from which a limit on processes counts only those of a namespace, and not all of the user's."""

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


@dataclass(frozen=True)
class Allowed:
    """What a confined process keeps.

    Attributes:
        readable: files and directories that may be read and run. Missing ones are left out.
        writable: files and directories that may also be written; the working directory is among them.
        bounds: what it may take.
        user: the user that it becomes if it is started by root; None for the same.
        trusted: whether it runs fdaudit's own attacks.
        accelerator: whether it needs the drivers of an accelerator.
        without: layers that are left out, and said to be.
    """

    readable: tuple[str, ...]
    writable: tuple[str, ...]
    bounds: keeper.Bounds
    user: int | None = None
    trusted: bool = False
    accelerator: bool = False
    without: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Allowed:
        """Return what `to_json` made `value` from."""
        paths = {name: tuple(value[name]) for name in ("readable", "writable", "without")}
        return cls(**{**value, **paths, "bounds": keeper.Bounds(**value["bounds"])})

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)


def confine(allowed: Allowed) -> dict[str, str]:
    """Confine this process, which must have one thread. On Linux a new child returns; the caller becomes its keeper.

    Returns:
        Why each missing layer is missing, by its name; the others hold.
    """
    if sys.platform != "linux":
        return dict.fromkeys(LAYERS, _NOT_LINUX)
    missing = dict.fromkeys(allowed.without, _SWITCHED_OFF)
    shared_with_keeper = [layer for layer in namespaces.NAMESPACES if layer not in (*missing, "tree")]
    missing |= namespaces.enter(shared_with_keeper)
    parent = os.getppid()
    keeper.hold_signals()
    child = os.fork()
    if child:
        keeper.keep(child, parent, allowed.bounds)
    keeper.tied_to_keeper()
    if "tree" not in missing:  # only now: the keeper still needs devices and the sight of all processes
        missing |= namespaces.enter(["tree"])
    alone = "processes" not in missing
    steps: tuple[tuple[str, Callable[[], str | None]], ...] = (
        ("memory", lambda: _bounded(allowed, alone)),
        ("tree", lambda: namespaces.build_tree(allowed.readable, allowed.writable)),
        ("user", lambda: _another_user(allowed)),
        ("files", lambda: restrict_files(allowed.readable, allowed.writable)),
        ("system calls", lambda: system_calls.filter_calls(alone, allowed.accelerator)),
    )
    for layer, step in steps:
        if layer == "files":
            namespaces.drop_privileges()
        if layer not in missing:
            try:
                reason = step()
            except OSError as error:
                reason = error.strerror or type(error).__name__
            if reason is not None:
                missing[layer] = reason
    if "system calls" not in missing:  # the filter refuses every socket
        missing.pop("network", None)
    return {layer: missing[layer] for layer in LAYERS if layer in missing}


def _bounded(allowed: Allowed, alone: bool) -> str | None:
    """Set limits that the process cannot raise, and have the system end it first if memory runs out."""
    bounds = allowed.bounds
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: bounds.disk,
        resource.RLIMIT_NOFILE: _MOST_OPEN,
    }
    if not allowed.accelerator:  # drivers map more than they use
        limits[resource.RLIMIT_DATA] = bounds.memory
    if alone:
        major, minor = os.uname().release.split(".")[:2]
        if (int(major), int(minor)) >= _TASKS_BY_NAMESPACE:
            limits[resource.RLIMIT_NPROC] = _MOST_TASKS
    for limit, value in limits.items():
        _, most = resource.getrlimit(limit)
        if most != resource.RLIM_INFINITY:
            value = min(value, most)
        resource.setrlimit(limit, (value, value))
    with suppress(OSError), open(_OUT_OF_MEMORY, "w", encoding="ascii") as file:
        file.write("1000")  # the keeper watches, too
    return None


def _another_user(allowed: Allowed) -> str | None:
    if allowed.trusted:
        return _TRUSTED
    if allowed.user is None or os.geteuid() != 0:
        return _OWN_USER
    own: list[str] = []
    for path in allowed.writable:
        if not path.startswith(("/dev", "/proc")):
            own.append(path)
    try:
        hidden = namespaces.unreachable([*allowed.readable, *own], allowed.user)
        if hidden is None:
            namespaces.become(allowed.user)
    except OSError as error:
        hidden = error.strerror or type(error).__name__
    namespaces.stay_visible()
    if os.geteuid() == 0:  # its folders were given to the other user
        for path in own:
            os.chown(path, 0, 0)
    return None if hidden is None else _HIDDEN


def landlock_version() -> int:
    """Return the version of Landlock that this system offers; 0 if there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, syscall(_CREATE_RULESET, None, 0, 1))


def restrict_files(readable: Iterable[str], writable: Iterable[str]) -> str | None:
    """Give up access to every file except those below the given paths; return why this system cannot, or None.

    Args:
        readable: files and directories that may be read and run. Missing ones are left out.
        writable: files and directories that may also be written.

    Raises:
        OSError: the system has Landlock and refuses.
    """
    version = landlock_version()
    if not version:
        return _NO_LANDLOCK
    files = 0
    for since, rights in _ALL_BY_VERSION:
        if version >= since:
            files += rights
    tcp, scope, size = 0, 0, 8  # the size in bytes of the attributes that this version reads
    if version >= _TCP_SINCE:
        tcp, size = _TCP, 16
    if version >= _SCOPE_SINCE:
        scope, size = _SCOPE, 24
    ruleset = checked(syscall(_CREATE_RULESET, struct.pack("=QQQ", files, tcp, scope), size, 0))
    try:
        for path in readable:
            _allow(ruleset, path, _READ & files)
        for path in writable:
            _allow(ruleset, path, files)
        checked(libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        checked(syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)
    return None


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

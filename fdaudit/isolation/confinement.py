"""Confinement: a process and all that it starts keep access to what they were given, for good.

It has layers, and each can be missing on some system. No layer is silently left out: `confine` says which hold.

| Layer | What it takes away |
| --- | --- |
| `user` | the auditor's user: files of the run belong to somebody else (only a third party's attack that root starts) |
| `network` | every network, and sockets of every family |
| `processes` | the sight of other processes, and every way to signal them; none of its own outlives it |
| `tree` | the existence of all other files; the files that may only be read are mounted read-only |
| `files` | opening of other files, by rules of the kernel (Landlock) |
| `system calls` | modes, owners, times and attributes of files, and interfaces that no attack needs (seccomp) |
| `memory` | more memory, processes and disk than an attack may take |

This module loads nothing of PyTorch: confinement must start before a library starts a thread, since it holds for the
calling thread and its descendants.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from fdaudit.isolation import keeper, landlock, namespaces, system_calls

__all__ = ["LAYERS", "Allowed", "confine"]

LAYERS = ("user", "network", "processes", "tree", "files", "system calls", "memory")
_SWITCHED_OFF = "switched off"
_NOT_LINUX = "this system is not Linux"
_OWN_USER = "only root can start a process of another user"
_HIDDEN = "another user could not read the files that it needs"
_TRUSTED = "fdaudit's own attacks share the auditor's cache"
_MOST_OPEN, _MOST_TASKS = 4096, 1024
_OUT_OF_MEMORY = "/proc/self/oom_score_adj"


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
        ("files", lambda: _only_files(allowed)),
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
    if alone and _counts_by_namespace():
        limits[resource.RLIMIT_NPROC] = _MOST_TASKS
    for limit, value in limits.items():
        _, most = resource.getrlimit(limit)
        lower = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(limit, (lower, lower))
    with suppress(OSError), open(_OUT_OF_MEMORY, "w", encoding="ascii") as file:
        file.write("1000")  # the keeper watches, too
    return None


def _counts_by_namespace() -> bool:
    """Return whether a limit on processes counts only those of this namespace, and not all of the user's."""
    release: Sequence[str] = os.uname().release.split(".")
    return (int(release[0]), int(release[1])) >= (5, 14)


def _another_user(allowed: Allowed) -> str | None:
    if allowed.trusted:
        return _TRUSTED
    if allowed.user is None or os.geteuid() != 0:
        return _OWN_USER
    own = [path for path in allowed.writable if not path.startswith(("/dev", "/proc"))]
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


def _only_files(allowed: Allowed) -> str | None:
    restricted = landlock.restrict(allowed.readable, allowed.writable)
    return None if restricted else "the kernel has no Landlock"

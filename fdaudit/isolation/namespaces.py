"""The layers of Linux's namespaces: own networks, processes and file tree, and another user.

`enter` is called for processes before the confined process is forked, because only the child is in the new namespace.
For the tree it is called by the child, whose keeper must not lose its own tree. `build_tree` and `become` are called by
the child, too.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fdaudit.isolation.system_calls import checked, libc, syscall

__all__ = ["NAMESPACES", "become", "build_tree", "drop_privileges", "enter", "stay_visible", "unreachable"]

_MOUNT, _UTS, _IPC, _USER, _PID, _NET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
NAMESPACES = {"tree": _MOUNT, "processes": _PID | _IPC | _UTS, "network": _NET}
"""The layers that are namespaces."""
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXECUTION = 1, 2, 4, 8
_BIND, _RECURSIVE, _PRIVATE, _DETACH = 4096, 16384, 1 << 18, 2
_SET_ATTRIBUTES, _PIVOT = 442, {"x86_64": 155, "aarch64": 41}
_AT_RECURSIVE, _AT_HERE = 0x8000, -100
_PR_SET_DUMPABLE, _PR_DROP_BOUND = 4, 24
_SET_CAPABILITIES = {"x86_64": 126, "aarch64": 91}
_CAPABILITIES_3 = 0x20080522
_SCAFFOLD = "/dev"
"""Where the new tree is made: a directory that is itself not shown in it."""
_MOST_PRIVILEGES, _MOST_LINKS = 64, 40


def enter(wanted: Collection[str]) -> dict[str, str]:
    """Enter new namespaces for layers, all that the system gives; those of processes are for later children only.

    Without privileges they need a user namespace, which comes first. It maps this user to itself.

    Args:
        wanted: names of `NAMESPACES`.

    Returns:
        The layers that could not be had, each with the system's reason.
    """
    refused = dict[str, str]()
    names = [name for name in NAMESPACES if name in wanted]
    everything = sum(NAMESPACES[name] for name in names)
    if libc().unshare(everything) == 0:
        return refused
    user, group = os.geteuid(), os.getegid()
    with suppress(OSError):
        checked(libc().unshare(_USER))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    for name in names:
        try:
            checked(libc().unshare(NAMESPACES[name]))
        except OSError as error:
            refused[name] = f"{error.strerror}"
    return refused


def build_tree(readable: Sequence[str], writable: Sequence[str]) -> None:
    """Replace the tree of files by one with nothing but these, the readable ones read-only.

    Raises:
        OSError: the system refuses; the tree is then as it was.
    """
    top, here = _SCAFFOLD, os.getcwd()
    proc = os.open("/proc", os.O_PATH | os.O_CLOEXEC)
    entries = [*_shown(readable, writable=False), *_shown(writable, writable=True)]
    writes_proc = any(path.startswith("/proc/") for path in writable)
    changed = dict[str, int]()
    for entry in entries:
        for folder in map(str, Path(entry.place).parents):
            if folder not in changed:
                changed[folder] = os.stat(folder).st_mtime_ns
    try:
        _mount("none", "/", None, _RECURSIVE | _PRIVATE)
        _mount("none", top, b"tmpfs", _NO_SUID | _NO_DEVICES)
        try:
            for entry in sorted(entries, key=lambda entry: entry.place):
                _show(top, entry)
            _show_proc(top, proc, writes_proc)
            # Python lists a changed directory again, which rules may forbid.
            for folder, when in changed.items():
                if os.stat(top + folder).st_dev == os.stat(top).st_dev:
                    os.utime(top + folder, ns=(when, when))
            os.chdir(top)
            checked(syscall(_PIVOT[os.uname().machine], b".", b"."))
        except OSError:
            libc().umount2(os.fsencode(top), _DETACH)
            raise
        checked(libc().umount2(b".", _DETACH))
    finally:
        os.close(proc)
        for entry in entries:
            os.close(entry.descriptor)
        os.chdir(here)
    _make_read_only("/", recursive=False)


@dataclass(frozen=True)
class _TreeEntry:
    """A file or a directory of the new tree.

    Attributes:
        place: its name without links.
        links: the links on the way to it: name and what they say.
        descriptor: of the file itself, which later mounts do not hide.
        writable: whether it may be written.
    """

    place: str
    links: tuple[tuple[str, str], ...]
    descriptor: int
    writable: bool


def _shown(paths: Sequence[str], writable: bool) -> Iterator[_TreeEntry]:
    """Yield what to show of the paths that exist. Those of `/proc` are left out, which is shown as a whole."""
    for path in paths:
        place = os.path.realpath(path)
        if path.startswith("/proc/") or place.startswith("/proc/"):
            continue
        try:
            descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        yield _TreeEntry(place, tuple(_links_on(path)), descriptor, writable)


def _links_on(path: str) -> Iterator[tuple[str, str]]:
    """Yield the links that a path goes through, each with what it says."""
    parts, resolved = path.split("/")[1:], ""
    for _ in range(_MOST_LINKS):
        while parts:
            resolved = os.path.normpath(f"{resolved}/{parts.pop(0)}")
            if os.path.islink(resolved):
                break
        else:
            return
        target = os.readlink(resolved)
        yield resolved, target
        parts = [*os.path.join(os.path.dirname(resolved), target).split("/")[1:], *parts]
        resolved = ""


def _show(top: str, entry: _TreeEntry) -> None:
    """Mount a file or a directory in the new tree, which is made at `top`."""
    for name, link in entry.links:
        if not os.path.lexists(top + name):
            os.makedirs(os.path.dirname(top + name), 0o755, exist_ok=True)
            os.symlink(link, top + name)
    source = f"/proc/self/fd/{entry.descriptor}"
    target = top + entry.place
    if not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
        if os.path.isdir(source):
            os.mkdir(target, 0o755)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    elif not entry.writable and os.stat(target).st_dev != os.stat(top).st_dev:
        return  # it is inside what was shown before
    _mount(source, target, None, _BIND | _RECURSIVE)
    if not entry.writable:
        _make_read_only(target, recursive=True)


def _show_proc(top: str, old: int, writes_proc: bool) -> None:
    """Show the processes of this namespace; if the system refuses, the old `/proc`."""
    target = f"{top}/proc"
    os.mkdir(target, 0o755)
    try:
        _mount("proc", target, b"proc", _NO_SUID | _NO_DEVICES | _NO_EXECUTION)
    except OSError:  # in a container that hides parts of it
        _mount(f"/proc/self/fd/{old}", target, None, _BIND | _RECURSIVE)
    if not writes_proc:
        _make_read_only(target, recursive=True)


def _mount(source: str, target: str, kind: bytes | None, flags: int) -> None:
    checked(libc().mount(os.fsencode(source), os.fsencode(target), kind, ctypes.c_ulong(flags), None))


def _make_read_only(path: str, recursive: bool) -> None:
    flags = 0
    if recursive:
        flags = _AT_RECURSIVE
    attributes = struct.pack("=QQQQ", _READ_ONLY | _NO_SUID, 0, 0, 0)
    checked(syscall(_SET_ATTRIBUTES, _AT_HERE, os.fsencode(path), flags, attributes, len(attributes)))


def unreachable(paths: Iterable[str], user: int) -> str | None:
    """Return the first of the paths that another user could not read; this process must be root's."""
    existing = [path for path in paths if os.path.exists(path)]
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(user)
    os.seteuid(user)
    try:
        for path in existing:
            mode = os.R_OK
            if os.path.isdir(path):
                mode |= os.X_OK
            if not os.access(path, mode, effective_ids=True):
                return path
        return None
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def become(user: int) -> None:
    """Become another user without privileges.

    Raises:
        OSError: there is no such user in this namespace.
    """
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def stay_visible() -> None:
    """Let a process that changed its user still read its own files in `/proc`.

    Raises:
        OSError: the system refuses.
    """
    checked(libc().prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))


def drop_privileges() -> None:
    """Give up every privilege, also those that a started program would get.

    Raises:
        OSError: the system refuses.
    """
    for number in range(_MOST_PRIVILEGES):
        libc().prctl(_PR_DROP_BOUND, number, 0, 0, 0)
    header = struct.pack("=Ii", _CAPABILITIES_3, 0)
    checked(syscall(_SET_CAPABILITIES[os.uname().machine], header, bytes(24)))

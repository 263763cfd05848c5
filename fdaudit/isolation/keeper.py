"""The keeper of a confined process: it waits for it, watches what it takes, and leaves none of its children.

The keeper runs only this module's code, outside of the confinement. The confined process cannot see or signal it where
processes have a namespace of their own; elsewhere the keeper adopts and ends whatever its process leaves behind.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from fdaudit.isolation.system_calls import libc

__all__ = ["BY_SIGNAL", "ENDINGS", "Bounds", "hold_signals", "keep", "tied_to_keeper"]

_TOO_MUCH_MEMORY, _TOO_MANY_PROCESSES, _TOO_MUCH_DISK = 90, 91, 92
ENDINGS = {
    _TOO_MUCH_MEMORY: "it took more memory than an attack may (nine tenths of the machine's)",
    _TOO_MANY_PROCESSES: "it started more processes than an attack may (128)",
    _TOO_MUCH_DISK: "it wrote more to disk than an attack may (16 GiB, or half of what was free)",
}
"""Why the keeper ended a process, by its own exit status."""
BY_SIGNAL = 128
"""What the keeper adds to the number of the signal that ended its process, in its own exit status."""
_PR_SET_PDEATHSIG, _PR_SET_SUBREAPER = 1, 36
_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}
_PAUSE, _SHARE = 0.25, 0.005
"""Least seconds between two looks, and the most of a processor that looking may take."""
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_SPARE_DISK, _LEAST_ENTRY = 1 << 28, 4096
"""Bytes: below this much free space an attack must not take more; and what even an empty file is taken for."""


@dataclass(frozen=True)
class Bounds:
    """The most that an attack's processes may take together.

    Attributes:
        memory: bytes of memory of their own.
        processes: how many there may be.
        disk: bytes written.
        folder: the directory that holds what is written; None if others write there too.
    """

    memory: int
    processes: int
    disk: int
    folder: str | None = None


def hold_signals() -> None:
    """Collect signals for `keep`, and adopt what a child leaves behind; to be called before the child is forked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    libc().prctl(_PR_SET_SUBREAPER, 1, 0, 0, 0)


def tied_to_keeper() -> None:
    """In the child: take signals again, have a session of its own, and end with the keeper."""
    libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.setsid()


def keep(child: int, parent: int, bounds: Bounds) -> NoReturn:
    """Wait for the end of a child, of this process's parent, or of its patience; then end all that is left, and exit.

    Args:
        child: the confined process.
        parent: the process to which the keeper belongs.
        bounds: what the child and its descendants may take.
    """
    why = 1
    with suppress(BaseException):
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):  # the ends of the pipe belong to the child
            os.dup2(nothing, number)
        os.chdir("/")
        why = _watched(child, parent, bounds)
    # Descendants that lose their parent become children of this process, so it collects all of them.
    with suppress(BaseException):
        while True:
            for process in _descendants():
                with suppress(OSError):
                    os.kill(process, signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
    if why == -signal.SIGKILL:  # its starter tells this from an end of its own
        os.kill(os.getpid(), signal.SIGKILL)
    if why in ENDINGS:
        os._exit(why)
    if why < 0:
        os._exit(BY_SIGNAL - why)
    os._exit(min(why, 1))


def _watched(child: int, parent: int, bounds: Bounds) -> int:
    """Return the child's exit status, or why it must end."""
    pause, free = _PAUSE, _free(bounds.folder)
    while os.getppid() == parent:
        arrived = signal.sigtimedwait(_SIGNALS, pause)
        if arrived is not None and arrived.si_signo == signal.SIGTERM:
            return 0
        while (child_status := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if child_status[0] == child:
                return os.waitstatus_to_exitcode(child_status[1])
        if arrived is None:
            start = time.process_time()
            if (why := _excess(bounds, free)) is not None:
                return why
            pause = max(_PAUSE, (time.process_time() - start) / _SHARE)
    return 0


def _excess(bounds: Bounds, free: int) -> int | None:
    """Return which bound the descendants of this process have passed; None if they keep all."""
    processes = _descendants()
    if len(processes) > bounds.processes:
        return _TOO_MANY_PROCESSES
    if sum(map(_memory, processes)) > bounds.memory:
        return _TOO_MUCH_MEMORY
    if bounds.folder is None:
        return None
    if _free(bounds.folder) < min(free - _SPARE_DISK, _SPARE_DISK):
        return _TOO_MUCH_DISK
    # What is on disk is counted until there is too much.
    total, agenda = 0, [bounds.folder]
    while agenda and total <= bounds.disk:
        with suppress(OSError), os.scandir(agenda.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        agenda.append(entry.path)
                    total += max(_LEAST_ENTRY, 512 * entry.stat(follow_symlinks=False).st_blocks)
    if total > bounds.disk:
        return _TOO_MUCH_DISK
    return None


def _descendants() -> Sequence[int]:
    parents = dict[int, int]()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                after_name = file.read().rpartition(b")")[2]
                parents[int(name)] = int(after_name.split()[1])
    processes, more = set[int](), {os.getpid()}
    while more:
        children = set[int]()
        for process, above in parents.items():
            if above in more:
                children.add(process)
        more = children - processes
        processes |= more
    return sorted(processes)


def _memory(process: int) -> int:
    """Return the bytes of memory that are a process's own."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{process}/statm", "rb") as file:
        fields = file.read().split()
        return _PAGE * (int(fields[1]) - int(fields[2]))
    return 0


def _free(folder: str | None) -> int:
    if folder is None:
        return 0
    with suppress(OSError):
        system = os.statvfs(folder)
        return system.f_bavail * system.f_frsize
    return 0

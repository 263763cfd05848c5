"""Starts of attack processes: as a new program, or as a fork of a process that has loaded only libraries; and pipes.

Guarantees:
  * the process inherits no open file except the two ends of its pipe and its output file;
  * it uses only the given environment variables;
  * a new program shares no memory with its starter. A fork shares that of a process that has loaded libraries and
    read nothing of a run. For this reason only fdaudit's own attacks are forked;
  * no pipe outlasts its process: reading and writing end with the process, whoever else holds the other end, and at a
    deadline.
"""

from __future__ import annotations

import io
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, active_count
from typing import Any, BinaryIO, Protocol, cast

from fdaudit.errors import FdauditError
from fdaudit.isolation.confinement import Allowed

__all__ = ["THREADS", "Launch", "OverdueError", "Pipe", "Process", "ended_within", "fork", "new_program"]

THREADS = {
    "JOBLIB_MULTIPROCESSING": "0",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Variables that libraries read when they are loaded: a process that forks attackers was started with them."""
_PROGRAM = "fdaudit.isolation.process"

_TICK = 0.2
"""Seconds between two looks at a process whose end the system cannot announce."""


class OverdueError(FdauditError):
    """The process took longer than it may."""


class Process(Protocol):
    """A started process."""

    pid: int

    def poll(self) -> int | None:
        """Return its exit status, or None while it lives."""
        ...

    def wait(self) -> int:
        """Wait for its end; return its exit status."""
        ...


@dataclass(frozen=True)
class Launch:
    """The start parameters of a process.

    Attributes:
        allowed: what it keeps when it is confined.
        output: open file for its output.
        directory: its working directory.
        variables: its environment.
    """

    allowed: Allowed
    output: BinaryIO
    directory: Path
    variables: Mapping[str, str]


def new_program(launch: Launch) -> tuple[Process, BinaryIO, BinaryIO]:
    """Start a new program; return the process, the pipe from it and the pipe to it."""
    process = subprocess.Popen(  # noqa: S603  # a module of ours, by name
        [sys.executable, "-m", _PROGRAM, json.dumps(launch.allowed.to_json())],
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=launch.output,
        cwd=launch.directory,
        env=dict(launch.variables),
    )
    return process, cast(BinaryIO, process.stdout), cast(BinaryIO, process.stdin)


def fork(launch: Launch) -> tuple[Process, BinaryIO, BinaryIO]:
    """Fork this process, which must not have done anything yet; return the same as `new_program`.

    Raises:
        RuntimeError: other threads run, or libraries were loaded without the variables of `THREADS`.
    """
    if active_count() > 1 or any(os.environ.get(k) != v for k, v in THREADS.items()):
        raise RuntimeError("an attacker can be forked by a process that has loaded libraries only")
    # What every attack and the auditor need; an attack loads other libraries when it needs them.
    from fdaudit.adversary import view
    from fdaudit.isolation import schema

    del view, schema
    from_here, to_there = os.pipe()
    from_there, to_here = os.pipe()
    pid = os.fork()
    if pid == 0:  # the child serves trials until its input ends
        with suppress(BaseException):
            os.setsid()
            for number, descriptor in enumerate((from_here, to_here, launch.output.fileno())):
                os.dup2(descriptor, number)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.environ.clear()
            os.environ.update(launch.variables)
            os.chdir(launch.directory)
            # PyTorch's compiler makes a directory among temporary files, and may not write where the starter has them.
            tempfile.tempdir = None
            from fdaudit.isolation.process import serve_until_the_end

            serve_until_the_end(launch.allowed)
        os._exit(1)
    os.close(from_here)
    os.close(to_here)
    return _Forked(pid), os.fdopen(from_there, "rb"), os.fdopen(to_there, "wb")


@dataclass
class _Forked:
    """A forked child with the interface of `subprocess`."""

    pid: int
    _status: int | None = field(default=None, init=False)
    _turn: Lock = field(default_factory=Lock, init=False)

    def poll(self) -> int | None:
        return self._waited(os.WNOHANG)

    def wait(self) -> int:
        return cast(int, self._waited(0))

    def _waited(self, how: int) -> int | None:
        with self._turn:
            if self._status is None:
                pid, status = os.waitpid(self.pid, how)
                if pid:
                    self._status = os.waitstatus_to_exitcode(status)
            return self._status


class Pipe(io.RawIOBase):
    """One end of a pipe to a process.

    Args:
        end: the open end; it is closed with this object.
        process: the process at the other end.
        until: returns the time of `time.monotonic` at which waiting ends with an `OverdueError`.
    """

    def __init__(self, end: BinaryIO, process: Process, until: Callable[[], float]) -> None:
        self._end, self._process, self._until = end, process, until
        os.set_blocking(end.fileno(), False)
        self._announced = _announcing(process)

    def readable(self) -> bool:
        """Return True; writing to an end that is only read fails."""
        return True

    def writable(self) -> bool:
        """Return True; reading from an end that is only written fails."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what there is; 0 at the end of the pipe or of the process."""
        if not self._ready(select.POLLIN):
            return 0
        return os.readv(self._end.fileno(), [buffer])

    def write(self, data: Any) -> int:
        """Write a part of the data.

        Raises:
            BrokenPipeError: the process has ended.
        """
        if not self._ready(select.POLLOUT):
            raise BrokenPipeError("the process has ended")
        return os.write(self._end.fileno(), data)

    def close(self) -> None:
        """Close the end."""
        if not self.closed and self._announced is not None:
            os.close(self._announced)
        self._end.close()
        super().close()

    def _ready(self, event: int) -> bool:
        """Wait until the pipe is ready; return whether it is, and not at its process's end."""
        waiting = select.poll()
        waiting.register(self._end.fileno(), event)
        longest = _TICK
        if self._announced is not None:
            waiting.register(self._announced, select.POLLIN)
            longest = 3600.0
        while True:
            seconds = self._until() - time.monotonic()
            if seconds <= 0:
                raise OverdueError("the process took longer than it may")
            ready = dict(waiting.poll(1000 * min(seconds, longest) + 1))
            if self._end.fileno() in ready:
                return True
            if ready or self._process.poll() is not None:
                waiting.unregister(self._end.fileno())
                waiting.register(self._end.fileno(), event)  # what it wrote before it ended is still read
                return self._end.fileno() in dict(waiting.poll(0))


def _announcing(process: Process) -> int | None:
    """Return a descriptor that becomes readable when a process ends; None where the system has none."""
    pidfd_open = getattr(os, "pidfd_open", None)
    if pidfd_open is not None:
        with suppress(OSError):
            return cast(int, pidfd_open(process.pid))
    return None


def ended_within(process: Process, seconds: float) -> bool:
    """Return whether a process ends within a time."""
    until = time.monotonic() + seconds
    announced = _announcing(process)
    if announced is not None:
        waiting = select.poll()
        waiting.register(announced, select.POLLIN)
        waiting.poll(1000 * seconds)
        os.close(announced)
    while process.poll() is None:  # its status may come a moment after its end
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True

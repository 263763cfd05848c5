"""Starts of attack processes: as a new program, or as a fork of a process that has loaded only libraries.

Guarantees:
  * the process inherits no open file except the two ends of its pipe and its output file;
  * it uses only the given environment variables;
  * a new program shares no memory with its starter. A fork shares that of a process that has loaded libraries and
    read nothing of a run. For this reason only fdaudit's own attacks are forked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, active_count
from typing import BinaryIO, NoReturn, Protocol, cast

__all__ = ["THREADS", "Launch", "Process", "fork", "new_program"]

THREADS = {
    "JOBLIB_MULTIPROCESSING": "0",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Variables that libraries read when they are loaded: a process that forks attackers was started with them."""
_PROGRAM = "fdaudit.isolation.process"


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
        paths: files to which it keeps access, by `readable` and `writable`.
        output: open file for its output.
        directory: its working directory.
        variables: its environment.
    """

    paths: Mapping[str, Sequence[str]]
    output: BinaryIO
    directory: Path
    variables: Mapping[str, str]


def new_program(launch: Launch) -> tuple[Process, BinaryIO, BinaryIO]:
    """Start a new program; return the process, the pipe from it and the pipe to it."""
    process = subprocess.Popen(  # noqa: S603  # a module of ours, by name
        [sys.executable, "-m", _PROGRAM, json.dumps(launch.paths)],
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=launch.output,
        cwd=launch.directory,
        env=dict(launch.variables),
    )
    return process, cast(BinaryIO, process.stdout), cast(BinaryIO, process.stdin)


def _load_libraries() -> None:
    """Load the libraries that both attacks and the auditor need."""
    import scipy.stats
    import torch._dynamo  # which PyTorch loads when an optimiser is first made

    from fdaudit.adversary import view
    from fdaudit.isolation import schema

    del scipy, torch, view, schema


def fork(launch: Launch) -> tuple[Process, BinaryIO, BinaryIO]:
    """Fork this process, which must not have done anything yet; return the same as `new_program`.

    Raises:
        RuntimeError: other threads run, or libraries were loaded without the variables of `THREADS`.
    """
    if active_count() > 1 or any(os.environ.get(k) != v for k, v in THREADS.items()):
        raise RuntimeError("an attacker can be forked by a process that has loaded libraries only")
    _load_libraries()
    from_here, to_there = os.pipe()
    from_there, to_here = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(launch, from_here, to_here)
    os.close(from_here)
    os.close(to_here)
    return _Forked(pid), os.fdopen(from_there, "rb"), os.fdopen(to_there, "wb")


def _become(launch: Launch, reading: int, writing: int) -> NoReturn:
    """Serve cases in the child until its input ends."""
    with suppress(BaseException):
        os.setsid()
        for number, descriptor in enumerate((reading, writing, launch.output.fileno())):
            os.dup2(descriptor, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(launch.variables)
        os.chdir(launch.directory)
        from fdaudit.isolation.process import serve_until_the_end

        serve_until_the_end(launch.paths)
    os._exit(1)


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
                found, status = os.waitpid(self.pid, how)
                if found:
                    self._status = os.waitstatus_to_exitcode(status)
            return self._status

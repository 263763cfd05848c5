"""Processes that need not load PyTorch again: each is forked from one that has loaded it and done nothing else.

A command is what follows `python`: `-m fdaudit ...` or `-c CODE ...`. It runs in a process of its own, with its own
environment, working directory, files and session. Tests of what happens when Python starts use `subprocess` instead.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from select import select
from tempfile import TemporaryFile
from typing import IO, Any, BinaryIO, cast

import pytest

from fdaudit.isolation import attacker
from fdaudit.isolation.launch import THREADS, Launch, new_program
from fdaudit.parallel.pool import Pool

_SERVER = """
import importlib.util, json, os, runpy, socket, sys, tempfile
from contextlib import suppress
import scipy.stats, torch._dynamo, fdaudit, fdaudit.audit.pipeline, fdaudit.cli.app, fdaudit.sweeps.sweep
import fdaudit.isolation.schema, fdaudit.evaluation.runner

def become(asked, files):
    os.setsid()
    os.environ.clear()
    os.environ.update(asked["env"])
    more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [place for place in more if place and place not in sys.path]
    importlib.util.find_spec("nothing")  # lists these directories, as the imports of a starting Python do
    tempfile.tempdir = None  # which a library may have looked up
    os.chdir(asked["cwd"])
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)
    how, what, *arguments = asked["command"]
    sys.argv = [what if how == "-m" else how, *arguments]
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})

def reap():
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass

assert len(os.listdir("/proc/self/task")) == 1, "a thread would be lost in a fork"
asking = socket.socket(fileno=0)
while True:
    reap()
    message, files, _, _ = socket.recv_fds(asking, 1 << 20, 4)
    if not message:
        break
    reap()
    if os.fork() == 0:
        pid = os.fork()
        if pid == 0:
            break
        asking.close()
        answer = socket.socket(fileno=files[3])
        for file in files[:3]:
            os.close(file)
        answer.sendall(f"{pid}\\n".encode())
        _, status = os.waitpid(pid, 0)
        answer.sendall(f"{os.waitstatus_to_exitcode(status)}\\n".encode())
        os._exit(0)
    for file in files:
        os.close(file)
reap()
if message:
    become(json.loads(message), files[:3])
"""


@cache
def _server() -> socket.socket:
    """Start the process that is forked; it ends with this one."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        server = subprocess.Popen([sys.executable, "-c", _SERVER], stdin=there, env={**os.environ, **THREADS})

    def end() -> None:
        here.close()
        server.wait()

    atexit.register(end)
    return here


class Started:
    """A started command, with the part of the interface of `subprocess.Popen` that tests use.

    Args:
        command: what follows `python`.
        stdin: open file, `subprocess.PIPE` or `subprocess.DEVNULL`; by default, the input of this process.
        stdout: the same for its output.
        stderr: the same for its errors.
        env: its environment, by default that of this process.
        cwd: its working directory, by default that of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: IO[Any] | int | None = None,
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        asked = {"command": list(command), "env": dict(env or os.environ), "cwd": str(cwd or Path.cwd())}
        self.returncode: int | None = None
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self._answer, there = socket.socketpair()
        with ExitStack() as opened:
            opened.callback(there.close)
            files = []
            for number, file in enumerate((stdin, stdout, stderr)):
                if file == subprocess.PIPE:
                    reading, writing = os.pipe()
                    theirs, ours = (writing, reading) if number else (reading, writing)
                    opened.callback(os.close, theirs)
                    setattr(
                        self, ("stdin", "stdout", "stderr")[number], os.fdopen(ours, "r" if number else "w")
                    )
                elif file == subprocess.DEVNULL:
                    theirs = os.open(os.devnull, os.O_RDWR)
                    opened.callback(os.close, theirs)
                else:
                    theirs = number if file is None else file if isinstance(file, int) else file.fileno()
                files.append(theirs)
            socket.send_fds(_server(), [json.dumps(asked).encode()], [*files, there.fileno()])
        self._lines = self._answer.makefile()
        self.pid = int(self._lines.readline())

    def poll(self) -> int | None:
        """Return its exit status, or None while it lives."""
        return self.returncode if self._ended(0) else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit status."""
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired("a forked command", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def _ended(self, timeout: float | None) -> bool:
        if self.returncode is None and select([self._answer], [], [], timeout)[0]:
            self.returncode = int(self._lines.readline())
            self._lines.close()
            self._answer.close()
        return self.returncode is not None

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended, and its exit status is under way
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def end(self) -> int:
        """Close its input and output; wait for its end and return its exit status."""
        for file in (self.stdin, self.stdout):
            if file is not None:
                file.close()
        return self.wait()


def run(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; return its exit status, output and errors."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as errors:
        code = Started(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=env, cwd=cwd).wait(
            600
        )
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), errors.read())


def launch_fork(launch: Launch) -> tuple[Started, BinaryIO, BinaryIO]:
    """Start the process of an attack as `new_program` does, but forked."""
    process = Started(
        ["-m", "fdaudit.isolation.process", json.dumps(launch.allowed.to_json())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=launch.output,
        cwd=launch.directory,
        env=launch.variables,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    return process, cast(BinaryIO, process.stdout.detach()), cast(BinaryIO, process.stdin.detach())  # type: ignore[attr-defined]


@contextmanager
def forked_attackers() -> Iterator[None]:
    """Processes of attacks are forked meanwhile; they share no memory with this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attacker.Attacker.__init__, "__defaults__", (launch_fork,))
        yield


@contextmanager
def programs_as_attackers() -> Iterator[None]:
    """Processes of attacks are new programs meanwhile, and none that was forked before is used."""
    attacker.dismiss()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attacker.Attacker.__init__, "__defaults__", (new_program,))
        yield
        attacker.dismiss()


@contextmanager
def forked_workers() -> Iterator[None]:
    """Processes of pools are forked meanwhile; all else is as in `Pool`."""

    def start(self: Any) -> Started:
        return Started(
            ["-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **self._variables},
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pool, "_start", start)
        yield

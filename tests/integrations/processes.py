"""Processes that a test starts, and their end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

SAFETY = 600.0
"""Seconds after which a wait ends with an error: a process that hangs must not hang the tests."""

_MARK = "FDAUDIT_TEST_PROCESSES"


class Processes:
    """Processes that run in a directory, with all the processes that they start."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self._environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            _MARK: str(folder),
            **environment,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Kill what is left, such as the apps of a run that was not over."""
        self.kill()

    def kill(self) -> None:
        """Kill every process."""

        def gone() -> bool:
            left = self.processes()
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, os.WNOHANG)
                except (ProcessLookupError, ChildProcessError):  # it ended, or is the child of another
                    continue
            return not left

        self.until(gone, "end of all processes")

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process whose output goes to a log."""
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [shutil.which(command[0], path=self._environment["PATH"]) or command[0], *command[1:]],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                cwd=self.folder, env=self._environment,
            )  # fmt: skip

    def until(self, done: Callable[[], Any], what: str) -> None:
        """Wait for a condition."""
        end = time.monotonic() + SAFETY
        while not done():
            assert time.monotonic() < end, f"no {what} in {SAFETY} s\n{self.logs()}"
            time.sleep(0.05)

    def logs(self) -> str:
        """Return the end of each log, for the message of a failure."""
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in self.folder.glob("*.log")
        )

    def processes(self) -> list[int]:
        """Return the numbers of these processes, whoever started them: all have one environment."""
        mark = f"{_MARK}={self.folder}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:  # it ended, or belongs to another user
                continue
        return found

"""A deployment of Flower on this machine: a SuperLink and SuperNodes as processes that talk over loopback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

APP = Path(__file__).parent / "deployed"
SAFETY = 600.0
"""Seconds after which a wait ends with an error: a deployment that hangs must not hang the tests."""

_PROJECT = """
[project]
name = "deployed"
version = "1.0.0"
description = "The app of a test"
license = "Apache-2.0"
dependencies = ["flwr>=1.41"]

[tool.flwr.app]
publisher = "fdaudit"

[tool.flwr.app.components]
serverapp = "deployed.server:app"
clientapp = "deployed.client:app"

[tool.flwr.app.config]
folder = ""
rounds = 1
"""


class Deployment:
    """A SuperLink and its SuperNodes, which run in this directory."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self._environment = folder, environment

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process whose output goes to a log."""
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [shutil.which(command[0], path=self._environment["PATH"]) or command[0], *command[1:]],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                cwd=self.folder, env=self._environment,
            )  # fmt: skip

    def submit(self, output: Path, rounds: int) -> None:
        """Start a run of the app, which writes to `output`."""
        settings = f'folder="{output}" rounds={rounds}'
        process = self.start("submit", "flwr", "run", "app", "local", "--run-config", settings)
        self.until(lambda: process.poll() is not None, "submission")
        assert process.returncode == 0, self.logs()

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
        """Return the numbers of this deployment's processes, whoever started them: all have its environment."""
        mark = f"FLWR_HOME={self._environment['FLWR_HOME']}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:  # it ended, or belongs to another user
                continue
        return found


@contextmanager
def deployment(folder: Path, sites: int) -> Iterator[Deployment]:
    """Start a SuperLink and SuperNodes; end all of their processes afterwards."""
    shutil.copytree(APP, folder / "app" / APP.name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "app" / "pyproject.toml").write_text(_PROJECT)
    ports = _free_ports(1 + sites)
    link = f"127.0.0.1:{ports[0]}"
    home = folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "{link}"\ninsecure = true\n'
    )
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    running = Deployment(folder, environment)
    options = ("--insecure", "--port")
    with ExitStack() as stack:
        stack.callback(_end_all, running)
        no_install = "--disable-runtime-dependency-installation"
        started = [running.start("superlink", "flower-superlink", no_install, *options, str(ports[0]))]
        running.until(lambda: _answers(ports[0]), "SuperLink")
        node = ("flower-supernode", "--superlink", link, *options)
        started += [
            running.start(f"supernode-{i}", *node, str(port), "--node-config", f"site={i}")
            for i, port in enumerate(ports[1:])
        ]
        yield running
        for process in reversed(started):
            assert process.poll() is None, running.logs()
            process.terminate()
        for process in started:
            process.wait(SAFETY)


def _end_all(running: Deployment) -> None:
    """Kill what is left of a deployment, such as the apps of a run that was not over."""

    def gone() -> bool:
        left = running.processes()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError):  # it ended, or is the child of another
                continue
        return not left

    running.until(gone, "end of all processes")


def _free_ports(count: int) -> list[int]:
    """Return numbers of ports that are free now."""
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in bound:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in bound]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

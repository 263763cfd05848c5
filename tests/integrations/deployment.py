"""A deployment of Flower on this machine: a SuperLink and SuperNodes as processes that talk over loopback."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .processes import SAFETY, Processes

APPS = Path(__file__).parent
_PROJECT = """
[project]
name = "NAME"
version = "1.0.0"
description = "The app of a test"
license = "Apache-2.0"
dependencies = ["flwr>=1.41"]

[tool.flwr.app]
publisher = "fdaudit"

[tool.flwr.app.components]
serverapp = "NAME.server:app"
clientapp = "NAME.client:app"

[tool.flwr.app.config]
folder = ""
rounds = 1
"""


class Deployment(Processes):
    """A SuperLink and its SuperNodes."""

    def submit(self, output: Path, rounds: int) -> None:
        """Start a run of the app, which writes to `output`."""
        settings = f'folder="{output}" rounds={rounds}'
        process = self.start("submit", "flwr", "run", "app", "local", "--run-config", settings)
        self.until(lambda: process.poll() is not None, "submission")
        assert process.returncode == 0, self.logs()


@contextmanager
def deployment(folder: Path, sites: int, app: str = "deployed") -> Iterator[Deployment]:
    """Start a SuperLink and SuperNodes for an app of this directory; end all of their processes afterwards."""
    shutil.copytree(APPS / app, folder / "app" / app, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "app" / "pyproject.toml").write_text(_PROJECT.replace("NAME", app))
    ports = _free_ports(1 + sites)
    link = f"127.0.0.1:{ports[0]}"
    home = folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "{link}"\ninsecure = true\n'
    )
    options = ("--insecure", "--port")
    with Deployment(folder, {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}) as running:
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

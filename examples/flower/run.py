"""Run a Flower app of three sites on this machine, record it, and audit the record.

    python examples/flower/run.py one-step OUT

The variants are `fedavg`, `one-step` (FedAvg where each upload is one step on two digits, the easiest case for a server
that wants to see them), and `fedmd`. OUT must not exist. It needs `pip install 'fdaudit[flower]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

HERE, SITES = Path(__file__).resolve().parent, 3
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {"rounds": 4, "steps": 20, "batch": 16, "lr": 0.1}),
    "one-step": ("fedavg", {"rounds": 2, "steps": 1, "batch": 2, "lr": 0.1}),
    "fedmd": ("fedmd", {"rounds": 3, "steps": 20, "batch": 16, "lr": 0.1}),
}
"""The app of each variant, and what is set in it."""


def main(variant: str, out: str) -> None:
    """Make a design, run the app, and audit its record."""
    app, settings = VARIANTS[variant]
    folder = Path(out).resolve()
    folder.mkdir()
    fdaudit(app, "design", "digits", f"--sites={SITES}", "--public=0.1", f"--out={folder / 'design'}")
    federate(app, settings, folder)
    (folder / "card.yaml").write_text(card(app, settings))
    sites = [f"site-{k}" for k in range(SITES)]
    run, truth = str(folder / "run"), [f"--truth={folder / d}" for d in ("truth", "design/truth", *sites)]
    told = [f"--card={folder / 'card.yaml'}", *truth, f"--audit={HERE / 'audit.yaml'}", "--trust-code"]
    fdaudit(app, "import", str(folder / "record"), *told, f"--out={run}")
    failed = fdaudit(app, "attack", run, "--all", "--trust-code", expected=(0, 1))
    fdaudit(app, "report", run)
    sys.exit(failed)


def fdaudit(app: str, *arguments: str, expected: tuple[int, ...] = (0,)) -> int:
    """Run a command of fdaudit, which finds the app's network; return 0, or 1 if an attack failed."""
    path = os.pathsep.join(filter(None, [str(HERE / app), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    code = subprocess.run([sys.executable, "-m", "fdaudit", *arguments], env=environment).returncode  # noqa: S603
    if code not in expected:
        sys.exit(code)
    return code


def card(app: str, settings: dict[str, Any]) -> str:
    """Return the system's card with the facts of training."""
    value = yaml.safe_load((HERE / app / "card.yaml").read_text())
    names = {"rounds": "rounds", "steps": "local_steps", "batch": "batch_size", "lr": "lr"}
    value["training"] = {names[k]: v for k, v in settings.items()}
    return str(yaml.safe_dump(value, sort_keys=False))


# -- Flower on this machine -------------------------------------------------------------------------------------------


def federate(app: str, settings: dict[str, Any], folder: Path) -> None:
    """Run the app with a SuperLink and a SuperNode for each site, and end them."""
    values = " ".join(f"{k}={v}" for k, v in settings.items())
    with flower(folder) as environment:
        command = ["flwr", "run", str(HERE / app), "local", "--stream"]
        command += ["--run-config", f'folder="{folder}" {values}']
        subprocess.run(command, check=True, env=environment)  # noqa: S603
    record = folder / "record" / "record.json"
    if not record.exists() or json.loads(record.read_bytes())["status"] != "closed":
        sys.exit(f"The app has failed: see the messages above and the logs in {folder / 'flower'}.")


@contextmanager
def flower(folder: Path) -> Iterator[dict[str, str]]:
    """Start a SuperLink and SuperNodes on free ports of the loopback interface; end them afterwards."""
    home, link, *nodes = folder / "flower", *free_ports(1 + SITES)
    home.mkdir()
    address = f"127.0.0.1:{link}"
    connection = f'address = "{address}"\ninsecure = true\n'
    (home / "config.toml").write_text(f'[superlink]\ndefault = "local"\n\n[superlink.local]\n{connection}')
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "PATH": path}
    with ExitStack() as running:
        server = ["flower-superlink", "--insecure", "--port", str(link)]
        server += ["--disable-runtime-dependency-installation"]
        log = home / "superlink.log"
        wait_for(link, running.enter_context(process(server, log, environment)), log)
        for site, port in enumerate(nodes):
            node = ["flower-supernode", "--insecure", "--superlink", address, "--port", str(port)]
            node += ["--node-config", f"site={site}"]
            running.enter_context(process(node, home / f"site-{site}.log", environment))
        yield environment


@contextmanager
def process(command: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process whose output goes to a log; end it afterwards, with the processes that it has started."""
    program = shutil.which(command[0], path=environment["PATH"]) or command[0]
    with log.open("wb") as output:
        options = {"stdout": output, "stderr": output, "env": environment}
        started = subprocess.Popen([program, *command[1:]], start_new_session=True, **options)  # noqa: S603
    try:
        yield started
    finally:
        started.terminate()
        started.wait()
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    """Return numbers of ports that are free now."""
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in bound:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in bound]


def wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server listens on a port."""
    while server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    sys.exit(f"The SuperLink has ended: see {log}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("out")
    main(**vars(parser.parse_args()))

"""Write the lock of the audit environment: what fdaudit needs, at the installed versions, with hashes.

    .venv/bin/python .lock/write.py            (with pip 25 or newer in .venv, on the platform that the file names)

The versions are those of the environment that the tests ran in. The hashes are what the package index states for the
wheels that pip would choose here; nothing is installed.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fdaudit.attestation.sbom import closure, normalised

FOLDER = Path(__file__).parent
HEAD = """\
# The audit environment: {python} on {system}, {machine}, with glibc. Other platforms need other wheels.
# Written by `.venv/bin/python .lock/write.py`; installed by `make audit LOCKED=1`.
"""


def pins() -> list[str]:
    """Return a line for each distribution of the closure but fdaudit itself, without local versions."""
    found = {name: part.installed.version for name, part in closure().items() if name != "fdaudit"}
    return [f"{name}=={version.partition('+')[0]}" for name, version in found.items()]


def chosen(lines: list[str]) -> list[dict[str, Any]]:
    """Return pip's own account of the wheels that it would install for these lines."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, report = Path(folder) / "wanted.txt", Path(folder) / "report.json"
        wanted.write_text("\n".join(lines) + "\n", encoding="utf-8")
        options = ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--quiet"]
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            *options,
            "--report",
            report,
            "--requirement",
            wanted,
        ]
        subprocess.run(command, check=True)  # noqa: S603 - our own arguments
        installed: list[dict[str, Any]] = json.loads(report.read_bytes())["install"]
    return installed


def lock(account: list[dict[str, Any]]) -> str:
    """Return the lock file's text."""
    entries = {}
    for item in account:
        name, version = normalised(item["metadata"]["name"]), item["metadata"]["version"].partition("+")[0]
        entries[name] = (
            f"{name}=={version} --hash=sha256:{item['download_info']['archive_info']['hashes']['sha256']}\n"
        )
    python = f"CPython {sys.version_info.major}.{sys.version_info.minor}"
    head = HEAD.format(python=python, system=platform.system(), machine=platform.machine())
    return head + "".join(entries[name] for name in sorted(entries))


def main() -> None:
    """Replace the lock of this platform."""
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    path = FOLDER / f"{platform.system().lower()}-{platform.machine()}-{version}.txt"
    path.write_text(lock(chosen(pins())), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Write the bill of materials of the release, with cyclonedx-py: every locked package, its version and its hash.

    .venv/bin/python .lock/bom.py [DIR]        (make sbom; DIR is `dist` by default, where the wheel is)

It describes what `make audit LOCKED=1` installs. What a run was made with is in its evidence: sbom.cdx.json there
describes the packages that were installed then.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from tools import FOLDER, locks, tool

ROOT = FOLDER.parent
_LINE = re.compile(r"(?P<name>[\w.-]+)==(?P<version>\S+) --hash=sha256:(?P<sha256>[0-9a-f]{64})")


def pinned(lock: Path) -> set[tuple[str, str, str]]:
    """Return name, version and SHA-256 of each line of a lock file."""
    lines = [line for line in lock.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    found = [_LINE.fullmatch(line) for line in lines]
    if None in found:
        raise SystemExit(f"{lock.name} has a line that is not NAME==VERSION --hash=sha256:DIGEST")
    return {(match["name"], match["version"], match["sha256"]) for match in found if match}


def listed(bom: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Return name, version and SHA-256 of each component of a bill of materials."""
    return {
        (component["name"], component["version"], digest["content"])
        for component in bom["components"]
        for reference in component.get("externalReferences", ())
        for digest in reference.get("hashes", ())
        if digest["alg"] == "SHA-256"
    }


def write(lock: Path, folder: Path) -> Path:
    """Write the bill of materials of a lock file; return its path."""
    program = tool("cyclonedx-py")
    if program is None:
        raise SystemExit("cyclonedx-py is not installed: python -m pip install cyclonedx-bom")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    path = folder / f"{project['name']}-{project['version']}-{lock.stem}.cdx.json"
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--spec-version", "1.6", "--output-reproducible", "--validate", "--output-file", str(path)]
    described = ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library"]
    subprocess.run(  # noqa: S603 - our own arguments
        [program, "requirements", *described, *options, str(lock)], check=True
    )
    if missing := pinned(lock) - listed(json.loads(path.read_bytes())):
        raise SystemExit(f"{path} lacks {sorted(missing)}")
    return path


def main() -> None:
    """Write the bill of materials of each platform."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"
    for lock in locks():
        print(write(lock, folder))  # noqa: T201


if __name__ == "__main__":
    main()

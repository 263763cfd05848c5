"""Look the locked packages up in a database of known vulnerabilities, with pip-audit. `make check` runs this.

    .venv/bin/python .lock/audit.py

The exit code is 1 if a locked package has a known vulnerability, or if pip-audit fails for another reason than the
network. Where no database can be reached, or pip-audit is not installed, one line says that nothing was looked up, and
the exit code is 0.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from tools import locks, tool

PATIENCE = 60
"""Seconds after which the database counts as out of reach."""
_UNREACHABLE = re.compile(
    r"ConnectionError|ConnectTimeout|ReadTimeout|ConnectionFailed|Max retries|NameResolution|ProxyError|SSLError|"
    r"Could not connect|timed out|Service Unavailable|Too Many Requests",
    re.IGNORECASE,
)


def judge(code: int, out: str, errors: str) -> tuple[int, list[str]]:
    """Return the exit code and the lines that follow from what pip-audit ended with and printed.

    pip-audit ends with 0 if an index does not know its packages, and marks each as skipped.
    """
    entries = _entries(out)
    if entries is None:
        if _UNREACHABLE.search(errors):
            return 0, ["not looked up: no database of vulnerabilities can be reached from here"]
        return 1, [f"pip-audit failed with exit code {code}: {' '.join(errors.split())[-300:]}"]
    vulnerable = [line for entry in entries for line in _vulnerabilities(entry)]
    skipped = [str(entry["name"]) for entry in entries if "skip_reason" in entry]
    if vulnerable:
        return 1, vulnerable
    if len(skipped) == len(entries):
        return 0, ["not looked up: the index that can be reached from here knows of no vulnerabilities"]
    if code != 0:
        return 1, [f"pip-audit failed with exit code {code}: {' '.join(errors.split())[-300:]}"]
    lines = [f"{len(entries) - len(skipped)} packages have no known vulnerability"]
    if skipped:
        lines.append(f"not looked up: {', '.join(skipped)}")
    return 0, lines


def _entries(out: str) -> list[dict[str, Any]] | None:
    """Return an entry for each package; None if pip-audit did not come to an end."""
    try:
        entries: list[dict[str, Any]] = json.loads(out)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return None
    return entries


def _vulnerabilities(entry: dict[str, Any]) -> list[str]:
    lines = []
    for found in entry.get("vulns", ()):
        fixed = ", ".join(found.get("fix_versions", ())) or "no version yet"
        lines.append(f"{entry['name']} {entry['version']} is vulnerable: {found['id']}, fixed in {fixed}")
    return lines


def audit(lock: Path) -> tuple[int, list[str]]:
    """Look the packages of a lock file up; return the exit code and the lines to print."""
    program = tool("pip-audit")
    if program is None:
        return 0, ["not looked up: pip-audit is not installed (python -m pip install pip-audit)"]
    options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    command = [program, "--requirement", str(lock), *options]
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments
            command, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return judge(1, "", "timed out")
    return judge(done.returncode, done.stdout, done.stderr)


def main() -> int:
    """Print a line or more for each lock file; return the exit code."""
    worst = 0
    for lock in locks():
        code, lines = audit(lock)
        worst = max(worst, code)
        print(*(f"{lock.name}: {line}" for line in lines), sep="\n")  # noqa: T201
    return worst


if __name__ == "__main__":
    sys.exit(main())

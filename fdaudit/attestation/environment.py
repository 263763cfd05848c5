"""The environment in which evidence was written: Python, platform, installed packages, and the version of fdaudit.

It describes the time of writing. The run's own versions are in its manifest.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Any

from fdaudit.storage.digests import canonical

__all__ = ["environment", "tool"]

_PACKAGES = (
    "fdaudit",
    "fdaudit.attacks",
    "fdaudit.defenses",
    "fdaudit.deviations",
    "fdaudit.protocols",
    "fdaudit.reports",
)
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def environment() -> dict[str, Any]:
    """Return Python, platform and all package versions as a JSON object, without names of users or machines."""
    packages = {}
    for installed in distributions():
        metadata = installed.metadata  # read anew at each access
        if name := metadata["Name"]:
            packages[name] = metadata["Version"]
    return {
        "schema": "fdaudit-environment/1",
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "packages": dict(sorted(packages.items())),
        "tool": tool(),
    }


@cache
def tool() -> dict[str, Any]:
    """Return this fdaudit: `name`, `version`, `commit` if known, and `source_sha256`.

    The commit is the installed one or a checkout's HEAD; the files of a checkout may have changed since.
    `source_sha256` is the digest of the canonical list of the installed files' paths and digests.
    """
    installed = distribution("fdaudit")
    digests = {}
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations if spec else None) or ():
            for path in Path(folder).rglob("*"):
                if path.is_file() and path.suffix != ".pyc":
                    name = f"{package.replace('.', '/')}/{path.relative_to(folder).as_posix()}"
                    digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return {
        "name": "fdaudit",
        "version": installed.version,
        "commit": _installed_commit() or _checked_out(Path(__file__).resolve().parents[2]),
        "source_sha256": hashlib.sha256(canonical(digests)).hexdigest(),
    }


def _installed_commit() -> str | None:
    """Return the commit that pip recorded for an installation from a repository (PEP 610), or None."""
    try:
        noted = json.loads(distribution("fdaudit").read_text("direct_url.json") or "{}")
        commit = noted.get("vcs_info", {}).get("commit_id")
    except (PackageNotFoundError, ValueError, AttributeError):
        return None
    return commit if isinstance(commit, str) and _COMMIT.fullmatch(commit) else None


def _checked_out(root: Path) -> str | None:
    """Return the commit of a checkout's HEAD, read from Git's own files, or None."""
    git = root / ".git"
    try:
        if git.is_file():  # a second working tree: the file names its own part of the repository
            git = git.parent / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref:"):
            return head if _COMMIT.fullmatch(head) else None
        name = head.removeprefix("ref:").strip()
        shared = git / "commondir"
        if shared.is_file():
            git = git / shared.read_text(encoding="utf-8").strip()
        commit = ""
        if (git / name).is_file():
            commit = (git / name).read_text(encoding="utf-8").strip()
        else:
            for line in (git / "packed-refs").read_text(encoding="utf-8").splitlines():
                if line.endswith(f" {name}"):
                    commit, _, _ = line.partition(" ")
                    break
    except (OSError, UnicodeDecodeError):
        return None
    return commit if _COMMIT.fullmatch(commit) else None

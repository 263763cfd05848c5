"""The manifest of a finished run: written last, it lists the run's files and reveals later changes."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fdaudit.errors import IntegrityError, RunError
from fdaudit.limits import JSON_BYTES, TABLE_BYTES, read_file
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import write_atomically
from fdaudit.storage.tree import irregular
from fdaudit.transcript.transcript import verify_transcript

__all__ = [
    "COVERED",
    "MANIFEST",
    "origin_of",
    "read_manifest",
    "refuse_changed",
    "refuse_no_run",
    "verify",
    "versions",
    "write_manifest",
]

MANIFEST = "manifest.json"
COVERED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"simulation": ("spec.yaml", "utility.csv"), "recording": ("spec.yaml", "card.yaml")}
)
"""Files beside the transcript whose digests the manifest holds, by the run's origin."""
_REQUIRED: Mapping[str, type] = {"head": str, "messages": int, "files": dict, "commitments": dict}
_PACKAGES = ("fdaudit", "numpy", "safetensors", "scikit-learn", "scipy", "torch", "torchvision")
_AFTERWARDS = "result.json"
_MOST_NAMED = 20
_SCHEMA = "fdaudit-manifest/2"
_EARLIER = ("fdaudit-manifest/1",)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that figures depend on, for a manifest."""
    numbers = {package: version(package) for package in _PACKAGES}
    numbers["python"] = platform.python_version()
    return numbers


def write_manifest(run: Path, values: Mapping[str, Any]) -> None:
    """Write the manifest of a run whose other files are in place.

    Args:
        run: the run directory.
        values: `head`, `messages`, `commitments`, `versions`, …, and the `origin` of a recording; the schema, the
            digests of the covered files and the manifest's own digest are added.
    """
    files = {name: _sha256(run / name) for name in COVERED[origin_of(values)]}
    body = {"schema": _SCHEMA, "status": "complete", "files": files, **values}
    body["self"] = hashlib.sha256(canonical(body)).hexdigest()
    write_atomically(run / MANIFEST, canonical(body) + b"\n")


def read_manifest(run: Path) -> dict[str, Any]:
    """Return the manifest of a run, checked against its own digest.

    Raises:
        RunError: there is none: the run is unfinished, or this is not a run directory; or another version wrote it.
        IntegrityError: it was changed, or removed from a finished run.
    """
    path = run / MANIFEST
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise IntegrityError([f"{MANIFEST} is no regular file"])
    if not path.is_file() and (run / _AFTERWARDS).exists():
        raise IntegrityError(
            [f"{MANIFEST} is missing, though {_AFTERWARDS}, which is written later, is there"]
        )
    if not path.is_file():
        refuse_no_run(run)
        raise RunError(
            "run", str(run), "has no manifest", "Finish it with `fdaudit run --resume --out` first."
        )
    try:
        data = read_file(path, JSON_BYTES)
    except OSError as error:
        raise IntegrityError([f"{MANIFEST} cannot be read: {error.strerror}"]) from None
    try:
        body = json.loads(data)
        stated = body.pop("self")
        whole = canonical({**body, "self": stated}) + b"\n"
        right = hashlib.sha256(canonical(body)).hexdigest()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError([f"{MANIFEST} is malformed: {error}"]) from None
    if whole == data and stated == right and body.get("schema") in _EARLIER:
        problem = f"has a record of schema {body['schema']}, which this version cannot read"
        raise RunError("run", str(run), problem, "Read it with the version of fdaudit that wrote it.")
    if whole != data or stated != right or body.get("schema") != _SCHEMA:
        raise IntegrityError([f"{MANIFEST} does not match its own digest"])
    wrong = []
    for name, kind in _REQUIRED.items():
        if type(body.get(name)) is not kind:
            wrong.append(name)
    if body.get("origin", "simulation") not in COVERED:
        wrong.append("origin")
    if wrong:
        raise IntegrityError([f"{MANIFEST} is malformed: {', '.join(wrong)}"])
    return dict(body)


def refuse_no_run(path: Path) -> None:
    """Refuse a path where nothing is, and a folder that is no run but holds some.

    Raises:
        RunError: one of the two; it names the runs in the folder.
    """
    if not path.exists():
        raise RunError("run", str(path), "does not exist", "Give the directory of a run.")
    if (path / "vault").is_dir() or (path / "transcript").is_dir() or not path.is_dir():
        return
    runs = []
    for entry in path.iterdir():
        if (entry / MANIFEST).is_file():
            runs.append(entry.name)
    runs.sort()
    if runs:
        names = ", ".join(runs[:_MOST_NAMED])
        if len(runs) > _MOST_NAMED:
            names += ", …"
        problem = f"is a folder of {len(runs)} runs ({names}), not a run"
        raise RunError("run", str(path), problem, f"Give one of them, such as {path / runs[0]}.")


def verify(run: Path) -> list[str]:
    """Check a finished run: manifest, covered files, every line and payload of the transcript.

    It finds damage, and edits by someone who cannot also rewrite the head. An unsigned manifest does not prove
    authorship. No manifest proves an honest run.

    Returns:
        One sentence for each defect; empty if there is none.

    Raises:
        RunError: there is no manifest, or another version wrote it.
    """
    try:
        manifest = read_manifest(run)
    except IntegrityError as error:
        return list(error.findings)
    if findings := irregular(run):
        return findings
    transcript = run / "transcript"
    return _changed(run, manifest) + verify_transcript(
        transcript,
        head=manifest["head"],
        count=manifest["messages"],
    )


def origin_of(manifest: Mapping[str, Any]) -> str:
    """Return where a run's messages come from: `simulation`, or `recording` of another system."""
    return str(manifest.get("origin", "simulation"))


def _changed(run: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Return defects of the covered files outside the transcript."""
    findings = []
    for name in COVERED[origin_of(manifest)]:
        path = run / name
        if not path.is_file() or path.is_symlink():
            findings.append(f"{name} is missing, or no regular file")
            continue
        try:
            same = _sha256(path) == manifest["files"].get(name)
        except OSError as error:
            findings.append(f"{name} cannot be read: {error.strerror}")
            continue
        if not same:
            findings.append(f"{name} does not match its digest in the manifest")
    return findings


def refuse_changed(run: Path, *, results: bool = False) -> None:
    """Refuse a run that was changed. Every command calls this before it reads the record.

    Args:
        run: the run directory.
        results: only results are read, so the transcript may be missing.

    Raises:
        IntegrityError: it was changed, so its figures would be attributed to the wrong record.
        RunError: there is no manifest, or another version wrote it.
    """
    pruned = results and not (run / "transcript").exists()
    if not pruned:
        findings = verify(run)
    else:
        manifest = read_manifest(run)
        findings = irregular(run) or _changed(run, manifest)
    if findings:
        raise IntegrityError(findings)


def _sha256(path: Path) -> str:
    return hashlib.sha256(read_file(path, TABLE_BYTES)).hexdigest()

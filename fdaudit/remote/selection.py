"""Select the files of a directory that a command fetches or may send, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

__all__ = [
    "Choice",
    "but_reports",
    "everything",
    "for_comparison",
    "for_curves",
    "for_verification",
    "seed_and_controls",
    "whole_runs",
]

Choice = Callable[[Collection[str]], Collection[str]]
"""Selects some of the given names, which are relative and have slashes."""

_BUNDLE = frozenset({"statement.dsse.json", "files.json"})
_UNVERIFIED = ("vault/", "attacks/", "report/")
_COVERED = ("manifest.json", "spec.yaml", "card.yaml", "utility.csv")
_COMPARED = frozenset({*_COVERED, "result.json", "timings.json"})
_DRAWN = re.compile(r"sweep\.json|runs/[^/]+/(result\.json|manifest\.json|spec\.yaml|utility\.csv)")
_SEED = re.compile(r"vault/secrets\.json|vault/handed-out/[^/]+\.json|attacks/controls/[^/]+\.json")
_RUN = re.compile(r"(runs/[^/]+)/")
_HERE = re.compile(r"(locks|scratch)/|\.lock$")


def everything(names: Collection[str]) -> Collection[str]:
    """Return all files."""
    return names


def but_reports(names: Collection[str]) -> Collection[str]:
    """Return all files of a run except reports, which are made from the rest."""
    return [name for name in names if not name.startswith("report/")]


def for_verification(names: Collection[str]) -> Collection[str]:
    """Return a run's files that its manifest covers, without vault, attacks and report; for evidence, all files."""
    if not _BUNDLE.isdisjoint(names):
        return names
    return [name for name in names if not name.startswith(_UNVERIFIED)]


def for_comparison(names: Collection[str]) -> Collection[str]:
    """Return a run's result, its timings, and what the manifest covers except the transcript.

    The report is omitted: a link to its temporary copy would break.
    """
    return _COMPARED.intersection(names)


def for_curves(names: Collection[str]) -> Collection[str]:
    """Return a sweep's index and the results of its runs, with their manifests and what these cover."""
    return [name for name in names if _DRAWN.fullmatch(name)]


def seed_and_controls(names: Collection[str]) -> Collection[str]:
    """Return a run's secrets, its list of candidates handed out, and reusable outcomes of controls."""
    return [name for name in names if _SEED.fullmatch(name)]


def whole_runs(names: Collection[str]) -> Collection[str]:
    """Return a sweep's files without unfinished runs and without files of this machine only."""
    done = {name.removesuffix("/run.json") for name in names if name.endswith("/run.json")}

    def wanted(name: str) -> bool:
        run = _RUN.match(name)
        return not _HERE.match(name) and (run is None or run[1] in done)

    return [name for name in names if wanted(name)]

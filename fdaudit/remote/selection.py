"""What of a directory a command needs: of the names of all files, those that are fetched, or may be sent."""

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
    "whole_cells",
]

Choice = Callable[[Collection[str]], Collection[str]]
"""Of names, relative and with slashes, those that are wanted."""

_BUNDLE = frozenset({"statement.dsse.json", "files.json"})
_UNVERIFIED = ("vault/", "attacks/", "report/")
_COVERED = ("manifest.json", "spec.yaml", "utility.csv")
_COMPARED = frozenset({*_COVERED, "result.json", "timings.json"})
_DRAWN = re.compile(r"sweep\.json|cells/[^/]+/(result\.json|manifest\.json|spec\.yaml|utility\.csv)")
_SEED = re.compile(r"vault/secrets\.json|vault/handed-out/[^/]+\.json|attacks/controls/[^/]+\.json")
_CELL = re.compile(r"(cells/[^/]+)/")
_HERE = re.compile(r"(locks|scratch)/|\.lock$")


def everything(names: Collection[str]) -> Collection[str]:
    """All files."""
    return names


def but_reports(names: Collection[str]) -> Collection[str]:
    """Of a run, all but reports, which are made from the rest."""
    return [name for name in names if not name.startswith("report/")]


def for_verification(names: Collection[str]) -> Collection[str]:
    """Of a run, what its manifest covers: neither its vault nor what came after; of evidence, all."""
    if not _BUNDLE.isdisjoint(names):
        return names
    return [name for name in names if not name.startswith(_UNVERIFIED)]


def for_comparison(names: Collection[str]) -> Collection[str]:
    """Of a run, its result, what it took, and what the manifest covers besides the transcript.

    Its report is not linked: a copy of it would be gone.
    """
    return _COMPARED.intersection(names)


def for_curves(names: Collection[str]) -> Collection[str]:
    """Of a sweep, its index and the results of its cells, with their manifests and what these cover."""
    return [name for name in names if _DRAWN.fullmatch(name)]


def seed_and_controls(names: Collection[str]) -> Collection[str]:
    """Of a run, its seed and secret, whose candidates were handed out, and outcomes of controls to be taken over."""
    return [name for name in names if _SEED.fullmatch(name)]


def whole_cells(names: Collection[str]) -> Collection[str]:
    """Of a sweep, all but what belongs to cells that are not done, and to the machine that it runs on."""
    done = {name.removesuffix("/cell.json") for name in names if name.endswith("/cell.json")}

    def wanted(name: str) -> bool:
        cell = _CELL.match(name)
        return not _HERE.match(name) and (cell is None or cell[1] in done)

    return [name for name in names if wanted(name)]

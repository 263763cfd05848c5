"""The software bill of materials of the installed fdaudit, as CycloneDX 1.5 in JSON.

Guarantees:
  * the same installation gives the same bytes: no time, no serial number, no path;
  * it lists every distribution that fdaudit needs, and which one requires which.

Source: CycloneDX specification 1.5 (ECMA-424), and the package URL of PyPI (purl-spec).
"""

from __future__ import annotations

import platform
from importlib.metadata import Distribution
from typing import Any
from urllib.parse import quote

from .closure import ClosurePart, closure, normalised
from .environment import tool

__all__ = ["sbom"]

_LICENSE = "License :: "


def sbom() -> dict[str, Any]:
    """Return the bill of materials of the installed fdaudit, sorted by name."""
    parts = closure()
    references = {name: _reference(part.installed) for name, part in parts.items()}
    dependencies = []
    for name in ("fdaudit", *(name for name in parts if name != "fdaudit")):
        needs = [references[needed] for needed in sorted(parts[name].needs - {"fdaudit"})]
        dependencies.append({"ref": references[name], "dependsOn": needs})
    root = parts.pop("fdaudit")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": _root(root)},
        "components": [*(_component(p.installed, "library") for p in parts.values()), _python()],
        "dependencies": dependencies,
    }


def _root(root: ClosurePart) -> dict[str, Any]:
    """Return the entry of fdaudit itself, with the digest by which a statement names its files."""
    source = {"name": "fdaudit:source_sha256", "value": tool()["source_sha256"]}
    return {**_component(root.installed, "application"), "properties": [source]}


def _component(installed: Distribution, kind: str) -> dict[str, Any]:
    reference = _reference(installed)
    component = {
        "type": kind,
        "bom-ref": reference,
        "name": normalised(installed.name),
        "version": installed.version,
    }
    licences = _licences(installed)
    return {**component, "purl": reference, **({"licenses": licences} if licences else {})}


def _reference(installed: Distribution) -> str:
    return f"pkg:pypi/{normalised(installed.name)}@{quote(installed.version, safe='')}"


def _licences(installed: Distribution) -> list[dict[str, Any]]:
    """Return the licence that a distribution states: an SPDX expression, else its classifiers."""
    if expressions := installed.metadata.get_all("License-Expression"):
        return [{"expression": expressions[0]}]
    stated = [c for c in installed.metadata.get_all("Classifier") or () if c.startswith(_LICENSE)]
    return [{"license": {"name": c.rpartition(" :: ")[2]}} for c in dict.fromkeys(stated)]


def _python() -> dict[str, Any]:
    return {
        "type": "platform",
        "name": platform.python_implementation(),
        "version": platform.python_version(),
    }

"""The software bill of materials of the installed fdaudit, as CycloneDX 1.5 in JSON.

It lists the closure: fdaudit and all its direct and indirect requirements. A requirement counts if the distribution is
installed and the requirement needs no unchosen extra. Its other markers (platform, Python) are not evaluated: they
exclude distributions that are not installed anyway.

Guarantees:
  * the same installation gives the same bytes: no time, no serial number, no path;
  * it lists every distribution that fdaudit needs, and which one requires which.

Source: CycloneDX specification 1.5 (ECMA-424), and the package URL of PyPI (purl-spec).
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from typing import Any
from urllib.parse import quote

from .environment import tool

__all__ = ["ClosurePart", "closure", "normalised", "sbom"]

_LICENSE = "License :: "
_REQUIREMENT = re.compile(
    r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[([^\]]*)\])?([^;]*)(?:;(.*))?"
)
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


def sbom() -> dict[str, Any]:
    """Return the bill of materials of the installed fdaudit, sorted by name."""
    parts = closure()
    references = {name: _reference(part.installed) for name, part in parts.items()}
    dependencies = []
    for name in ("fdaudit", *(name for name in parts if name != "fdaudit")):
        needs = [references[needed] for needed in sorted(parts[name].needs - {"fdaudit"})]
        dependencies.append({"ref": references[name], "dependsOn": needs})
    root = _component(parts.pop("fdaudit").installed, "application")
    # The digest by which a statement names fdaudit's files.
    root["properties"] = [{"name": "fdaudit:source_sha256", "value": tool()["source_sha256"]}]
    components = [_component(part.installed, "library") for part in parts.values()]
    components.append(
        {
            "type": "platform",
            "name": platform.python_implementation(),
            "version": platform.python_version(),
        }
    )
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": root},
        "components": components,
        "dependencies": dependencies,
    }


def _component(installed: Distribution, kind: str) -> dict[str, Any]:
    reference = _reference(installed)
    component: dict[str, Any] = {
        "type": kind,
        "bom-ref": reference,
        "name": normalised(installed.name),
        "version": installed.version,
        "purl": reference,
    }
    # The licence that it states: an SPDX expression, else its classifiers.
    expressions = installed.metadata.get_all("License-Expression")
    classifiers = installed.metadata.get_all("Classifier") or ()
    licenses = list[dict[str, Any]]()
    for text in classifiers:
        entry = {"license": {"name": text.rpartition(" :: ")[2]}}
        if text.startswith(_LICENSE) and entry not in licenses:
            licenses.append(entry)
    if expressions:
        licenses = [{"expression": expressions[0]}]
    if licenses:
        component["licenses"] = licenses
    return component


def _reference(installed: Distribution) -> str:
    return f"pkg:pypi/{normalised(installed.name)}@{quote(installed.version, safe='')}"


@dataclass
class ClosurePart:
    """A distribution in a closure.

    Attributes:
        installed: the installed distribution.
        extras: the extras that are requested.
        needs: names of the distributions that it requires.
    """

    installed: Distribution
    extras: set[str] = field(default_factory=set)
    needs: set[str] = field(default_factory=set)


def normalised(name: str) -> str:
    """Return the normalised form of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(root: str = "fdaudit", extras: Iterable[str] = ()) -> dict[str, ClosurePart]:
    """Return a distribution and its requirements by normalised name.

    Args:
        root: name of the distribution.
        extras: extras of the root.

    Raises:
        KeyError: the root is not installed.
    """
    there = dict[str, Distribution]()
    for installed in distributions():
        if name := installed.name:  # its metadata are read anew at each access
            there.setdefault(normalised(name), installed)  # the first on the path is the imported one
    parts = {root: ClosurePart(there[root], set(extras))}
    pending = [root]
    while pending:
        name = pending.pop()
        for needed, extras_of in _requirements(parts[name]):
            if needed not in there:
                continue
            parts[name].needs.add(needed)
            part = parts.get(needed)
            if part is None:
                parts[needed] = part = ClosurePart(there[needed], set(extras_of))
                pending.append(needed)
            elif not extras_of <= part.extras:
                part.extras |= extras_of
                pending.append(needed)
    return dict(sorted(parts.items()))


def _requirements(part: ClosurePart) -> Iterator[tuple[str, set[str]]]:
    """Yield the names that a distribution requires with the chosen extras, and the extras requested of each."""
    for line in part.installed.requires or ():
        match = _REQUIREMENT.fullmatch(line)
        if match is None:
            continue
        name, extras, _, marker = match.groups()
        conditions = set(map(normalised, _EXTRA.findall(marker or "")))
        if conditions and conditions.isdisjoint(part.extras):
            continue
        extras_of = set[str]()
        for extra in (extras or "").split(","):
            if extra.strip():
                extras_of.add(normalised(extra))
        yield normalised(name), extras_of

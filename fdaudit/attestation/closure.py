"""The installed distributions that fdaudit needs: itself and all its direct and indirect requirements.

A requirement counts if the distribution is installed and the requirement needs no unchosen extra. Its other markers
(platform, Python) are not evaluated: they exclude distributions that are not installed anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions

__all__ = ["ClosurePart", "closure", "normalised"]

_REQUIREMENT = re.compile(
    r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[([^\]]*)\])?([^;]*)(?:;(.*))?"
)
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


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
        if (match := _REQUIREMENT.fullmatch(line)) is None:
            continue
        name, extras, _, marker = match.groups()
        conditions = set(map(normalised, _EXTRA.findall(marker or "")))
        if conditions and conditions.isdisjoint(part.extras):
            continue
        yield normalised(name), {normalised(extra) for extra in (extras or "").split(",") if extra.strip()}

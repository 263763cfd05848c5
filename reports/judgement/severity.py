"""Severity: how bad a leak is, by the table that the report prints.

Guarantee:
  * it is computed from the leak and its adversary alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from fdaudit.goals import GOALS
from fdaudit.result import Level, Severity

__all__ = ["ACCESS", "SEVERITIES", "impact", "needed", "severity"]

SEVERITIES = ("critical", "high", "medium", "low")

_CLASSES = 2
"""Impact where an adversary was shown what classes look like, and no record."""
_UNKNOWN = 2
"""Impact of a goal that this version does not know."""

ACCESS: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "world": (3, "has the released model"),
        "eavesdropper": (2, "reads the transport"),
        "server": (2, "runs the server"),
        "client": (2, "takes part as a client"),
        "aggregator": (2, "runs the aggregator"),
        "coalition": (1, "several parties together"),
        "internal": (1, "gets hold of a model that stays internal"),
    }
)
"""How easily one becomes this adversary, from 1 to 3, and what one must have for it."""

_Word = Literal["critical", "high", "medium", "low"]
_LEAST: tuple[tuple[int, _Word], ...] = ((24, "critical"), (12, "high"), (5, "medium"), (1, "low"))
"""Least product of impact, access and strength of each severity."""


def impact(goal: str) -> int:
    """Return the harm to those whom the data are about, if the adversary succeeds."""
    if goal not in GOALS:
        return _UNKNOWN
    return GOALS[goal].impact


def severity(
    goal: str,
    level: Level,
    adversary: str,
    release: str | None = None,
    *,
    of_classes: bool = False,
    certain: bool = False,
) -> Severity:
    """Return a severity with its factors impact, access and strength.

    Args:
        goal: of the attacks.
        level: leak or partial.
        adversary: who can do it.
        release: where the spec sends the model; None counts as the widest release.
        of_classes: whether classes were shown and no record.
        certain: whether the leak leaves little doubt about any record.
    """
    harm = _CLASSES if of_classes else impact(goal)
    access, _ = ACCESS[_role(adversary, release)]
    strength = 1
    if level == "leak" and certain:
        strength = 3
    elif level == "leak":
        strength = 2
    product = math.prod((harm, access, strength))
    word: _Word = "low"
    for least, name in reversed(_LEAST):
        if product >= least:
            word = name
    return Severity(word=word, impact=harm, access=access, strength=strength)


def needed(adversary: str, release: str | None) -> str:
    """Return what one must have to become an adversary, in a clause."""
    return ACCESS[_role(adversary, release)][1]


def _role(adversary: str, release: str | None) -> str:
    if "+" in adversary:
        return "coalition"
    if adversary == "world" and release == "internal":
        return "internal"
    name = adversary.partition("/")[0]
    if name not in ACCESS:
        return "coalition"
    return name

"""The table of records by client and class, cut into tables that fit a sheet of paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

__all__ = ["BAND", "SHADES", "ClassBand", "ClassCount", "class_bands"]

BAND = 20
"""Number of classes that stand side by side in one table; half of it where a count has four digits."""

SHADES = 6
"""Number of shades of a class count; 0 is white."""

_FOUR_DIGITS = 1000


@dataclass(frozen=True, kw_only=True)
class ClassCount:
    """The records of one class at one client."""

    records: int
    shade: int


@dataclass(frozen=True, kw_only=True)
class ClassBand:
    """The counts of neighbouring classes: a row for each client, from class `first` on."""

    first: int
    rows: tuple[tuple[ClassCount, ...], ...]


def class_bands(table: Sequence[Sequence[int]]) -> tuple[ClassBand, ...]:
    """Cut a table of counts (clients, classes) into tables that are no wider than a sheet."""
    if not table:
        return ()
    most = max(chain.from_iterable(table), default=0)
    width = BAND if most < _FOUR_DIGITS else BAND // 2
    bands = []
    for first in range(0, len(table[0]), width):
        rows = []
        for row in table:
            counts = list[ClassCount]()
            for n in row[first : first + width]:
                counts.append(ClassCount(records=n, shade=round(SHADES * n / max(most, 1))))
            rows.append(tuple(counts))
        bands.append(ClassBand(first=first, rows=tuple(rows)))
    return tuple(bands)

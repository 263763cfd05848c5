"""The verdicts of a run's cells in words, as its report prints them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

__all__ = ["verdicts"]


def verdicts(result: Mapping[str, Any], only: Collection[str] | None = None) -> Iterator[str]:
    """Yield a line for each cell that was asked for: who, with which attack, the verdict and its deciding figure.

    Args:
        result: the content of `result.json`. The verdicts count all tests of the run, so a single cell has none.
        only: the cells to show, by id; default: all.
    """
    from fdaudit.reports.schema import read
    from fdaudit.reports.text import label, measure
    from fdaudit.reports.verdict import LEVELS, judge_all

    for found in judge_all(read(result)):
        cell, figure = found.cell, found.worst_key or found.key
        if found.level == "not-requested" or (only is not None and cell.id not in only):
            continue
        line = f"{cell.adversary} / {cell.attack}: {LEVELS[found.level].lower()}"
        if found.measured and figure is not None and figure.value is not None:
            who = found.worst.target if found.worst is not None and found.worst_key else "all victims"
            told = next(iter(found.decided_by.values()), "")
            line += f", {told or f'{label(figure.name)} {measure(figure, figure.value)} ({who})'}"
        yield line

"""The verdicts of a run's cells in words, as its report prints them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdaudit.reports.verdict import Finding

__all__ = ["verdicts"]

_UNANSWERED = ("inconclusive", "failed", "not-applicable")
"""Levels of which the reason is printed."""


def verdicts(result: Mapping[str, Any], only: Collection[str] | None = None) -> Iterator[str]:
    """Yield a line for each cell that was asked for, then one for each view of which a part was not tested.

    A cell's line says who, with which attack, the report's level and the deciding figure, or why there is no answer.

    Args:
        result: the content of `result.json`. The verdicts count all tests of the run, so a single cell has none.
        only: the cells to show, by id, without the views; default: all.
    """
    from fdaudit.reports.inheritance import standings
    from fdaudit.reports.schema import read
    from fdaudit.reports.verdict import LEVELS, judge_all

    checked = read(result)
    findings = judge_all(checked)
    for found in findings:
        cell = found.cell
        if found.level != "not-requested" and (only is None or cell.id in only):
            yield f"{cell.adversary} / {cell.attack}: {LEVELS[found.level].lower()}{_said(found)}"
    if only is not None:
        return
    for standing in standings(checked, findings):
        if standing.level == "not-tested":
            yield f"{standing.adversary}, {standing.goal}: {LEVELS['not-tested'].lower()}. {standing.unread}"


def _said(found: Finding) -> str:
    """Return the deciding figure of a cell, or why it has no answer, after its level."""
    from fdaudit.reports.text import label, measure

    figure = found.worst_key or found.key
    said = ""
    if found.measured and figure is not None and figure.value is not None:
        who = found.worst.target if found.worst is not None and found.worst_key else "all victims"
        told = next(iter(found.decided_by.values()), "")
        said = f", {told or f'{label(figure.name)} {measure(figure, figure.value)} ({who})'}"
    if found.level in _UNANSWERED and found.because:
        return f"{said}: {found.because.rstrip('.')}"
    return said

"""The figures of a result as rows, for tables of data and for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fdaudit.result.cell import Cell
from fdaudit.types import Figure

__all__ = ["COLUMNS", "figure_rows"]

COLUMNS = (
    "adversary", "attack", "goal", "status", "reason", "victim",
    "figure", "value", "low", "high", "confidence", "n", "p", "unit", "unavailable",
)  # fmt: skip
"""The columns of `figure_rows`."""


def figure_rows(cells: Iterable[Cell]) -> Iterator[dict[str, Any]]:
    """Yield a row for each figure: those of all victims together have an empty `victim`.

    A cell without figures has one row, so that none is missing; its `figure` is None.
    """
    for cell in cells:
        about = {name: getattr(cell, name) for name in COLUMNS[:5]}
        named: list[tuple[str, Figure]] = [("", figure) for figure in cell.figures]
        for target in cell.targets:
            named += [(target.target, figure) for figure in target.figures]
        if not named:
            yield {**dict.fromkeys(COLUMNS), **about, "victim": ""}
        for victim, figure in named:
            own = {name: getattr(figure, name) for name in COLUMNS[7:]}
            yield {**about, "victim": victim, "figure": figure.name, **own}

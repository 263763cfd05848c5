"""The cells of a run's result, as plain data."""

from __future__ import annotations

from typing import Any

import fdaudit


def cells_of(run: fdaudit.Run, requested: bool = False) -> dict[str, Any]:
    """Return the cells of a run by their id; all of them, or those that were requested."""
    cells = {}
    for cell in run.result.plain()["cells"]:
        if not (requested and cell["status"] == "not-requested"):
            cells[cell["id"]] = cell
    return cells


def cell_of(run: fdaudit.Run, name: str) -> Any:
    """Return the cell of this id, or the only requested cell of this attack."""
    if "/" in name:
        return cells_of(run)[name]
    (cell,) = [cell for cell in cells_of(run, requested=True).values() if cell["attack"] == name]
    return cell


def figures_of(cell: Any) -> dict[str, Any]:
    """Return the figures of a cell, or of its target, by their name, which no two share."""
    figures = {figure["name"]: figure for figure in cell["figures"]}
    assert len(figures) == len(cell["figures"])
    return figures


def values_of(cell: Any) -> dict[str, Any]:
    """Return the values of a cell's figures, by their name."""
    return {name: figure["value"] for name, figure in figures_of(cell).items()}

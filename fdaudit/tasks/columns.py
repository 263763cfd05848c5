"""The columns of a table: what the numbers of a row's vector mean, in the units in which people read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["OTHER", "Column", "cells_of", "plain_columns", "shown_cell", "spans", "width_of"]

OTHER = "(other)"
"""The category of every value that is not among those that all parties know."""
_ROUNDING = 1e-6
"""Share of a column's scale below which a number is shown as 0."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: a number that is scaled, or a category that is one-hot.

    Attributes:
        name: the column's name.
        categories: the names of the categories, in the order of the one-hot entries; empty for a number.
        mean: what was subtracted from a number, in the column's own units.
        scale: what it was divided by then, in the column's own units.
        stated: whether mean and scale, or the categories, are final and everyone may know them.
    """

    name: str
    categories: tuple[str, ...] = ()
    mean: float = 0.0
    scale: float = 1.0
    stated: bool = False

    @property
    def is_number(self) -> bool:
        """Return whether the column holds numbers."""
        return not self.categories

    @property
    def width(self) -> int:
        """Return the number of entries of the vector: 1 for a number, one for each category otherwise."""
        return len(self.categories) or 1


def plain_columns(width: int) -> tuple[Column, ...]:
    """Return columns of unscaled numbers, for vectors of which nothing else is known."""
    return tuple(Column(name=f"column {k}") for k in range(width))


def width_of(columns: Sequence[Column]) -> int:
    """Return the length d of a row's vector."""
    return sum(column.width for column in columns)


def spans(columns: Sequence[Column]) -> list[slice]:
    """Return the entries of the vector that each column has."""
    entries = list[slice]()
    start = 0
    for column in columns:
        entries.append(slice(start, start + column.width))
        start += column.width
    return entries


def cells_of(x: Tensor, columns: Sequence[Column]) -> Tensor:
    """Return the cells (n, columns), float64, of vectors (n, d): numbers in their own units, and numbers of categories.

    The category is the one with the largest entry.
    """
    import torch

    cells = []
    for column, span in zip(columns, spans(columns), strict=True):
        entries = x[:, span].double()
        if column.is_number:
            cells.append(column.mean + column.scale * entries[:, 0])
        else:
            cells.append(entries.argmax(1).double())
    return torch.stack(cells, 1)


def shown_cell(value: float, column: Column) -> str:
    """Return a cell as people read it: a number with six digits, or the name of a category."""
    if not column.is_number:
        return column.categories[int(value)]
    if abs(value) < _ROUNDING * column.scale:
        value = 0.0  # 32-bit numbers that were scaled and scaled back
    return f"{value:.6g}"

"""Hand each cell's p-values to its verdict as corrected for all tests of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fdaudit.result import Adjusted, Cell, Family, Image, Result
from fdaudit.types import Figure

__all__ = ["Correction", "corrections", "groups"]


@dataclass(frozen=True, kw_only=True)
class Correction:
    """The correction of one cell's p-values for all tests of the run.

    Attributes:
        adjusted: p-values after correction by victim (None: all together) and by the figure's name.
        tests: number of tested figures of the run.
        floor: the least AUC of all victims together that would have been significant, or None.
        floor_one_victim: the least AUC that would have been significant for any victim alone, or None.
        too_few: the number of coins of the run, if these are so few that no AUC would have been significant; else 0.
    """

    adjusted: Mapping[str | None, Mapping[str, float]] = field(default_factory=dict)
    tests: int = 1
    floor: float | None = None
    floor_one_victim: float | None = None
    too_few: int = 0

    def of(self, target: str | None, figure: Figure) -> float | None:
        """Return a figure's p-value after correction; by Bonferroni's method if the family does not contain it."""
        if figure.p is None:
            return None
        return self.adjusted.get(target, {}).get(figure.name, min(1.0, figure.p * self.tests))


def corrections(result: Result) -> list[Correction]:
    """Return the correction of each cell, in the result's order.

    A result without a family of tests has no re-flips. Each of its p-values is multiplied by their number.
    """
    if result.family is not None:
        by_cell = _by_cell(result.family)
        return [by_cell.get(cell.id, Correction(tests=result.family.tests)) for cell in result.cells]
    return [Correction(tests=max(1, sum(map(_tests, result.cells))))] * len(result.cells)


def groups(cell: Cell) -> Iterator[tuple[str | None, Sequence[Figure], Sequence[Image]]]:
    """Yield the figures and images of all victims together (None), and of each."""
    if cell.figures:
        yield None, cell.figures, ()
    for target in cell.targets:
        yield target.target, target.figures, target.images or ()


def _tests(cell: Cell) -> int:
    """Return how many figures of a cell that ran carry a p-value; the worst victim's figures are its own again."""
    if cell.status != "run":
        return 0
    count = 0
    for _, figures, _ in groups(cell):
        count += sum(f.p is not None and not f.name.endswith("_worst") for f in figures)
    return count


def _reached(row: Adjusted) -> bool:
    """Return whether an AUC would have been significant. Equal scores have the AUC 0.5 whatever the coins are."""
    return row.figure == "auc" and row.floor is not None and row.floor > 0.5


def _by_cell(family: Family) -> dict[str, Correction]:
    """Return the correction of each cell of a family."""
    rows: dict[str, list[Adjusted]] = {}
    for row in family.adjusted:
        rows.setdefault(row.cell, []).append(row)
    nowhere = not any(_reached(row) for row in family.adjusted)
    coins = 0 if family.by_coins is None else family.by_coins.coins
    by_cell = {}
    for cell, own in rows.items():
        adjusted: dict[str | None, dict[str, float]] = {}
        for row in own:
            adjusted.setdefault(row.target, {})[row.figure] = row.p
        aucs = [row for row in own if row.figure == "auc"]
        alone = [row.floor for row in aucs if row.target is not None and row.floor is not None]
        never = all(row.floor is None for row in aucs)
        by_cell[cell] = Correction(
            adjusted=adjusted,
            tests=family.tests,
            floor=next((row.floor for row in aucs if row.target is None), None),
            floor_one_victim=max(alone, default=None),
            too_few=coins if aucs and (never or nowhere) else 0,
        )
    return by_cell

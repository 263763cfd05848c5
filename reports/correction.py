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
    """

    adjusted: Mapping[str | None, Mapping[str, float]] = field(default_factory=dict)
    tests: int = 1
    floor: float | None = None
    floor_one_victim: float | None = None

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
        known = _by_cell(result.family)
        return [known.get(cell.id, Correction(tests=result.family.tests)) for cell in result.cells]
    return [Correction(tests=max(1, sum(map(_tests, result.cells))))] * len(result.cells)


def groups(cell: Cell) -> Iterator[tuple[str | None, Sequence[Figure], Sequence[Image]]]:
    """Yield the figures and images of all victims together (None), and of each."""
    if cell.figures:
        yield None, cell.figures, ()
    for target in cell.targets:
        yield target.target, target.figures, target.images or ()


def _tests(cell: Cell) -> int:
    """Return how many figures of a cell that ran carry a p-value; the worst victim's figures are its own again."""
    held = groups(cell) if cell.status == "run" else ()
    return sum(f.p is not None and not f.name.endswith("_worst") for _, figures, _ in held for f in figures)


def _by_cell(family: Family) -> dict[str, Correction]:
    """Return the correction of each cell of a family."""
    rows: dict[str, list[Adjusted]] = {}
    for row in family.adjusted:
        rows.setdefault(row.cell, []).append(row)
    found = {}
    for cell, own in rows.items():
        adjusted: dict[str | None, dict[str, float]] = {}
        for row in own:
            adjusted.setdefault(row.target, {})[row.figure] = row.p
        aucs = [row for row in own if row.figure == "auc"]
        alone = [row.floor for row in aucs if row.target is not None and row.floor is not None]
        found[cell] = Correction(
            adjusted=adjusted,
            tests=family.tests,
            floor=next((row.floor for row in aucs if row.target is None), None),
            floor_one_victim=max(alone, default=None),
        )
    return found

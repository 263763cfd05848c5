"""Hand each cell's p-values to its verdict as corrected for all tests of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fdaudit.result import Cell, Image, Result
from fdaudit.types import Figure

from ..grouping import grouped

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
    family = result.family
    if family is None:
        tests = 0
        for cell in result.tests:
            for _, figures, _ in groups(cell):  # the worst victim's figures are its own again
                for figure in figures:
                    if figure.p is not None and not figure.name.endswith("_worst"):
                        tests += 1
        return [Correction(tests=max(1, tests))] * len(result.cells)
    # Whether any AUC would have been significant: equal scores have 0.5 whatever the coins are.
    reached = any(row.figure == "auc" and (row.floor or 0.0) > 0.5 for row in family.adjusted)
    coins = 0 if family.by_coins is None else family.by_coins.coins
    by_cell = {}
    for cell_id, own in grouped(family.adjusted, lambda row: row.cell).items():
        adjusted: dict[str | None, dict[str, float]] = {}
        floors: dict[str | None, float | None] = {}
        for row in own:
            adjusted.setdefault(row.target, {})[row.figure] = row.p
            if row.figure == "auc":
                floors[row.target] = row.floor
        floor = floors.get(None)
        alone = list[float]()
        for target, least in floors.items():
            if target is not None and least is not None:
                alone.append(least)
        none_here = floor is None and not alone
        by_cell[cell_id] = Correction(
            adjusted=adjusted,
            tests=family.tests,
            floor=floor,
            floor_one_victim=max(alone, default=None),
            too_few=coins if floors and (none_here or not reached) else 0,
        )
    untested = Correction(tests=family.tests)
    return [by_cell.get(cell.id, untested) for cell in result.cells]


def groups(cell: Cell) -> Iterator[tuple[str | None, Sequence[Figure], Sequence[Image]]]:
    """Yield the figures and images of all victims together (None), and of each."""
    if cell.figures:
        yield None, cell.figures, ()
    for target in cell.targets:
        yield target.target, target.figures, target.images or ()

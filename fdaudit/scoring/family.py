"""Correct the p-values behind a run's verdicts for multiple testing.

Guarantee:
  * in a run that leaks nothing, the chance that any test of any cell, victim or goal is significant is at most `LEVEL`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fdaudit.metrics import FigureKey, Pairs, Reflipped, holm, reflip
from fdaudit.result import Adjusted, ByCoins, ByThemselves, Cell, Family
from fdaudit.rng import child_numpy
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.scoring.scoring import SCORED, kept_scores
from fdaudit.types import Challenge, Figure

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BY_COINS", "LEVEL", "candidate_scores", "family_of"]

LEVEL = 0.05
"""Chance that any test is significant in a run that leaks nothing."""

BY_COINS = 0.6
"""Share of the level for membership tests by re-flipped coins, if a run has other tests as well."""


def family_of(run: RunDirectory, cells: Sequence[Cell]) -> Family:
    """Return the adjusted p-values of a run's figures, and how they were found.

    Membership figures are tested jointly, by re-flipping the known coins. Other figures with a p-value of their own are
    corrected by Holm's method. So are membership scores from outside, which the vault does not keep. If a run has both
    kinds, the first gets the share `BY_COINS` of the level and the second gets the rest.

    Args:
        run: the run.
        cells: the run's cells.

    Raises:
        IntegrityError: a membership attack has run, and its scores are missing from the vault.
    """
    scores = candidate_scores(run, cells)
    own = list(_own_tests(cells, scores))
    share = BY_COINS if scores and own else 1.0
    coins = reflip(scores, child_numpy(run.case.seed, "family"), level=LEVEL * share)
    rest = 1 - share if scores else 1.0
    adjusted = {key: p / share for key, p in coins.p.items()}
    corrected = holm([p for _, p in own])
    for (key, _), p in zip(own, corrected, strict=True):
        adjusted[key] = p / rest
    rows = list[Adjusted]()
    for key, p in adjusted.items():
        row = Adjusted(
            cell=key.cell,
            target=key.target,
            figure=key.figure,
            p=min(1.0, p),
            floor=_reachable(coins.floors.get(key)),
        )
        rows.append(row)
    by_coins, by_themselves = None, None
    if coins.p:
        by_coins = ByCoins(
            level=LEVEL * share,
            coins=coins.coins,
            reflips=coins.reflips,
            statistics=len(coins.p),
            floor=_floor(coins, one_victim=False),
            floor_one_victim=_floor(coins, one_victim=True),
        )
    if own:
        by_themselves = ByThemselves(level=LEVEL * rest, tests=len(own))
    return Family(level=LEVEL, by_coins=by_coins, by_themselves=by_themselves, adjusted=tuple(rows))


def candidate_scores(run: RunDirectory, cells: Sequence[Cell]) -> dict[str, dict[str, Pairs]]:
    """Return the scores behind the membership cells that a verdict may use, by cell and victim, pair by pair.

    Raises:
        IntegrityError: a membership attack has run, and its scores are missing from the vault.
    """
    by_cell = dict[str, dict[str, Pairs]]()
    truths: dict[str, tuple[Challenge, Tensor]] = {}
    if run.case.design == "observational":
        return by_cell
    for cell in filter(_is_judged, cells):
        scores = kept_scores(run.path, cell.id, "candidates")
        for client in sorted(scores):
            if client not in truths:
                truths[client] = run.truth.challenge(client)
            challenge, member = truths[client]
            order = challenge.pair.argsort(stable=True)  # both halves in the order of their pairs
            inside = member[order].numpy()
            ordered = scores[client].numpy()[order.numpy()]
            pairs = Pairs(ordered[inside], ordered[~inside])
            by_cell.setdefault(cell.id, {})[client] = pairs
    return by_cell


def _is_judged(cell: Cell) -> bool:
    """Return whether a cell ran and its negative control did not fail. Verdicts use no other cell."""
    if cell.status not in SCORED:
        return False
    return cell.controls is None or cell.controls.negative is None or cell.controls.negative.passed


def _own_tests(cells: Sequence[Cell], by_coins: Mapping[str, Any]) -> Iterator[tuple[FigureKey, float]]:
    """Yield figures with a p-value, from cells that coins do not test. Skip the worst victim's figure, a duplicate."""
    for cell in filter(_is_judged, cells):
        if cell.id in by_coins:
            continue
        yield from _tested(cell.id, None, cell.figures)
        for target in cell.targets:
            yield from _tested(cell.id, target.target, target.figures)


def _tested(cell: str, target: str | None, figures: Sequence[Figure]) -> Iterator[tuple[FigureKey, float]]:
    for figure in figures:
        if figure.p is not None and not figure.name.endswith("_worst"):
            yield FigureKey(cell, target, figure.name), figure.p


def _floor(coins: Reflipped, *, one_victim: bool) -> float | None:
    """Return the AUC that would be significant in every cell, or None if no AUC would."""
    floors = list[float]()
    for key, floor in coins.floors.items():
        if (key.target is not None) == one_victim:
            floors.append(floor)
    return _reachable(max(floors, default=None))


def _reachable(floor: float | None) -> float | None:
    return floor if floor is not None and floor <= 1 else None

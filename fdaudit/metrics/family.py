"""Correction of all membership p-values of a run for multiple tests, by joint re-flips of its coins (max-T).

One fair coin decided which half of a matched pair was trained on. Scores that are independent of the coins would be the
same after other tosses. So all coins are flipped again at once. The same flips serve every cell. Each figure is
compared with the largest statistic of each re-flip (Westfall and Young, "Resampling-Based Multiple Testing", 1993,
algorithm 4.1). Cells that repeat each other then cost nothing. Bonferroni would pay for each.

Guarantees:
  * if the scores are uninformative, the chance that any adjusted p-value is at most α is itself at most α. This holds
    for every dependence between cells;
  * scores that leak do not use up the level of others (step-down);
  * increasing maps of a cell's scores change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy  # its packages are loaded at first use
from numpy.typing import NDArray

from fdaudit.metrics._arrays import Floats, Integers
from fdaudit.metrics.membership import FPRS, fpr_name
from fdaudit.metrics.ranking import doubled_ranks

__all__ = ["REFLIPS", "FigureKey", "Pairs", "Reflipped", "holm", "reflip"]

REFLIPS = 20_000
"""Re-flips of all coins. A probability of 5 % is then known to 0.15 percentage points."""

_CHUNK = 1000
"""Re-flips held in memory at once."""

_DECIMALS = 9
"""Decimals of statistics: equal statistics of two figures stay equal under rounding."""

_LEAST = 1e-300
"""The least p-value of a true-positive rate; smaller ones count as equal."""


class Pairs(NamedTuple):
    """Scores of one client's candidates, pair by pair: of the members (n,) and of their other halves (n,)."""

    inside: Floats
    outside: Floats


class FigureKey(NamedTuple):
    """A tested figure: over all victims of a cell (`target` None), or of one."""

    cell: str
    target: str | None
    figure: str


@dataclass(frozen=True, kw_only=True)
class Reflipped:
    """The tests of a run's membership figures by re-flips.

    Attributes:
        p: adjusted p-value of each figure; 1 if no coin can change the figure.
        floors: by AUC, the least value that would be significant at the given level, with these scores.
            It may be above 1: then no value would.
        coins: number of flipped coins.
        reflips: number of re-flips.
    """

    p: Mapping[FigureKey, float]
    floors: Mapping[FigureKey, float]
    coins: int
    reflips: int


def reflip(
    cells: Mapping[str, Mapping[str, Pairs]],
    generator: np.random.Generator,
    *,
    level: float,
    reflips: int = REFLIPS,
) -> Reflipped:
    """Test every AUC and every true-positive rate of some cells against joint re-flips of all coins.

    An AUC is a sum of rank differences, one per coin, divided by the root of its variance over the coins. A
    true-positive rate is the normal quantile of `tpr_p_value`. Both are approximately normal if nothing leaks, so the
    largest is equally likely to be of either kind.

    Args:
        cells: by cell and victim, the scores. A victim has the same pairs in the same order in every cell.
        generator: randomness of the coins.
        level: level of the floors.
        reflips: number of re-flips of all coins.

    Returns:
        Adjusted p-values (1 + c) / (1 + `reflips`), where c counts re-flips that reach the observed value.
    """
    start, coins = _places(cells)
    aucs, rates = list[_Auc](), list[_Rate]()
    for cell, scores in cells.items():
        for target, own_coins, values in _groups(scores, start):
            doubled, n = doubled_ranks(values), len(own_coins)
            key = FigureKey(cell, target, "auc")
            aucs.append(_Auc(tested=key, coins=own_coins, ahead=doubled[:n] - doubled[n:]))
            rates += _rates(cell, target, own_coins, values)
    if not aucs:
        return Reflipped(p={}, floors={}, coins=coins, reflips=reflips)
    weights = np.zeros((coins, len(aucs)))
    for k, auc in enumerate(aucs):
        weights[auc.coins, k] = auc.ahead
    norms = np.linalg.norm(weights, axis=0)

    def statistics(flips: NDArray[np.int8]) -> Floats:
        """Return (b, figures) for flips (b, coins), which are 1 where a coin is as in the run, else -1."""
        linear = (flips @ weights) / np.where(norms > 0, norms, 1.0)  # sums of whole numbers: exact
        linear[:, norms == 0] = -np.inf  # no coin changes it
        by_coin = np.ascontiguousarray(flips.T)
        values: Floats = np.column_stack([linear, *(rate(by_coin) for rate in rates)])
        return values.round(_DECIMALS)

    observed = statistics(np.ones((1, coins), dtype=np.int8))[0]
    order = np.argsort(observed, kind="stable")
    as_good, largest = np.zeros(len(observed), dtype=np.int64), np.empty(reflips)
    for first in range(0, reflips, _CHUNK):
        rows = min(_CHUNK, reflips - first)
        flips = (2 * generator.integers(2, size=(rows, coins), dtype=np.int8) - 1).astype(np.int8)
        # Each figure is compared with the largest of those that are not above it in the run.
        among = np.maximum.accumulate(statistics(flips)[:, order], axis=1)
        as_good += (among >= observed[order]).sum(0)
        largest[first : first + rows] = among[:, -1]
    p = (1 + as_good) / (1 + reflips)
    p = np.maximum.accumulate(p[::-1])[::-1]  # no figure before one that is above it
    adjusted = np.empty(len(p))
    adjusted[order] = p
    tested = [*(auc.tested for auc in aucs), *(rate.tested for rate in rates)]
    critical = _critical(largest, level)
    floors = {}
    for auc, norm in zip(aucs, norms.tolist(), strict=True):
        # The AUC of n pairs is 1/2 + Σ ahead / (4 n²): ranks are doubled, and both signs of a coin count.
        floors[auc.tested] = 0.5 + critical * norm / (4 * len(auc.ahead) ** 2)
    p_by_figure = dict(zip(tested, adjusted.tolist(), strict=True))
    return Reflipped(p=p_by_figure, floors=floors, coins=coins, reflips=reflips)


def holm(p: Sequence[float]) -> list[float]:
    """Return adjusted p-values of tests that may depend on each other in any way (Holm 1979)."""
    order = np.argsort(p, kind="stable")
    scaled = np.asarray(p, dtype=np.float64)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return list(map(float, adjusted))


# -- details ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Auc:
    """An AUC as rank differences between members and their other halves, doubled (n,), and the coins (n,)."""

    tested: FigureKey
    coins: Integers
    ahead: Integers


@dataclass(frozen=True, kw_only=True)
class _Rate:
    """A true-positive rate as a normal quantile, from the candidates with the highest scores.

    Attributes:
        coins: (k,) the coin of each candidate, the highest score first.
        as_is: (k,) 1 for the members of the run, else -1.
        above: (k + 1,) number of candidates strictly above each place, without ties.
        allowed: number of non-members that may be detected.
        quantiles: (k + 1, allowed + 1) by members and non-members detected.
    """

    tested: FigureKey
    coins: Integers
    as_is: NDArray[np.int8]
    above: Integers
    allowed: int
    quantiles: Floats

    def __call__(self, flips: NDArray[np.int8]) -> Floats:
        """Return the quantiles (b,) for flips (coins, b)."""
        differs = (flips[self.coins] != self.as_is[:, None]).astype(np.int32)
        wrong = np.zeros((len(differs) + 1, flips.shape[1]), dtype=np.int32)
        for row, differing in enumerate(differs):  # `cumsum` along this axis goes through single columns
            np.add(wrong[row], differing, out=wrong[row + 1])
        place = np.add.reduce((wrong[1:] <= self.allowed).view(np.int8), axis=0, dtype=np.int32)
        detected = self.above[place]
        missed = wrong[detected, np.arange(flips.shape[1])]
        quantiles: Floats = self.quantiles[detected - missed, missed]
        return quantiles


def _places(cells: Mapping[str, Mapping[str, Pairs]]) -> tuple[dict[str, int], int]:
    """Return the number of each client's first coin, and the number of coins."""
    sizes: dict[str, int] = {}
    for scores in cells.values():
        for client, pairs in scores.items():
            sizes[client] = len(pairs.inside)
    start, coins = {}, 0
    for client, size in sorted(sizes.items()):
        start[client] = coins
        coins += size
    return start, coins


def _groups(
    scores: Mapping[str, Pairs], start: Mapping[str, int]
) -> list[tuple[str | None, Integers, Floats]]:
    """Return the coins (n,) and scores (2n,), members first, of all victims of a cell (None), and of each."""
    by_client = []
    for client, pairs in scores.items():
        if len(pairs.inside):
            by_client.append((client, start[client] + np.arange(len(pairs.inside)), pairs))
    if not by_client:
        return []
    coins = np.concatenate([own for _, own, _ in by_client])
    inside = [pairs.inside for *_, pairs in by_client]
    outside = [pairs.outside for *_, pairs in by_client]
    groups: list[tuple[str | None, Integers, Floats]] = [(None, coins, np.concatenate(inside + outside))]
    for client, own, pairs in by_client:
        groups.append((client, own, np.concatenate(pairs)))
    return groups


def _rates(cell: str, target: str | None, coins: Integers, values: Floats) -> Iterator[_Rate]:
    """Yield the true-positive rate at each false-positive rate that the non-members can resolve.

    It is taken over the candidates with the highest scores: four times as many as chance needs. A rate that goes beyond
    them counts as one that reaches them. This holds for the run and for re-flips.
    """
    n = len(coins)
    order = np.argsort(-values, kind="stable")
    ordered = -values[order]
    above = np.append(np.searchsorted(ordered, ordered, side="left"), 2 * n)
    for fpr in FPRS:
        allowed = int(np.floor(fpr * n + 1e-9))
        if not 1 <= allowed < n:
            continue
        top = min(2 * n, 4 * allowed + 40)
        yield _Rate(
            tested=FigureKey(cell, target, fpr_name(fpr)),
            coins=np.concatenate([coins, coins])[order[:top]],
            as_is=np.where(order[:top] < n, 1, -1).astype(np.int8),
            above=above[: top + 1],
            allowed=allowed,
            quantiles=_quantiles(n, allowed, top),
        )


@cache
def _quantiles(n: int, allowed: int, top: int) -> Floats:
    """Return `tpr_p_value` (top + 1, allowed + 1) by detected members and non-members, as normal quantiles."""
    detected, wrong = np.meshgrid(np.arange(top + 1), np.arange(allowed + 1), indexing="ij")
    p = _at_most(n, top + allowed, allowed)[np.minimum(detected + wrong, 2 * n), wrong]
    return np.asarray(-scipy.special.ndtri(np.clip(p, _LEAST, 1 - 1e-12)))


def _at_most(n: int, draws: int, allowed: int) -> Floats:
    """Return the probability (draws + 1, allowed + 1) of at most so many non-members among so many candidates.

    There are n members and n non-members. SciPy's `hypergeom` would load `scipy.stats`, which takes a process longer.
    """
    drawn, wrong = np.meshgrid(np.arange(draws + 1), np.arange(allowed + 1), indexing="ij")
    # Hypergeometric: C(n, wrong) C(n, right) / C(2n, drawn), with logarithms that do not overflow.
    possible = (drawn >= wrong) & (drawn - wrong <= n) & (wrong <= n)
    right, drawn = np.where(possible, drawn - wrong, 0), np.minimum(drawn, 2 * n)
    log = _log_choices(n, np.minimum(wrong, n)) + _log_choices(n, right) - _log_choices(2 * n, drawn)
    at_most: Floats = np.minimum(np.exp(np.where(possible, log, -np.inf)).cumsum(1), 1.0)
    return at_most


def _log_choices(n: int, k: Integers) -> Floats:
    """Return the logarithm of the number of subsets of k of n things."""
    gammaln = scipy.special.gammaln
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def _critical(largest: Floats, level: float) -> float:
    """Return the value above which an adjusted p-value is at most `level`; inf if re-flips are too few."""
    allowed = int(np.floor(level * (1 + len(largest)) + 1e-9)) - 1
    if allowed < 0:
        return float("inf")
    return float(np.sort(largest)[::-1][allowed])

"""P-values of scores against chance, from the design by which membership was decided.

Guarantees:
  * under the design, P(p <= α) <= α for every α and all scores, for `auc_p_value`;
  * increasing maps of the scores change nothing.
"""

from __future__ import annotations

import math

import numpy as np
import scipy  # its packages are loaded at first use
from numpy.typing import ArrayLike

from fdaudit.metrics._arrays import Floats, Integers
from fdaudit.metrics.ranking import checked, checked_pairs, doubled_ranks

__all__ = ["auc_p_value", "tpr_p_value"]

_EXACT_PAIRS = 300
"""Most pairs for the exact distribution over all coins; for more, its tail is bounded by Chernoff."""


def auc_p_value(scores: ArrayLike, member: ArrayLike, *, pair: ArrayLike | None = None) -> float:
    """Return the one-sided p-value of the AUC against scores that are independent of membership.

    With pairs, each pair's coin is tossed again. The AUC is determined by the sum of members' ranks; ties share their
    mean rank. A coin changes the sum by the difference of its pair's two ranks. The sum's distribution over all coins
    is computed exactly, or bounded from above (Chernoff). Without pairs this is the Mann-Whitney test, which takes all
    sets of as many members as equally likely.

    Args:
        scores: (n,), higher for "member".
        member: (n,) booleans.
        pair: (n,) number of the matched pair of each candidate, or None.

    Raises:
        UsageError: as `auc`; or `pair` does not match one member with one non-member.
    """
    values, truth = checked(scores, member)
    if pair is None:
        if len(np.unique(values)) == 1:
            return 1.0
        test = scipy.stats.mannwhitneyu(values[truth], values[~truth], alternative="greater")
        return float(test.pvalue)
    unit = checked_pairs(pair, truth)
    doubled = doubled_ranks(values)
    ahead = np.zeros(int(unit.max()) + 1, dtype=np.int64)
    np.add.at(ahead, unit, np.where(truth, doubled, -doubled))
    steps = np.abs(ahead[ahead != 0])
    if not len(steps):
        return 1.0
    reached = int(ahead.sum())
    if len(steps) > _EXACT_PAIRS:
        return _chernoff(steps, reached)
    return _exact(steps, reached)


def _exact(steps: Integers, reached: int) -> float:
    """Return P(Σ ±steps >= reached) for fair, independent signs."""
    size = int(steps.sum())
    chance: Floats = np.zeros(2 * size + 1)
    chance[size] = 1.0
    for step in steps.tolist():
        up, down = np.roll(chance, step), np.roll(chance, -step)  # the ends are empty: nothing wraps around
        chance = (up + down) / 2
    return float(min(1.0, chance[size + reached :].sum()))


def _chernoff(steps: Integers, reached: int) -> float:
    """Return an upper bound of P(Σ ±steps >= reached): the least of exp(-λ reached) Π cosh(λ step) over λ >= 0."""
    if reached <= 0:
        return 1.0
    scaled, goal = steps / steps.max(), reached / steps.max()

    def log_bound(rate: float) -> float:
        x = rate * scaled
        # log cosh x = x + log(1 + e^-2x) - log 2, which does not overflow.
        return float((x + np.log1p(np.exp(-2 * x)) - np.log(2)).sum() - rate * goal)

    least = scipy.optimize.minimize_scalar(log_bound, bounds=(0.0, 60.0), method="bounded")
    return float(min(1.0, np.exp(min(0.0, float(least.fun)))))


def tpr_p_value(found: int, members: int, wrong: int, others: int) -> float:
    """Return the probability that a random order detects as many members while at most `wrong` non-members pass.

    This is a hypergeometric tail: at most `wrong` non-members among the `found + wrong` highest of a random order.

    Args:
        found: members detected.
        members: all members.
        wrong: non-members detected.
        others: all non-members.
    """
    passed = int(found + wrong)  # Python's whole numbers do not overflow
    members = int(members)
    others = int(others)
    least = max(0, passed - members)
    choices = math.comb(others, least) * math.comb(members, passed - least)  # with `least` of the others
    total = 0
    for k in range(least, min(wrong, others) + 1):
        total += choices
        choices = choices * (others - k) * (passed - k) // ((k + 1) * (members - passed + k + 1))
    return total / math.comb(members + others, passed)

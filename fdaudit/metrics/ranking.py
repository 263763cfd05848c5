"""Separation of members and non-members by a score: AUC, ROC, TPR at a low FPR, choice within pairs.

A score is higher for "member". `member` says which candidates were trained on. If candidates form matched
pairs (a coin decided which of two was trained on), `pair` (n,) numbers the pairs.

Guarantees:
  * AUC does not change under any increasing map of the scores, and auc(-scores) = 1 - auc(scores);
  * a tie counts half in AUC and never as a detection in a TPR, so constant scores have AUC 1/2 and TPR 0 at
    every FPR under 1;
  * a TPR at an FPR that the non-members cannot resolve is refused, not interpolated;
  * TPR does not fall as FPR rises;
  * balanced accuracy is measured on candidates that were not used to choose its threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import Flags, Floats, Integers, flags, integers, vector

__all__ = [
    "RocCurve",
    "WeightedAuc",
    "auc",
    "balanced_accuracy",
    "checked",
    "checked_pairs",
    "choices",
    "cross_decided",
    "detected",
    "doubled_ranks",
    "halves",
    "pair_accuracy",
    "roc_curve",
    "tpr_at_fpr",
]


@dataclass(frozen=True, kw_only=True, eq=False)
class RocCurve:
    """All operating points of "score >= threshold", from no acceptance (0, 0) to full acceptance (1, 1).

    On a logarithmic FPR axis points with fpr = 0 are off the left edge; start the axis at `resolution`.

    Attributes:
        fpr: (p,) false-positive rates, not decreasing.
        tpr: (p,) true-positive rates, not decreasing.
        threshold: (p,) least accepted score, decreasing; +inf for no acceptance.
        resolution: smallest FPR other than 0 that these non-members can show.
    """

    fpr: Floats
    tpr: Floats
    threshold: Floats
    resolution: float


def checked(scores: ArrayLike, member: ArrayLike) -> tuple[Floats, Flags]:
    """Return scores (n,) and membership (n,) as arrays, after a check for both members and non-members.

    Raises:
        UsageError: a score is NaN, lengths differ, or members or non-members are missing.
    """
    values = vector(scores, "scores")
    truth = flags(member, "member", len(values))
    if truth.all() or not truth.any():
        missing = "non-members" if truth.all() else "members"
        raise UsageError(
            "member", bool(truth[0]), f"is all there is: no {missing}", "Score members and non-members."
        )
    return values, truth


def doubled_ranks(values: Floats) -> Integers:
    """Return twice the rank of each value (n,), a whole number; ties share their mean rank.

    SciPy's `rankdata` would load `scipy.stats`, which takes a process longer than the ranks of a run.
    """
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)  # the highest rank of each distinct value
    doubled: Integers = (2 * last - count + 1)[place]
    return doubled


def checked_pairs(pair: ArrayLike | None, truth: Flags) -> Integers:
    """Return pairs numbered 0 ... p-1, each with one member and one non-member."""
    numbers, unit = np.unique(integers(pair, "pair", len(truth)), return_inverse=True)
    odd = (np.bincount(unit) != 2) | (np.bincount(unit, truth) != 1)
    if odd.any():
        raise UsageError(
            "pair",
            int(numbers[np.flatnonzero(odd)[0]]),
            "is a pair that is not one member and one non-member",
            "Give matched pairs, or leave `pair` out.",
        )
    return unit.astype(np.int64)


def halves(scores: Floats, member: Flags, unit: Integers) -> tuple[Floats, Floats]:
    """Return the scores of members (p,) and of their other halves (p,), in the order of `checked_pairs`."""
    pairs = len(scores) // 2
    inside, outside = np.empty(pairs), np.empty(pairs)
    inside[unit[member]] = scores[member]
    outside[unit[~member]] = scores[~member]
    return inside, outside


def auc(scores: ArrayLike, member: ArrayLike) -> float:
    """Return the area under the ROC curve: the chance that a member outscores a non-member; ties count half.

    Args:
        scores: (n,), higher for "member"; infinities allowed.
        member: (n,) booleans.

    Raises:
        UsageError: a score is NaN, lengths differ, or members or non-members are missing.
    """
    values, truth = checked(scores, member)
    return float(WeightedAuc(values, truth)(np.ones((1, len(values))))[0])


class WeightedAuc:
    """AUC as a function of the candidates' weights: (r, n) -> (r,)."""

    def __init__(self, values: Floats, truth: Flags) -> None:
        self._order = np.argsort(values, kind="stable")
        ordered = values[self._order]
        self._starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        self._member = truth[self._order]

    def __call__(self, weights: Floats) -> Floats:
        """Return one AUC (r,) for each row of weights (r, n)."""
        ordered = weights[:, self._order]
        members = np.add.reduceat(ordered * self._member, self._starts, axis=1)
        others = np.add.reduceat(ordered * ~self._member, self._starts, axis=1)
        beaten = np.cumsum(others, axis=1) - others / 2
        return np.asarray((members * beaten).sum(1) / (members.sum(1) * others.sum(1)))


def tpr_at_fpr(scores: ArrayLike, member: ArrayLike, fpr: float) -> float:
    """Return the largest true-positive rate of a threshold whose false-positive rate is at most `fpr`.

    At most floor(fpr * non-members) non-members may be detected, and that must be at least one. With fewer, the
    threshold would be the largest non-member score, an extreme that is not informative about the requested rate. A tie
    at the threshold is not a detection.

    Args:
        scores: (n,), higher for "member".
        member: (n,) booleans.
        fpr: in (0, 1].

    Raises:
        UsageError: `fpr` is outside (0, 1], or fpr * non-members < 1; or as `auc`.
    """
    values, truth = checked(scores, member)
    return float(detected(values, truth, fpr)[truth].mean())


def detected(values: Floats, truth: Flags, fpr: float) -> Flags:
    """Return which candidates (n,) the lowest threshold with a false-positive rate of at most `fpr` detects."""
    others = values[~truth]
    if not 0 < fpr <= 1:
        raise UsageError("fpr", fpr, "is not in (0, 1]", "Give for example 0.01.")
    allowed = int(np.floor(fpr * len(others) + 1e-9))
    if allowed < 1:
        raise UsageError(
            "fpr",
            fpr,
            f"cannot be resolved with {len(others)} non-members",
            f"Score {int(np.ceil(1 / fpr - 1e-9))} or more, or ask at FPR {1 / len(others):.3g} or above.",
        )
    if allowed >= len(others):
        return np.ones_like(truth)
    threshold = np.sort(others)[::-1][allowed]
    return np.asarray(values > threshold)


def roc_curve(scores: ArrayLike, member: ArrayLike) -> RocCurve:
    """Return all operating points: one for each distinct score, and the point without acceptance.

    Raises:
        UsageError: as `auc`.
    """
    values, truth = checked(scores, member)
    distinct, at = np.unique(-values, return_inverse=True)
    tpr = np.cumsum(np.bincount(at, truth)) / truth.sum()
    fpr = np.cumsum(np.bincount(at, ~truth)) / (~truth).sum()
    zero = np.zeros(1)
    return RocCurve(
        fpr=np.concatenate([zero, fpr]),
        tpr=np.concatenate([zero, tpr]),
        threshold=np.concatenate([[np.inf], -distinct]),
        resolution=1 / int((~truth).sum()),
    )


def pair_accuracy(scores: ArrayLike, member: ArrayLike, pair: ArrayLike) -> float:
    """Return the share of matched pairs whose member scores higher; ties count half.

    Raises:
        UsageError: as `auc`; or `pair` does not match one member with one non-member.
    """
    wins, ties, n = choices(scores, member, pair)
    return (wins + ties / 2) / n


def choices(scores: ArrayLike, member: ArrayLike, pair: ArrayLike) -> tuple[int, int, int]:
    """Return the number of pairs whose member scores higher, of pairs that tie, and of all pairs."""
    values, truth = checked(scores, member)
    inside, outside = halves(values, truth, checked_pairs(pair, truth))
    wins = int((inside > outside).sum())
    ties = int((inside == outside).sum())
    return wins, ties, len(inside)


def balanced_accuracy(
    scores: ArrayLike, member: ArrayLike, generator: np.random.Generator, *, pair: ArrayLike | None = None
) -> float:
    """Return (TPR + TNR) / 2 at a threshold chosen on other candidates.

    Candidates are split in two halves at random: whole pairs if given, else members and non-members each in half. The
    best threshold on one half decides the other, and vice versa. A threshold chosen and measured on the same candidates
    would exceed 1/2 even for uninformative scores.

    Raises:
        UsageError: as `auc`; or fewer than two pairs, two members or two non-members.
    """
    values, truth = checked(scores, member)
    units = None if pair is None else checked_pairs(pair, truth)
    right = cross_decided(values, truth, generator, units)
    return float((right[truth].mean() + right[~truth].mean()) / 2)


def cross_decided(
    values: Floats, truth: Flags, generator: np.random.Generator, units: Integers | None
) -> Flags:
    """Return (n,) whether each candidate is decided correctly by the threshold of the half it is not in."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        finite = np.zeros(1)
    # Infinities are placed one beyond the rest, so that a midpoint to them exists.
    values = np.clip(values, finite.min() - 1, finite.max() + 1)
    half = np.zeros(len(values), dtype=np.bool_)
    if units is None:
        for group in (np.flatnonzero(truth), np.flatnonzero(~truth)):
            half[generator.permutation(group)[: len(group) // 2]] = True
    else:
        pairs = int(units.max()) + 1
        half[np.isin(units, generator.permutation(pairs)[: pairs // 2])] = True
    if min(half[truth].sum(), half[~truth].sum(), (~half)[truth].sum(), (~half)[~truth].sum()) < 1:
        raise UsageError(
            "member", len(values), "is too few candidates for two halves", "Score two of each, or two pairs."
        )
    right = np.empty(len(values), dtype=np.bool_)
    for chosen, measured in ((half, ~half), (~half, half)):
        own = truth[chosen]
        # A cut between two scores rejects all candidates up to the lower one. TPR + TNR there is 1 + rejected - missed.
        distinct, at = np.unique(values[chosen], return_inverse=True)
        rejected = np.cumsum(np.bincount(at, ~own)) / (~own).sum()
        missed = np.cumsum(np.bincount(at, own)) / own.sum()
        gain = np.concatenate([[0.0], rejected - missed])
        cuts = np.concatenate([[-np.inf], distinct[:-1] / 2 + distinct[1:] / 2, [np.inf]])
        best = np.flatnonzero(gain >= gain.max() - 1e-12)
        threshold = float(cuts[best[len(best) // 2]])  # in a tie, the middle one
        right[measured] = (values[measured] > threshold) == truth[measured]
    return right

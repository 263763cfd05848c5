"""The empirical check of a claim (ε, δ): a lower bound on ε from a distinguisher's success over many draws.

A mechanism M is (ε, δ)-private for neighbours D and D' only if P[M(D) ∈ S] <= e^ε P[M(D') ∈ S] + δ for every set S of
outputs, and the same with D and D' exchanged. So any set refutes every ε below log((P[M(D) ∈ S] - δ) / P[M(D') ∈ S]).
The caller maps each joint output to a score. The sets tried here are the outputs with a score above or below a
threshold. One half of the draws chooses the set. The other half was not used for the choice. It bounds the set's two
probabilities by Clopper & Pearson 1934, which is valid for a set chosen in advance, by any method.

Guarantees:
  * for a mechanism that keeps its claim, the bound is above its ε with a probability of at most `failure`;
  * of m mechanisms each checked with `failure` / m, any is refuted falsely with at most `failure` (Bonferroni).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fdaudit.metrics._arrays import Floats, Integers

__all__ = ["Distinguisher", "choose", "lower_bound"]

_THRESHOLDS = 2000
"""Thresholds tried in each direction."""


@dataclass(frozen=True, kw_only=True)
class Distinguisher:
    """A set of outputs with a score from `threshold` on, or below it, and the data set under which it is likelier.

    Attributes:
        threshold: threshold of the score.
        above: whether the set has the scores from the threshold on, rather than those below it.
        first: whether the set is likelier under D than under D'.
    """

    threshold: float
    above: bool
    first: bool

    def hits(self, scores: Floats) -> int:
        """Return how many of the scores (n,) are in the set."""
        inside = int(np.count_nonzero(scores >= self.threshold))
        return inside if self.above else len(scores) - inside


def choose(p: Floats, q: Floats, *, delta: float, failure: float) -> Distinguisher:
    """Return the set of outputs with the largest bound on these scores, on D (n,) and on D' (m,).

    Thresholds are the pooled scores if there are few. Otherwise they are spread over the ranks, more finely toward both
    ends, where unlikely outputs reveal the most.

    Raises:
        ValueError: scores are empty or NaN, or δ or `failure` is out of range.
    """
    _refuse(p, q, delta, failure)
    pooled = np.unique(np.concatenate([p, q]))
    if len(pooled) > _THRESHOLDS:
        toward_end = np.geomspace(1, len(pooled) / 2, _THRESHOLDS // 2)
        ranks = np.unique(np.concatenate([toward_end, len(pooled) - toward_end]).astype(np.int64))
        pooled = pooled[ranks]
    n, m = len(p), len(q)
    on_p, on_q = (
        np.searchsorted(np.sort(p), pooled),
        np.searchsorted(np.sort(q), pooled),
    )  # below each threshold
    candidates = []
    for above in (True, False):
        hits_p, hits_q = (n - on_p, m - on_q) if above else (on_p, on_q)
        for first, counts in ((True, (hits_p, n, hits_q, m)), (False, (hits_q, m, hits_p, n))):
            bounds = _bound(*counts, delta, failure)
            at = int(bounds.argmax())
            distinguisher = Distinguisher(threshold=float(pooled[at]), above=above, first=first)
            candidates.append((float(bounds[at]), distinguisher))
    return max(candidates, key=lambda candidate: candidate[0])[1]


def lower_bound(distinguisher: Distinguisher, p: Floats, q: Floats, *, delta: float, failure: float) -> float:
    """Return a lower bound on ε at confidence 1 - `failure`: log((p_L - δ) / q_U), or 0 if that is less or undefined.

    Args:
        distinguisher: a set that was chosen without these scores.
        p: scores of fresh draws on D (n,).
        q: scores of fresh draws on D' (m,).
        delta: δ.
        failure: split between the two Clopper-Pearson bounds.

    Raises:
        ValueError: scores are empty or NaN, or δ or `failure` is out of range.
    """
    _refuse(p, q, delta, failure)
    likelier, other = (p, q) if distinguisher.first else (q, p)
    likely = np.array([distinguisher.hits(likelier)])
    unlikely = np.array([distinguisher.hits(other)])
    return max(0.0, float(_bound(likely, len(likelier), unlikely, len(other), delta, failure)[0]))


def _bound(likely: Integers, n: int, unlikely: Integers, m: int, delta: float, failure: float) -> Floats:
    """Return log((p_L - δ) / q_U) for each pair of counts (k,); -∞ if δ by itself explains the counts."""
    from scipy.stats import beta

    with np.errstate(invalid="ignore", divide="ignore"):
        lower = np.where(likely > 0, beta.ppf(failure / 2, likely, n - likely + 1), 0.0)
        upper = np.where(unlikely < m, beta.ppf(1 - failure / 2, unlikely + 1, m - unlikely), 1.0)
        return np.where(lower > delta, np.log((lower - delta) / upper), -math.inf)


def _refuse(p: Floats, q: Floats, delta: float, failure: float) -> None:
    if not 0 <= delta < 1 or not 0 < failure < 1:
        raise ValueError(f"delta = {delta} must lie in [0, 1), failure = {failure} in (0, 1).")
    if not len(p) or not len(q) or np.isnan(p).any() or np.isnan(q).any():
        raise ValueError("Scores are NaN or missing. Give one number for each draw.")

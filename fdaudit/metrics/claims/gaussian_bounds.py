"""A lower bound of μ of Gaussian DP from the guesses of one run: the audit of f-DP.

A mechanism is f-DP if no test of one neighbour against the other has a type II error below f of its type I error. It
is μ-GDP if f is the trade-off function of N(0, 1) against N(μ, 1) (Dong, Roth & Su 2019). The audit tests one such
hypothesis after another. Its claim differs from that of the (ε, δ) audit in `lower_bounds`: *the mechanism is not
μ-GDP for any μ below the bound*. ε at δ of that μ is the ε of the weakest Gaussian mechanism that explains the guesses.
Another mechanism that explains them may have a smaller ε.

Guarantees:
  * for a mechanism that is μ-GDP the bound exceeds μ with a probability of at most 1 - confidence: the tried numbers of
    guesses form a family that only the number of coins fixes, and they share the level;
  * the bound never falls as more guesses are right, and never rises with the confidence.

Source: Mahloujifar, Melis & Chaudhuri 2025, "Auditing f-Differential Privacy in One Run", Theorem 3.1, Algorithm 3.
"""

from __future__ import annotations

import math
from functools import lru_cache

from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.events import Relation
from fdaudit.metrics._arrays import probability
from fdaudit.metrics._guessed import GuessNumber, OneRunDesign, check_claim, check_counts, guesses_about_coins

__all__ = ["gdp_epsilon", "mu_lower_bound", "mu_p_value", "one_run_mu"]

_OF_CANDIDATES = (
    (1 / 16, False, 0.1),
    (1 / 4, False, 0.1),
    (1 / 16, True, 0.1),
    (1 / 4, True, 0.35),
    (1 / 2, True, 0.35),
)
"""Numbers of guesses, as shares of the coins; whether half of them are non-members; their shares of the level.

Most of the level goes to the numbers that tell most where scores are Gaussian. A low level costs this test more than
it costs the (ε, δ) test.
"""
_OF_PAIRS = ((1 / 8, False, 0.2), (1 / 2, False, 0.4), (1, False, 0.4))
"""The same for pairs."""
_MOST = 64.0
"""The largest tried μ; Φ(-64) is below every double."""
_STEP = 1e-6
"""Precision of μ, which is rounded down, and of the logarithm of a p-value, which is rounded up."""
_LEAST = 1e-250
"""The smallest reported p-value."""


def mu_lower_bound(
    scores: ArrayLike,
    member: ArrayLike,
    confidence: float = 0.95,
    design: OneRunDesign = "coin-flips",
    relation: Relation = "add-or-remove",
    *,
    pair: ArrayLike | None = None,
    guesses: int | None = None,
) -> float:
    """Return a lower bound on μ: the mechanism is not μ'-GDP for any smaller μ'.

    Args:
        scores: (n,), higher for "member".
        member: (n,) booleans: whether the candidate was trained on.
        confidence: confidence of the bound.
        design: the design by which membership was decided.
        relation: relation of the bound. The bound of matched pairs, for replaced records, is halved for it: a mechanism
            that is μ-GDP for records added or removed is 2μ-GDP for records replaced.
        pair: (n,) number of each candidate's pair; for `matched-pairs` only.
        guesses: number of guesses, fixed before the scores were seen; by default a family is tried.

    Raises:
        UsageError: shapes do not match, a number is out of range, or the design does not support the relation.
    """
    alpha = 1 - probability(confidence, "confidence")
    coin_guesses = guesses_about_coins(scores, member, design, relation, pair, guesses, _family)
    mu = 0.0
    for correct, r, share in coin_guesses.counts:
        mu = max(mu, _inverted(correct, r, coin_guesses.coins, alpha * share))
    return mu / 2 if coin_guesses.halved else mu


def mu_p_value(
    scores: ArrayLike,
    member: ArrayLike,
    mu: float,
    design: OneRunDesign = "coin-flips",
    relation: Relation = "add-or-remove",
    *,
    pair: ArrayLike | None = None,
    guesses: int | None = None,
) -> float:
    """Return the largest probability, for a μ-GDP mechanism, of at least as many right guesses.

    The result is corrected for the tried numbers of guesses. The other arguments are those of `mu_lower_bound`.

    Raises:
        UsageError: as `mu_lower_bound`; or a negative or infinite μ.
    """
    check_claim(mu, "mu")
    coin_guesses = guesses_about_coins(scores, member, design, relation, pair, guesses, _family)
    claim = 2 * mu if coin_guesses.halved else mu
    p = 1.0
    for correct, r, share in coin_guesses.counts:
        p = min(p, _p_value(correct, r, coin_guesses.coins, claim) / share)  # Bonferroni
    return p


def one_run_mu(correct: int, guesses: int, canaries: int, confidence: float = 0.95) -> float:
    """Return the least μ that the right guesses do not refute; the number of guesses was fixed in advance.

    Args:
        correct: c: guesses that were right.
        guesses: c': guesses made, without abstentions.
        canaries: m: records that were each included by their own fair coin, guessed or not.
        confidence: confidence of the bound.

    Raises:
        UsageError: not 0 <= correct <= guesses <= canaries, no guess, or a number out of range.
    """
    check_counts(correct, guesses, canaries)
    return _inverted(int(correct), int(guesses), int(canaries), 1 - probability(confidence, "confidence"))


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return ε at δ of a mechanism that is μ-GDP; infinite if δ is 0 and μ is not.

    Raises:
        UsageError: a negative μ, or a δ outside [0, 1).

    Source: Balle & Wang 2018, Theorem 8: δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ).
    """
    from scipy.optimize import brentq
    from scipy.special import log_ndtr, ndtri

    check_claim(mu, "mu")
    if not 0 <= delta < 1:
        raise UsageError("delta", delta, "is no probability", "Give a δ of at least 0 and below 1.")
    if mu == 0:
        return 0.0
    if delta == 0:
        return math.inf

    def excess(epsilon: float) -> float:
        first, second = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        return math.exp(first) - math.exp(second) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = mu * (mu / 2 - float(ndtri(delta)) + 1)
    return float(brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-12))


def _family(design: OneRunDesign, coins: int) -> list[GuessNumber]:
    """Return the tried numbers of guesses for a number of coins, with their shares of the level."""
    parts = dict[tuple[int, bool], float]()
    for share, both, part in _OF_CANDIDATES if design == "coin-flips" else _OF_PAIRS:
        r = max(1, round(share * coins))
        at = (r, both and r > 1)
        parts[at] = parts.get(at, 0.0) + part
    family = []
    for (r, both), part in parts.items():
        family.append(GuessNumber(guesses=r, both=both, share=part))
    return family


def _refuted(correct: int, guesses: int, canaries: int, mu: float, level: float) -> bool:
    """Return whether `correct` or more right guesses have a probability below `level` under every μ-GDP mechanism.

    Let P_j be the probability of j or more right guesses. In such a run a coin picked at random is guessed right with
    probability r_j and wrong with probability h_j: m r_j = j P_j + Σ_{i>j} P_i and m h_j = c' P_j - m r_j. Flipping the
    coin turns a right guess into a wrong one, so that h_j >= f(1 - r_{j+1}). The right side never falls in any P_i. So
    the least P_j follow one after the other, from P_c = level and P_i = 0 for i > c. If P_0 would have to exceed 1, the
    hypothesis is refuted. Once a step leaves P_j unchanged, all further steps do.
    """
    from scipy.special import ndtr, ndtri

    right = correct * level / canaries
    wrong = (guesses - correct) * level / canaries
    for j in range(correct - 1, -1, -1):
        if right >= 1:
            return True
        least = float(ndtr(ndtri(right) - mu))
        if least <= wrong:
            break
        right += j / (guesses - j) * (least - wrong)
        wrong = least
    return right + wrong > guesses / canaries


def _p_value(correct: int, guesses: int, canaries: int, mu: float) -> float:
    """Return the largest probability of at least as many right guesses under μ-GDP; rounded up."""
    if correct == 0:
        return 1.0
    low, high = math.log(_LEAST), 0.0
    while high - low > _STEP:
        middle = (low + high) / 2
        if _refuted(correct, guesses, canaries, mu, math.exp(middle)):
            high = middle
        else:
            low = middle
    return math.exp(high)


@lru_cache(maxsize=65536)
def _inverted(correct: int, guesses: int, canaries: int, level: float) -> float:
    """Return the largest refuted μ, rounded down; 0 if even μ = 0 is not refuted."""
    low, high = 0.0, 1.0
    while high < _MOST and _refuted(correct, guesses, canaries, high, level):
        low, high = high, 2 * high
    while high - low > _STEP:
        middle = (low + high) / 2
        if _refuted(correct, guesses, canaries, middle, level):
            low = middle
        else:
            high = middle
    return max(0.0, low - _STEP)

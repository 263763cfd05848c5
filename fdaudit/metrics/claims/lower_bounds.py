"""Lower bounds on ε from membership guesses: the empirical check of a claim (ε, δ).

A bound needs a design that supports it: only tossed coins determine what chance would do.

  * `coin-flips`: a fair coin for each of n candidates decided whether it was trained on. One model is enough (Steinke,
    Nasr & Jagielski 2023, "Privacy auditing with one (1) training run", Theorem 5.2). For records added or removed.
  * `matched-pairs`: a fair coin for each pair decided which record was trained on, and a guess names one. The same
    theorem, with pairs in place of canaries. For replaced records.
  * `independent-runs`: one candidate, or one set of candidates, in or out, and one score for each of n independent runs
    (Clopper & Pearson 1934).

Guarantees:
  * for all scores, a bound exceeds the true ε with a probability of at most 1 - confidence. The tried numbers of
    guesses form a family that only the number of candidates fixes, with Bonferroni's correction. The threshold for
    independent runs is chosen on one half of them and bounded on the other;
  * equal scores are ordered to the attack's disadvantage, so the order of the candidates reveals nothing.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.events import Relation
from fdaudit.metrics._arrays import flags, probability, vector
from fdaudit.metrics._guessed import (
    GuessNumber,
    OneRunDesign,
    check_choice,
    check_claim,
    check_counts,
    evenly,
    guesses_about_coins,
)
from fdaudit.metrics.claims.claim_test import choose, lower_bound

__all__ = [
    "Design",
    "epsilon_lower_bound",
    "epsilon_p_value",
    "guesses_needed",
    "most_contradictable",
    "one_run_epsilon",
]

Design = OneRunDesign | Literal["independent-runs"]
"""The design by which membership was decided."""

_SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
"""Tried numbers of guesses, as shares of the coins."""
_CHUNK = 4096
"""Terms of δ's correction per batch."""
_MOST_GUESSES = 2**40
"""Largest number of guesses that `guesses_needed` tries."""


def epsilon_lower_bound(
    scores: ArrayLike,
    member: ArrayLike,
    delta: float,
    confidence: float = 0.95,
    design: Design = "coin-flips",
    relation: Relation = "add-or-remove",
    *,
    pair: ArrayLike | None = None,
    guesses: int | None = None,
) -> float:
    """Return a lower bound on ε at δ, valid for all scores if the design was followed.

    Under `coin-flips` the highest scores are guessed to be members; alternatively, half of the guesses call the highest
    scores members and half call the lowest non-members. Under `matched-pairs` the higher score of a pair is guessed to
    be the member's, in the pairs with the largest differences.

    Args:
        scores: (n,), higher for "member": of candidates, or of runs.
        member: (n,) booleans: whether the candidate was trained on, or whether the run had it.
        delta: δ in [0, 1).
        confidence: confidence of the bound.
        design: the design by which membership was decided.
        relation: relation of the bound. The bound of matched pairs, for replaced records, is converted for it: a
            mechanism that is (ε, δ)-private for records added or removed is (2ε, (1 + e^ε)δ)-private for records
            replaced.
        pair: (n,) number of each candidate's pair; for `matched-pairs` only.
        guesses: number of guesses, or decided pairs, fixed before any score was seen; by default the family's shares
            are tried. Not for `independent-runs`.

    Returns:
        The bound in nats; 0 if the scores show nothing.

    Raises:
        UsageError: shapes do not match, a number is out of range, or the design does not support the relation.
    """
    values = vector(scores, "scores")
    truth = flags(member, "member", len(values))
    delta = _delta(delta)
    alpha = 1 - probability(confidence, "confidence")
    check_choice(design, (*get_args(OneRunDesign), "independent-runs"), "design")
    check_choice(relation, get_args(Relation), "relation")
    if design == "independent-runs":
        if pair is not None:
            problem = f"has no meaning under {design}"
            raise UsageError("pair", pair, problem, "Give it with design 'matched-pairs', and there only.")
        if guesses is not None:
            raise UsageError("guesses", guesses, f"has no meaning under {design}", "Leave it out.")
        p, q = values[truth], values[~truth]
        if min(len(p), len(q)) < 2:
            problem = "are too few runs with and without the candidate"
            raise UsageError("member", (len(p), len(q)), problem, "Give at least two of each.")
        # The threshold is chosen on every other run, and bounded on the rest.
        distinguisher = choose(p[::2], q[::2], delta=delta, failure=alpha)
        return lower_bound(distinguisher, p[1::2], q[1::2], delta=delta, failure=alpha)
    coin_guesses = guesses_about_coins(values, truth, design, relation, pair, guesses, _family)
    bounds = []
    for right, r, share in coin_guesses.counts:
        bounds.append(_inverted(right, r, coin_guesses.coins, delta, alpha * share, coin_guesses.halved))
    return max(bounds)


def epsilon_p_value(
    scores: ArrayLike,
    member: ArrayLike,
    epsilon: float,
    delta: float,
    design: OneRunDesign = "coin-flips",
    relation: Relation = "add-or-remove",
    *,
    pair: ArrayLike | None = None,
    guesses: int | None = None,
) -> float:
    """Return the largest probability, for an (ε, δ)-private mechanism, of at least as many right guesses.

    The claim is contradicted at every confidence below 1 minus this value, in agreement with `epsilon_lower_bound`,
    which has the same arguments. The result is corrected for the tried numbers of guesses.

    Raises:
        UsageError: as `epsilon_lower_bound`; or a negative or infinite ε.
    """
    check_claim(epsilon, "epsilon")
    delta = _delta(delta)
    coin_guesses = guesses_about_coins(scores, member, design, relation, pair, guesses, _family)
    claim = _replaced(epsilon, delta) if coin_guesses.halved else (epsilon, delta)
    p = 1.0
    for right, r, share in coin_guesses.counts:
        p = min(p, _p_value(right, r, coin_guesses.coins, *claim) / share)  # Bonferroni
    return p


def one_run_epsilon(
    correct: int, guesses: int, canaries: int, delta: float, confidence: float = 0.95
) -> float:
    """Return a lower bound on ε at δ from the number of right guesses about coins of one run.

    The number of guesses must be fixed in advance. A number chosen by success needs a correction, which
    `epsilon_lower_bound` makes.

    Args:
        correct: v: guesses that were right.
        guesses: r: guesses made, without abstentions.
        canaries: m: records that were each included by their own fair coin, guessed or not.
        delta: δ in [0, 1).
        confidence: confidence of the bound.

    Returns:
        The least ε at which this success has a probability above 1 - confidence: P[W >= v] + 2mδ max_i
        (P[W >= v - i] - P[W >= v]) / i with W ~ Binomial(r, e^ε / (1 + e^ε)); 0 if chance explains it.

    Raises:
        UsageError: not 0 <= correct <= guesses <= canaries, no guess, or a number out of range.

    Source: Steinke, Nasr & Jagielski 2023, Theorem 5.2.
    """
    check_counts(correct, guesses, canaries)
    alpha = 1 - probability(confidence, "confidence")
    return _inverted(int(correct), int(guesses), int(canaries), _delta(delta), alpha, False)


def most_contradictable(guesses: int, delta: float, confidence: float = 0.95) -> float:
    """Return the bound of a perfect attack: no claim above it can be contradicted with this many guesses.

    Args:
        guesses: number of guesses, all right.
        delta: δ.
        confidence: confidence of the bound.
    """
    return one_run_epsilon(guesses, guesses, guesses, delta, confidence)


@lru_cache(maxsize=4096)
def guesses_needed(epsilon: float, delta: float, confidence: float = 0.95) -> int | None:
    """Return how many right guesses contradict a claim (ε, δ); None if no number up to 2^40 does.

    Raises:
        UsageError: a negative or infinite ε, or a number out of range.
    """
    check_claim(epsilon, "epsilon")
    alpha, delta = 1 - probability(confidence, "confidence"), _delta(delta)

    def enough(r: int) -> bool:
        return _p_value(r, r, r, epsilon, delta) <= alpha

    low, high = 0, 1
    # The p-value falls with the number of guesses. When δ's correction dominates, it rises to a limit. After
    # `last` guesses chance would give 50 - 2 log α wrong answers: it does not fall again.
    last = (50 - 2 * math.log(alpha)) * (1 + math.exp(min(epsilon, 700.0)))
    while not enough(high):
        low, high = high, math.ceil(1.05 * high)
        if low > min(last, _MOST_GUESSES):
            return None
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def _family(design: OneRunDesign, coins: int) -> list[GuessNumber]:
    """Return the tried numbers of guesses for a number of coins, with equal shares of the level."""
    return evenly(sorted({max(1, round(share * coins)) for share in _SHARES}), design)


def _replaced(epsilon: float, delta: float) -> tuple[float, float]:
    """Return the (ε, δ) for records replaced that follows from (ε, δ) for records added or removed."""
    return 2 * epsilon, min(1.0, (1 + math.exp(min(epsilon, 700.0))) * delta)


def _p_value(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return the largest probability of at least as many right guesses under (ε, δ); it never falls as ε or δ grows.

    If 2mδ / i exceeds 1, the theorem's term is replaced by a larger one that rises with ε. The term's own share of P[W
    >= v] is negative there, and is taken at ε = 0.
    """
    from scipy.special import expit
    from scipy.stats import binom

    if correct == 0:
        return 1.0
    q, factor = float(expit(epsilon)), 2 * canaries * delta
    tail = float(binom.sf(correct - 1, guesses, q))
    least = float(binom.sf(correct - 1, guesses, 0.5))
    worst, below = tail, 0.0
    for start in range(1, correct + 1, _CHUNK) if factor > 0 else ():
        i = np.arange(start, min(start + _CHUNK, correct + 1))
        drop = below + np.cumsum(binom.pmf(correct - i, guesses, q))
        # Theorem 5.2: P[W >= v] + 2mδ max_i (P[W >= v - i] - P[W >= v]) / i, as a mean weighted by 2mδ / i.
        share = factor / i
        terms = share * (tail + drop) + (1 - share) * np.where(share > 1, least, tail)
        worst, below = max(worst, float(terms.max())), float(drop[-1])
        if worst >= 1 or (share[-1] <= 1 and worst >= tail + share[-1] * (1 - tail)):
            break
    return min(worst, 1.0)


@lru_cache(maxsize=65536)
def _inverted(correct: int, guesses: int, canaries: int, delta: float, alpha: float, halved: bool) -> float:
    """Return the least ε whose p-value exceeds α; with `halved`, the tested claim is (2ε, (1 + e^ε)δ)."""
    from scipy.optimize import brentq
    from scipy.special import betaincinv, logit

    def excess(epsilon: float) -> float:
        claim = _replaced(epsilon, delta) if halved else (epsilon, delta)
        return _p_value(correct, guesses, canaries, *claim) - alpha

    if correct == 0 or excess(0.0) > 0:
        return 0.0
    # Without δ the bound is Clopper and Pearson's for the chance of a right guess; δ only lowers it.
    pure = float(logit(betaincinv(correct, guesses - correct + 1, alpha)))
    high = pure / 2 if halved else pure
    if high <= 0:
        return 0.0
    root = high if excess(high) <= 0 else float(brentq(excess, 0.0, high, xtol=1e-9, rtol=1e-12))
    return max(0.0, root - 1e-8)  # rounding must never put it above the root


def _delta(delta: float) -> float:
    if not 0 <= delta < 1:
        raise UsageError(
            "delta", delta, "is no probability of failure", "Give a δ of at least 0 and below 1."
        )
    return float(delta)

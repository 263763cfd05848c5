"""Privacy cost of Confident-GNMax: a noisy threshold on the plurality's votes, and GNMax for the queries that pass it.

The threshold step asks for every query whether max_i n_i + N(0, σ1²) reaches T. A client moves the largest count by at
most one. The step is therefore a Gaussian release of sensitivity 1 that publishes one bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from fdaudit.errors import SpecError

from ._inputs import Floats, blocks, log_mean, order_array, scale, vote_array
from .gnmax import gnmax_rdp

__all__ = [
    "confident_gnmax_capped_rdp",
    "confident_gnmax_independent_rdp",
    "confident_gnmax_rdp",
    "threshold_rdp",
]

_ULPS = 16 * np.finfo(np.float64).eps


def confident_gnmax_independent_rdp(
    sigma_threshold: float, sigma: float, orders: ArrayLike, queries: int, cap: int | None = None
) -> Floats:
    """Return the RDP (orders,) of q queries for any votes: q α/2σ1² + min(q, cap) α/σ².

    Args:
        sigma_threshold: σ1, standard deviation of the threshold's noise, in votes.
        sigma: σ, standard deviation of GNMax's noise, in votes.
        orders: Rényi orders α > 1, (orders,).
        queries: q, the number of queries.
        cap: the most answers that are released, fixed before the votes are seen. None: every query may be answered.

    Raises:
        SpecError: σ1, σ, an order or a number is out of range.
    """
    orders, answers = order_array(orders), queries if cap is None else min(cap, queries)
    if answers < 0:
        raise SpecError("cap", cap, "is no number of answers", "Give whole numbers from 0 on.")
    threshold = orders / (2 * scale("sigma_threshold", sigma_threshold) ** 2)
    return queries * threshold + answers * orders / scale("sigma", sigma) ** 2


def threshold_rdp(votes: ArrayLike, threshold: float, sigma_threshold: float, orders: ArrayLike) -> Floats:
    """Return the data-dependent RDP (q, orders) of the threshold step of each query.

    The step publishes one bit, and its law depends on the largest count v alone. Its divergence from the neighbours'
    (v - 1 and v + 1) is computed directly, in logarithms, and rounded up. Papernot et al. 2018 bound the same figure
    by Theorem 6. As with GNMax it is the divergence of this histogram from its neighbours, and it is private.

    Guarantees:
      * never above the data-independent α/2σ1²;
      * at least D_α(M(D) || M(D')) for every neighbour D'.

    Args:
        votes: counts (q, C), whole numbers.
        threshold: T, in votes.
        sigma_threshold: σ1, standard deviation of the threshold's noise, in votes.
        orders: Rényi orders α > 1, (orders,).

    Raises:
        SpecError: votes, T, σ1 or an order is out of range.
    """
    checked, orders = vote_array(votes), order_array(orders)
    sigma = scale("sigma_threshold", sigma_threshold)
    if not np.abs(threshold) <= 2.0**53:
        raise SpecError("threshold", threshold, "is no number of votes", "Give a finite number of votes.")
    largest, which = np.unique(checked.max(1).astype(np.float64), return_inverse=True)
    rdp = np.empty((len(checked), len(orders)))
    each = np.empty((len(largest), len(orders)))
    for rows in blocks(len(largest), len(orders)):
        own = _log_bit(largest[rows], threshold, sigma)
        more = _log_bit(largest[rows] + 1, threshold, sigma)
        fewer = _log_bit(np.maximum(largest[rows] - 1, 0), threshold, sigma)
        worse = np.maximum(_bernoulli(own, more, orders), _bernoulli(own, fewer, orders))
        each[rows] = np.clip(worse, 0.0, orders / (2 * sigma**2))
    for rows in blocks(len(checked), len(orders)):
        rdp[rows] = each[which[rows]]
    return rdp


def confident_gnmax_rdp(
    votes: ArrayLike,
    threshold: float,
    sigma_threshold: float,
    sigma: float,
    orders: ArrayLike,
    answered: ArrayLike | None = None,
) -> Floats:
    """Return the data-dependent RDP (q, orders) of each query: the threshold step of all, GNMax in full if answered.

    This is not an expectation. Papernot et al. 2018 weigh GNMax by the probability of an answer, which is the mean cost
    over outcomes. A query that was answered has cost all of it.

    The set of answered queries is itself an outcome. A mask is therefore valid only under a cap on the number of
    answers, fixed before the votes are seen. It gives the cost of this outcome, as a privacy filter counts it.
    `confident_gnmax_capped_rdp` bounds every outcome under that cap. Without a cap charge all (None).

    Args:
        votes: counts (q, C), whole numbers.
        threshold: T, in votes.
        sigma_threshold: σ1, standard deviation of the threshold's noise, in votes.
        sigma: σ, standard deviation of GNMax's noise, in votes.
        orders: Rényi orders α > 1, (orders,).
        answered: mask (q,) of the answered queries. None charges GNMax for all.

    Raises:
        SpecError: an argument is out of range, or `answered` is no mask of the queries.
    """
    checked = vote_array(votes)
    rdp = threshold_rdp(checked, threshold, sigma_threshold, orders)
    mask = np.ones(len(checked), dtype=bool) if answered is None else np.asarray(answered)
    if mask.dtype != bool or mask.shape != (len(checked),):
        problem = f"is no mask of {len(checked)} queries"
        raise SpecError("answered", answered, problem, "Give a bool for each query, or None.")
    charged = np.flatnonzero(mask)
    width = max(checked.shape[1], rdp.shape[1])
    for part in blocks(len(charged), width):
        rdp[charged[part]] += gnmax_rdp(checked[charged[part]], sigma, orders)
    return rdp


def confident_gnmax_capped_rdp(
    votes: ArrayLike,
    threshold: float,
    sigma_threshold: float,
    sigma: float,
    orders: ArrayLike,
    cap: int,
) -> Floats:
    """Return the data-dependent RDP (orders,) of all queries together, for any choice of at most `cap` answers.

    The result is the threshold step of every query and, order by order, the `cap` most expensive of GNMax.

    Args:
        votes: counts (q, C), whole numbers.
        threshold: T, in votes.
        sigma_threshold: σ1, standard deviation of the threshold's noise, in votes.
        sigma: σ, standard deviation of GNMax's noise, in votes.
        orders: Rényi orders α > 1, (orders,).
        cap: the most answers that are released, fixed before the votes are seen.

    Raises:
        SpecError: an argument is out of range.
    """
    if cap < 0:
        raise SpecError("cap", cap, "is no number of answers", "Give a whole number from 0 on.")
    total: Floats = threshold_rdp(votes, threshold, sigma_threshold, orders).sum(0)
    answers = gnmax_rdp(votes, sigma, orders)
    if 0 < cap < len(answers):
        answers.partition(len(answers) - cap, axis=0)
    total += answers[len(answers) - min(cap, len(answers)) :].sum(0)
    return total


def _log_bit(largest: Floats, threshold: float, sigma: float) -> tuple[Floats, Floats]:
    """Return logarithms (n, 1) of the probabilities to reach the threshold and to miss it."""
    distance = (largest[:, None] - threshold) / sigma
    return log_ndtr(distance), log_ndtr(-distance)


def _bernoulli(p: tuple[Floats, Floats], q: tuple[Floats, Floats], orders: Floats) -> Floats:
    """Return the Rényi divergence (n, orders) of one bit from another, from log-probabilities, rounded up.

    If both bits have nearly the same law, the sum cancels. The possible error of the terms is added.
    """
    less, rounding, exponents = orders - 1, 0.0, []
    for a, b in zip(p, q, strict=True):
        z = less * (a - b)
        exponents.append(z)
        term = np.exp(np.minimum(a + z, 1.0))
        rounding = rounding + term * less * -(a + b) + (term + np.exp(a)) * np.minimum(np.abs(z), 1.0)
    return (log_mean(*p, *exponents) + _ULPS * rounding) / less

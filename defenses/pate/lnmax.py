"""Privacy cost of LNMax: Rényi divergences of the noisy plurality vote with Laplace noise.

LNMax adds Lap(1/γ) to every class's count and publishes the class of the largest sum. A client moves two counts by one:
2γ-differential privacy a query, pure. Papernot et al. 2017 account by moments α(l), which are l times the Rényi
divergence of order l + 1. The functions here return that divergence.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ._inputs import Floats, blocks, log_mean, order_array, other_tails, scale, vote_array

__all__ = ["lnmax_independent_rdp", "lnmax_log_q", "lnmax_rdp"]


def lnmax_independent_rdp(gamma: float, orders: ArrayLike) -> Floats:
    """Return the RDP (orders,) of one LNMax query for any votes: the most that 2γ-differential privacy allows.

    With ε = 2γ it is the divergence of randomised response, log(1 + (e^{(α-1)ε} - 1)(1 - e^{-αε}) / (1 + e^{-ε})) /
    (α - 1), since every pure mechanism is its post-processing (Kairouz, Oh & Viswanath 2015). It is below ε and below
    Theorem 2 of Papernot et al. 2017, α(l) ≤ 2γ² l(l + 1), which is 2γ²α.

    Args:
        gamma: γ, the inverse of the noise's scale, in votes.
        orders: Rényi orders α > 1, (orders,).

    Raises:
        SpecError: γ or an order is out of range.
    """
    orders, epsilon = order_array(orders), 2 * scale("gamma", gamma)
    up, down = (orders - 1) * epsilon, orders * epsilon
    # log(e^up - 1), log(1 - e^-down): nothing overflows, and small ε keep their digits.
    log_excess = up + np.log(-np.expm1(-up)) + np.log(-np.expm1(-down)) - np.log1p(np.exp(-epsilon))
    rdp: Floats = np.logaddexp(0.0, log_excess) / (orders - 1)
    return np.minimum(rdp, epsilon)


def lnmax_log_q(votes: ArrayLike, gamma: float) -> Floats:
    """Return the natural logarithm (q,) of a bound on the probability that another class than the plurality's wins.

    Σ_{i≠i*} (2 + γ(n_i* - n_i)) / (4 e^{γ(n_i* - n_i)}), and never above 1 - 1/C. Papernot et al. 2017, Lemma 4; a
    term is the exact probability that class i overtakes i*.

    Args:
        votes: counts (q, C), whole numbers.
        gamma: γ, the inverse of the noise's scale, in votes.

    Raises:
        SpecError: votes or γ are out of range.
    """
    checked, gamma = vote_array(votes), scale("gamma", gamma)
    return other_tails(checked, lambda lead: np.log(2 + gamma * lead) - np.log(4) - gamma * lead)


def lnmax_rdp(votes: ArrayLike, gamma: float, orders: ArrayLike) -> Floats:
    """Return the data-dependent RDP (q, orders) of each LNMax query.

    Papernot et al. 2017, Theorem 3 with q of Lemma 4: if q < 1 / (e^{2γ} + 1),
    α(l) ≤ log((1 - q) ((1 - q) / (1 - e^{2γ} q))^l + q e^{2γl}). Otherwise, or if that bound is weaker, the
    data-independent figure. RDP adds up over queries. Like GNMax's, it is the divergence of this histogram from its
    neighbours, and it is private.

    Guarantees:
      * never above the data-independent figure;
      * at least D_α(M(D) || M(D')) for every histogram D' that one client's other vote, or abstention, makes of D.

    Args:
        votes: counts (q, C), whole numbers.
        gamma: γ, the inverse of the noise's scale, in votes.
        orders: Rényi orders α > 1, (orders,).

    Raises:
        SpecError: votes, γ or an order is out of range.
    """
    log_q, independent = lnmax_log_q(votes, gamma), lnmax_independent_rdp(gamma, orders)
    orders, gamma = order_array(orders), scale("gamma", gamma)
    rdp = np.repeat(independent[None], len(log_q), axis=0)
    rdp[np.isneginf(log_q)] = 0.0
    # Nearer to the limit than this, the quotient's denominator is all rounding.
    charged = np.flatnonzero(np.isfinite(log_q) & (log_q < -np.logaddexp(0.0, 2 * gamma) - 1e-9))
    less = orders - 1
    for part in blocks(len(charged), len(orders)):
        rows = charged[part]
        log_1q = np.log1p(-np.exp(log_q[rows]))[:, None]
        quotient = log_1q - np.log1p(-np.exp(2 * gamma + log_q[rows]))[:, None]
        rivals = np.broadcast_to(2 * gamma * less, (len(rows), len(less)))
        bound = log_mean(log_1q, log_q[rows][:, None], less * quotient, rivals) / less
        rdp[rows] = np.clip(bound, 0.0, independent)
    return rdp

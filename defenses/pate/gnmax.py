"""Privacy cost of GNMax: Rényi divergences of the noisy plurality vote with Gaussian noise.

GNMax adds N(0, σ²) to every class's count and publishes the class of the largest sum. A client changes its vote or
abstains: at most two counts move by one, a step of √2 in ℓ2.

A data-dependent figure is about one histogram D. It bounds D_α(M(D) || M(D')) for every neighbour D', as the paper
defines it. The figure of D' bounds D_α(M(D') || M(D)), which may be larger. The figure is computed from
the votes and reveals information about them: it is for the auditor, unless released with its own noise (`.release`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from ._inputs import Floats, blocks, log_mean, order_array, other_tails, scale, vote_array

__all__ = ["gnmax_independent_rdp", "gnmax_log_q", "gnmax_rdp", "rdp_from_log_q"]

_WIDEST = 1e-9
"""Theorem 6's denominator must stay this far from 0; closer, its bound is useless."""


def gnmax_independent_rdp(sigma: float, orders: ArrayLike) -> Floats:
    """Return the RDP (orders,) of one GNMax query for any votes, α/σ². Papernot et al. 2018, Proposition 8.

    Raises:
        SpecError: σ or an order is out of range.
    """
    return order_array(orders) / scale("sigma", sigma) ** 2


def gnmax_log_q(votes: ArrayLike, sigma: float) -> Floats:
    """Return the natural logarithm (q,) of a bound q̃ on the probability that another class than the plurality's wins.

    q̃ = ½ Σ_{i≠i*} erfc((n_i* - n_i) / 2σ), and never above 1 - 1/C, which ties reach. Papernot et al. 2018,
    Proposition 7.

    Guarantees:
      * never below the exact probability, up to rounding;
      * only the lead of the first over the others matters: adding a constant to a row changes nothing.

    Args:
        votes: counts (q, C), whole numbers.
        sigma: σ, standard deviation of the noise, in votes.

    Raises:
        SpecError: votes or σ are out of range.
    """
    checked, width = vote_array(votes), np.sqrt(2) * scale("sigma", sigma)
    # ½ erfc(x / 2σ) is the normal tail beyond x / (√2 σ).
    return other_tails(checked, lambda lead: log_ndtr(-lead / width))


def gnmax_rdp(votes: ArrayLike, sigma: float, orders: ArrayLike) -> Floats:
    """Return the data-dependent RDP (q, orders) of each GNMax query.

    Papernot et al. 2018, Theorem 6 with q̃ of Proposition 7 and the orders μ1, μ2 of Proposition 10. If its
    conditions fail or it is weaker, α/σ² of Proposition 8. RDP adds up over queries: `gnmax_rdp(…).sum(0)`.

    Guarantees:
      * never above the data-independent α/σ²;
      * at least D_α(M(D) || M(D')) for every histogram D' that one client's other vote, or abstention, makes of D;
      * a query's row depends on its own votes alone.

    The figure itself is private: it is a function of the votes, for the auditor only.

    Args:
        votes: counts (q, C), whole numbers.
        sigma: σ, standard deviation of the noise, in votes.
        orders: Rényi orders α > 1, (orders,).

    Raises:
        SpecError: votes, σ or an order is out of range.
    """
    log_q, sigma, orders = gnmax_log_q(votes, sigma), scale("sigma", sigma), order_array(orders)
    rdp = np.empty((len(log_q), len(orders)))
    for rows in blocks(len(log_q), len(orders)):
        rdp[rows] = rdp_from_log_q(log_q[rows], sigma, orders)
    return rdp


def rdp_from_log_q(log_q: Floats, sigma: float, orders: Floats) -> Floats:
    """Return Theorem 6 for GNMax from log q̃ (n,), capped by α/σ²: (n, orders)."""
    independent = orders / sigma**2
    rdp = np.repeat(independent[None], len(log_q), axis=0)
    rdp[np.isneginf(log_q)] = 0.0  # one outcome for any votes
    finite = np.isfinite(log_q)
    # Proposition 10. A larger μ1 would allow orders beyond it, but then B alone costs the data-independent figure.
    mu2 = sigma * np.sqrt(-np.where(finite, log_q, 0.0))
    rows = np.flatnonzero(finite & (mu2 > 1 + _WIDEST))
    log_q, mu2 = log_q[rows], mu2[rows]
    mu1 = mu2 + 1
    eps1, eps2 = mu1 / sigma**2, mu2 / sigma**2
    inner = (log_q + eps2) * (1 - 1 / mu2)
    limit = (mu2 - 1) * eps2 - mu2 * (np.log1p(1 / mu2) - np.log1p(-1 / mu2))
    holds = (log_q <= limit) & (inner < -_WIDEST)
    rows, log_q, mu1, mu2, eps1, inner = (x[holds] for x in (rows, log_q, mu1, mu2, eps1, inner))
    log_1q = np.log1p(-np.exp(log_q))
    log_a = log_1q - np.log1p(-np.exp(inner))
    log_b = eps1 - log_q / mu2
    less = orders - 1
    total = log_mean(log_1q[:, None], log_q[:, None], less * log_a[:, None], less * log_b[:, None])
    bound = np.where(orders <= mu1[:, None], total / less, np.inf)
    rdp[rows] = np.clip(bound, 0.0, independent)
    return rdp

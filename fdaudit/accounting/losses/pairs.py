"""Dominating pairs: the privacy-loss distribution of one run of each mechanism, rounded up to a grid.

A pair (P, Q) dominates a mechanism if no event distinguishes two neighbours better than it distinguishes P from Q:
H_a(M(D), M(D')) <= H_a(P, Q) for every a >= 0, where H_a(P, Q) is the integral of the positive part of P - aQ.

Guarantees:
  * each distribution dominates its mechanism, and rounding to the grid only raises δ(ε).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdaudit.accounting.losses.tails import FAR
from fdaudit.events import Relation

__all__ = [
    "FARTHEST",
    "UNLIKE",
    "concentrated_losses",
    "discrete_losses",
    "drawn_losses",
    "grouped_losses",
    "sampled_losses",
]

UNLIKE = 1e-15
"""Largest total probability that discrete Gaussians differ from their replacements."""

FARTHEST = 10.0
"""Standard deviations beyond which a Gaussian has a probability below 1e-22."""


@lru_cache(maxsize=16)
def sampled_losses(noise: float, rate: float, relation: Relation, grid: float) -> Any:
    """Return the loss distribution of one step of a sampled Gaussian; this takes most of the time of an ε.

    A replaced record moves the sum from one side of the others' sum to the other: the pair is (1-q)N(0) + qN(1) and
    (1-q)N(0) + qN(-1) (Lebeda, Regehr, Kamath & Steinke 2024; `dp_accounting` has the same).
    """
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    neighbours = {
        "add-or-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace-one": NeighboringRelation.REPLACE_ONE,
    }
    return from_gaussian_mechanism(
        noise,
        value_discretization_interval=grid,
        sampling_prob=rate,
        neighboring_relation=neighbours[relation],
    )


@lru_cache(maxsize=16)
def grouped_losses(noise: float, rate: float, size: int, grid: float) -> Any:
    """Return the loss distribution of one step in which a binomial number of a group's records takes part.

    The pair is the mixture Σ_k P[Bin(m, q) = k] N(k, σ²) and N(0, σ²) (Ganesh 2024, "Tight Group-Level DP Guarantees
    for DP-SGD with Sampling via Mixture of Gaussians Mechanisms"). Its loss rises with the released value x, so the
    event that tells most is a threshold on x: δ(ε) is the difference of two tails there.
    """
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from scipy.special import logsumexp, ndtr
    from scipy.stats import binom

    k = np.arange(size + 1)[:, None]
    chances = binom.pmf(k, size, rate)
    log_chances = binom.logpmf(k, size, rate)

    def loss(x: NDArray[np.float64]) -> NDArray[np.float64]:
        log_ratio: NDArray[np.float64] = logsumexp(log_chances + k * (2 * x - k) / (2 * noise**2), axis=0)
        return log_ratio

    low, high = -FARTHEST * noise, size + FARTHEST * noise
    top = math.ceil(max(float(loss(np.array([high]))[0]), -float(log_chances[0, 0])) / grid)
    eps = np.arange(-top, top + 1, dtype=np.float64) * np.float64(grid)
    # Bisection for the points x at which the loss, which rises, is ε.
    x, above = np.full(len(eps), low), np.full(len(eps), high)
    for _ in range(60):
        middle = (x + above) / 2
        beyond = loss(middle) > eps
        x, above = np.where(beyond, x, middle), np.where(beyond, middle, above)
    removed = (chances * ndtr((k - x) / noise)).sum(0) - np.exp(eps) * ndtr(-x / noise)
    other = x[::-1]  # the threshold for a loss of -ε
    added = ndtr(other / noise) - np.exp(eps) * (chances * ndtr((other - k) / noise)).sum(0)
    least = np.maximum(-np.expm1(np.minimum(eps, 0.0)), 0.0)  # of the event that is always true
    remove = create_pmf_pessimistic_connect_dots_fixed_gap(grid, -top, top, np.maximum(removed, least))
    add = create_pmf_pessimistic_connect_dots_fixed_gap(grid, -top, top, np.maximum(added, least))
    return PrivacyLossDistribution(remove, add)


@lru_cache(maxsize=16)
def discrete_losses(scale: float, grid: float) -> Any:
    """Return the loss distribution of a discrete Gaussian on one whole number that changes by one."""
    from dp_accounting.pld.privacy_loss_distribution import from_discrete_gaussian_mechanism

    return from_discrete_gaussian_mechanism(scale, value_discretization_interval=grid, use_connect_dots=True)


@lru_cache(maxsize=16)
def drawn_losses(noise: float, rate: float, grid: float) -> Any:
    """Return the loss distribution of a step that draws k of K clients, one of whom has its whole data replaced.

    For k = 1 and q = 1/K, a step's distributions are P = (1-q)R + qN(u) and Q = (1-q)R + qN(v). R mixes the other
    clients' Gaussians. All means are within one sensitivity of u and of v. For a >= 1 and b = 1 + (a-1)/q advanced
    joint convexity gives H_a(P, Q) = q H_b(N(u), (1-a/b)R + (a/b)N(v)) (Balle, Barthe & Gaboardi 2018, Theorem 2). H is
    convex in its second argument, so this is at most q H_b(N(Δ), N(0)) = H_a((1-q)N(0) + qN(Δ), N(0)). For a < 1
    H_a(P, Q) = 1 - a + a H_{1/a}(Q, P), and the same bound holds for the second term. The two bounds together make
    a profile, which some pair has (Zhu, Dong & Wang 2022, Proposition 10 and Theorem 11). The pairs of Poisson
    sampling are not used: an adversary may place the others near u at one step and near v at the next, and no
    proof covers that (Lebeda, Regehr, Kamath & Steinke 2024).

    For k > 1 let S be k - 1 of the others, drawn at random, and j one of the rest. With q = k/K a step releases the sum
    over S and the client, and otherwise the sum over S and j, which is a random set of k others. Given S, both are as
    above, with means that S shifts alike. Divergences are convex, so the mixture over S keeps the bound.
    """
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    removed = GaussianPrivacyLoss(noise, sampling_prob=rate, adjacency_type=AdjacencyType.REMOVE)
    added = GaussianPrivacyLoss(noise, sampling_prob=rate, adjacency_type=AdjacencyType.ADD)
    top = math.ceil(removed.connect_dots_bounds().epsilon_upper / grid)
    eps = np.arange(-top, top + 1) * grid
    deltas = np.where(
        eps >= 0,
        removed.get_delta_for_epsilon(np.maximum(eps, 0.0)),
        added.get_delta_for_epsilon(np.minimum(eps, 0.0)),
    )
    return PrivacyLossDistribution(create_pmf_pessimistic_connect_dots_fixed_gap(grid, -top, top, deltas))


def concentrated_losses(rho: float, grid: float) -> Any:
    """Return a loss distribution that dominates every mechanism of ρ-zero-concentrated DP.

    δ(ε) is at most the least over orders α of exp((α-1)(αρ - ε)) (1 - 1/α)^α / (α-1) (Canonne, Kamath & Steinke 2020,
    Proposition 12), and 1 - a + aδ(-ε) where a = e^ε < 1. A profile is convex in a, so the convex hull of these bounds
    from below is a bound too.
    """
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    far = min(rho + 2 * math.sqrt(rho * math.log(1 / UNLIKE)), FAR)
    cells = np.unique(np.ceil(np.linspace(0, far, 1000) / grid)).astype(np.int64)
    eps = cells * grid
    orders = 1 + np.geomspace(1e-3, 1e5, 400)[:, None]
    bounds = (orders - 1) * (orders * rho - eps) + orders * np.log1p(-1 / orders) - np.log(orders - 1)
    above = np.minimum(np.exp(np.minimum(bounds.min(0), 0.0)), 1.0)
    below = -np.expm1(-eps[:0:-1]) + np.exp(-eps[:0:-1]) * above[:0:-1]
    places, deltas = np.concatenate([-cells[:0:-1], cells]), np.concatenate([below, above])
    x, corners = np.exp(places * grid), list[int]()
    for i in range(len(x)):
        while len(corners) > 1:
            a, b = corners[-2:]
            if (deltas[b] - deltas[a]) * (x[i] - x[a]) < (deltas[i] - deltas[a]) * (x[b] - x[a]):
                break
            corners.pop()
        corners.append(i)
    return PrivacyLossDistribution(
        create_pmf_pessimistic_connect_dots(grid, places[corners], deltas[corners])
    )

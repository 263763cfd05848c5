"""Privacy-loss distributions: a dominating pair for each mechanism, and their convolution.

A pair (P, Q) dominates a mechanism if no event distinguishes two neighbours better than it distinguishes P from Q:
H_a(M(D), M(D')) <= H_a(P, Q) for every a >= 0, where H_a(P, Q) is the integral of the positive part of P - aQ. An
adaptive composition is dominated by the product of the pairs (Zhu, Dong & Wang 2022, Theorem 10).

Guarantees:
  * every charge has a dominating pair, and its rounding to the grid only raises δ(ε);
  * Gaussian releases are merged into one, for any number of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdaudit.events import (
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Mechanism,
    PureDP,
    SampledGaussian,
)

__all__ = ["ROUNDING", "Charge", "Charges", "Drawn", "at_delta", "losses", "pure_each"]

ROUNDING = 1e-11
"""δ kept back for the rounding errors of the Fourier transforms; those measured stay below 1e-13."""

_GRID, _FINE_GRID, _MANY = 1e-4, 1e-5, 10_000
"""Cell of the grid, cell for large compositions, and the number of runs from which it is used."""

_UNLIKE = 1e-15
"""Largest total probability that discrete Gaussians differ from their replacements."""

_FAR = 600.0
"""Largest loss with a finite exponential, with room for products."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """`steps` Gaussian releases, each by a client drawn at random from `clients`; the draw stays secret.

    The draws are fresh and uniform. Every client releases by the same rule, so the values of any two clients differ by
    at most the sensitivity: a clip of half the sensitivity bounds all of them.
    """

    gaussian: Gaussian
    clients: int
    steps: int


Charge = Mechanism | Drawn
Charges = Mapping[Charge, int]
"""Mechanisms, and how often each is charged."""


@dataclass
class _Runs:
    """Charges grouped by the pair that dominates one run."""

    ratios: list[float] = field(default_factory=list)
    """Sensitivity over noise of Gaussians, their counts included."""
    sampled: Counter[tuple[float, float]] = field(default_factory=Counter)
    """By noise over sensitivity and rate of Poisson sampling."""
    drawn: Counter[tuple[float, float]] = field(default_factory=Counter)
    """By noise over sensitivity and probability of being drawn."""
    pure: Counter[float] = field(default_factory=Counter)
    """By pure ε."""
    concentrated: float = 0.0
    """ρ of zero-concentrated DP, added up."""
    unlike: float = 0.0
    """Probability that a replacement differs from the original."""


def pure_each(charge: Charge) -> float:
    """Return the pure ε of one run, or infinity if it has none."""
    if isinstance(charge, PureDP):
        return charge.epsilon
    if isinstance(charge, Laplace | DiscreteLaplace):
        return charge.sensitivity / charge.scale
    return math.inf


def losses(charges: Charges, coarser: float = 1) -> Any:
    """Return the composed privacy-loss distribution, a `dp_accounting` object with losses rounded up to the grid.

    A change of data moves many values of a Laplace release. No proof is given here that one value that moves by the
    same total dominates them. So the release counts as randomised response of its pure ε, which dominates every
    mechanism of that ε.

    Args:
        charges: mechanisms, with how often each is charged.
        coarser: factor by which the grid is widened.
    """
    from dp_accounting.pld.common import DifferentialPrivacyParameters
    from dp_accounting.pld.privacy_loss_distribution import (
        from_gaussian_mechanism,
        from_privacy_parameters,
        identity,
    )

    runs = _sorted(charges)
    many = sum(runs.pure.values()) + sum(runs.sampled.values()) + sum(runs.drawn.values())
    grid = coarser * (_GRID if many <= _MANY else _FINE_GRID)
    total = identity(value_discretization_interval=grid)
    if ratio := math.hypot(*runs.ratios):
        # Gaussians add up exactly; composing their grids would round each of them up.
        total = total.compose(from_gaussian_mechanism(1 / ratio, value_discretization_interval=grid))
    for (noise, rate), n in runs.sampled.items():
        total = total.compose(_sampled_losses(noise, rate, grid).self_compose(n))
    for (noise, rate), n in runs.drawn.items():
        total = total.compose(_drawn_losses(noise, rate, grid).self_compose(n))
    if runs.concentrated:
        total = total.compose(_concentrated_losses(runs.concentrated, grid))
    stated = [(DifferentialPrivacyParameters(eps, 0.0), n) for eps, n in runs.pure.items()]
    if runs.unlike:
        stated.append((DifferentialPrivacyParameters(0.0, runs.unlike), 1))
    for parameters, n in stated:
        one = from_privacy_parameters(parameters, value_discretization_interval=grid)
        total = total.compose(one.self_compose(n))
    return total


def at_delta(distribution: Any, delta: float) -> float:
    """Return ε at δ of a distribution from `losses`; infinite if δ is too small for its arithmetic."""
    usable = delta - ROUNDING
    return float(distribution.get_epsilon_for_delta(usable)) if usable > 0 else math.inf


def _sorted(charges: Charges) -> _Runs:
    runs, whole = _Runs(), Counter[DiscreteGaussian]()
    for charge, n in charges.items():
        if isinstance(charge, Drawn):
            g = charge.gaussian
            noise = g.scale / (g.sensitivity * math.sqrt(g.count))
            if charge.clients == 1:
                runs.ratios.append(math.sqrt(n * charge.steps) / noise)
            else:
                runs.drawn[noise, 1 / charge.clients] += n * charge.steps
        elif isinstance(charge, DiscreteGaussian):
            whole[charge] += n * charge.count
        elif isinstance(charge, SampledGaussian) and charge.sample_rate < 1:
            runs.sampled[charge.scale / charge.sensitivity, charge.sample_rate] += n * charge.count
        elif isinstance(charge, Gaussian | SampledGaussian):
            runs.ratios.append(math.sqrt(n * charge.count) * charge.sensitivity / charge.scale)
        else:
            runs.pure[pure_each(charge)] += n * charge.count
    _add_whole(runs, whole)
    return runs


def _add_whole(runs: _Runs, whole: Mapping[DiscreteGaussian, int]) -> None:
    """Replace discrete Gaussians by Gaussians with a little less noise.

    Let x be N(μ, σ² - s²) with a whole μ, and let y be a whole number drawn with probability in proportion to exp(-(y -
    x)²/2s²). Write e(t) = 2 Σ_{n>=1} exp(-2π²n²t²). By Poisson's summation formula Σ_j N(j - x; 0, s²) is at least 1 -
    e(s), so that P[y = k] <= N(k; μ, σ²) / (1 - e(s)). A discrete Gaussian of parameter σ around μ has probability at
    least N(k; μ, σ²) / (1 + e(σ)) at k. It therefore equals y except for a probability of e(s) + e(σ), and y is
    computed from x. Whole numbers of ℓ2 sensitivity Δ change in at most Δ² places; the other places reveal nothing. So
    a release is computed from the Gaussian one of variance σ² - s², except for a probability of Δ² (e(s) + e(σ)), in
    which the release may reveal everything. Smaller noise is counted by zero-concentrated DP (Canonne, Kamath & Steinke
    2020, Theorem 4).
    """
    places = math.fsum(n * math.ceil(c.sensitivity**2) for c, n in whole.items())
    less = math.log(5 * max(places, 1.0) / _UNLIKE) / (
        2 * math.pi**2
    )  # s²; 5 exceeds 2 for each of two sums of e
    for charge, n in whole.items():
        if charge.scale**2 >= 2 * less:
            noise = math.sqrt(charge.scale**2 - less)
            runs.ratios.append(math.sqrt(n) * charge.sensitivity / noise)
            runs.unlike = _UNLIKE
        else:
            runs.concentrated += n * (charge.sensitivity / charge.scale) ** 2 / 2


@lru_cache(maxsize=16)
def _sampled_losses(noise: float, rate: float, grid: float) -> Any:
    """Return the loss distribution of one step of a sampled Gaussian; this takes most of the time of an ε."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    return from_gaussian_mechanism(noise, value_discretization_interval=grid, sampling_prob=rate)


@lru_cache(maxsize=16)
def _drawn_losses(noise: float, rate: float, grid: float) -> Any:
    """Return the loss distribution of a step that draws one of many clients, whose whole data are replaced.

    With q = 1/K, a step's distributions are P = (1-q)R + qN(u) and Q = (1-q)R + qN(v). R mixes the other clients'
    Gaussians. All means are within one sensitivity of u and of v. For a >= 1 and b = 1 + (a-1)/q advanced joint
    convexity gives H_a(P, Q) = q H_b(N(u), (1-a/b)R + (a/b)N(v)) (Balle, Barthe & Gaboardi 2018, Theorem 2). H is
    convex in its second argument, so this is at most q H_b(N(Δ), N(0)) = H_a((1-q)N(0) + qN(Δ), N(0)). For a < 1
    H_a(P, Q) = 1 - a + a H_{1/a}(Q, P), and the same bound holds for the second term. The two bounds together make
    a profile, which some pair has (Zhu, Dong & Wang 2022, Proposition 10 and Theorem 11). The pairs of Poisson
    sampling are not used: an adversary may place the others near u at one step and near v at the next, and no
    proof covers that (Lebeda, Regehr, Kamath & Steinke 2024).
    """
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    removed, added = (
        GaussianPrivacyLoss(noise, sampling_prob=rate, adjacency_type=kind)
        for kind in (AdjacencyType.REMOVE, AdjacencyType.ADD)
    )
    top = math.ceil(removed.connect_dots_bounds().epsilon_upper / grid)
    eps = np.arange(-top, top + 1) * grid
    deltas = np.where(
        eps >= 0,
        removed.get_delta_for_epsilon(np.maximum(eps, 0.0)),
        added.get_delta_for_epsilon(np.minimum(eps, 0.0)),
    )
    return PrivacyLossDistribution(create_pmf_pessimistic_connect_dots_fixed_gap(grid, -top, top, deltas))


def _concentrated_losses(rho: float, grid: float) -> Any:
    """Return a loss distribution that dominates every mechanism of ρ-zero-concentrated DP.

    δ(ε) is at most the least over orders α of exp((α-1)(αρ - ε)) (1 - 1/α)^α / (α-1) (Canonne, Kamath & Steinke 2020,
    Proposition 12), and 1 - a + aδ(-ε) where a = e^ε < 1. A profile is convex in a, so the convex hull of these bounds
    from below is a bound too.
    """
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    far = min(rho + 2 * math.sqrt(rho * math.log(1 / _UNLIKE)), _FAR)
    cells = np.unique(np.ceil(np.linspace(0, far, 1000) / grid)).astype(np.int64)
    eps = cells * grid
    orders = 1 + np.geomspace(1e-3, 1e5, 400)[:, None]
    bounds = (orders - 1) * (orders * rho - eps) + orders * np.log1p(-1 / orders) - np.log(orders - 1)
    above = np.minimum(np.exp(np.minimum(bounds.min(0), 0.0)), 1.0)
    below = -np.expm1(-eps[:0:-1]) + np.exp(-eps[:0:-1]) * above[:0:-1]
    places, deltas = np.concatenate([-cells[:0:-1], cells]), np.concatenate([below, above])
    kept = _hull(np.exp(places * grid), deltas)
    return PrivacyLossDistribution(create_pmf_pessimistic_connect_dots(grid, places[kept], deltas[kept]))


def _hull(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[int]:
    """Return the indices of the points (n,) on the lower convex hull; x is ascending."""
    kept: list[int] = []
    for i in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2:]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(i)
    return kept

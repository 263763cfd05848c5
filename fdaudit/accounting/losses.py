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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdaudit.accounting.tails import FAR, Loss, tail
from fdaudit.events import (
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Mechanism,
    PureDP,
    Relation,
    SampledGaussian,
)

__all__ = [
    "ROUNDING",
    "TINY",
    "Charge",
    "Charges",
    "Drawn",
    "Grouped",
    "Selected",
    "at_delta",
    "epsilon_by_losses",
    "losses",
    "pure_each",
    "tail_epsilons",
]

ROUNDING = 1e-11
"""δ kept back for the rounding errors of the Fourier transforms; those measured stay below 1e-13."""

_GRID, _FINE_GRID, _MANY = 1e-4, 1e-5, 10_000
"""Cell of the grid, cell for large compositions, and the number of runs from which it is used."""

_CELLS_OF_A_RUN, _MOST_CELLS_OF_A_RUN, _MOST_CELLS = 16, 2**20, 2**22
"""Cells in the standard deviation of a quiet run's loss, most cells of a run's loss, and most of a composed loss."""

TINY, _TAIL_ERROR = 1e-9, 1e-6
"""δ from which on tails are composed after tilting, and the part of δ kept back for rounding errors there."""

_UNLIKE = 1e-15
"""Largest total probability that discrete Gaussians differ from their replacements."""

_ONE_BY_ONE, _WHOLE = 4.0, 1e-9
"""Square of the sensitivity below which a whole number changes by one at most; and the rounding of such squares."""

_TAIL = 10.0
"""Standard deviations beyond which a Gaussian has a probability below 1e-22."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """`steps` Gaussian releases, each by a client drawn at random from `clients`; the draw stays secret.

    The draws are fresh and uniform. Every client releases by the same rule, so the values of any two clients differ by
    at most the sensitivity: a clip of half the sensitivity bounds all of them.
    """

    gaussian: Gaussian
    clients: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """Sums over Poisson samples of records, `size` of which are added or removed together."""

    event: SampledGaussian
    size: int

    @property
    def count(self) -> int:
        """Return the number of sums."""
        return self.event.count

    @property
    def loudest(self) -> SampledGaussian:
        """Return a mechanism of one record that dominates this one: the whole group takes part if one of it does.

        A shift of a mixture's Gaussians to larger means only makes the pair easier to tell apart (Choquette-Choo,
        Ganesh, Steinke & Thakurta 2024).
        """
        rate = -math.expm1(self.size * math.log1p(-self.event.sample_rate))
        return replace(self.event, sample_rate=rate, sensitivity=self.size * self.event.sensitivity)


@dataclass(frozen=True, kw_only=True)
class Selected:
    """The best of several runs with the same charges; their number is geometric with mean `mean`, and secret."""

    charges: tuple[tuple[Mechanism | Drawn | Grouped, int], ...]
    mean: float


Charge = Mechanism | Drawn | Grouped | Selected
Charges = Mapping[Charge, int]
"""Mechanisms, and how often each is charged."""


@dataclass
class _Runs:
    """Charges grouped by the pair that dominates one run."""

    ratios: list[float] = field(default_factory=list)
    """Sensitivity over noise of Gaussians, their counts included."""
    sampled: Counter[tuple[float, float, Relation]] = field(default_factory=Counter)
    """By noise over sensitivity, rate of Poisson sampling, and relation."""
    grouped: Counter[tuple[float, float, int]] = field(default_factory=Counter)
    """By noise over sensitivity, rate of Poisson sampling, and number of records that change together."""
    discrete: Counter[float] = field(default_factory=Counter)
    """By scale of discrete Gaussians on one whole number that changes by one."""
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
    from dp_accounting.pld.privacy_loss_distribution import identity

    grid, factors = _factors(charges, coarser)
    total = identity(value_discretization_interval=grid)
    for one, n in factors:
        total = total.compose(one if n == 1 else one.self_compose(n))
    return total


def _factors(charges: Charges, coarser: float) -> tuple[float, list[tuple[Any, int]]]:
    """Return the grid, and the loss distribution of each kind of run with the number of its runs."""
    from dp_accounting.pld.common import DifferentialPrivacyParameters
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism, from_privacy_parameters

    runs = _sorted(charges)
    grid = _cell(runs, coarser)
    found = list[tuple[Any, int]]()
    if ratio := math.hypot(*runs.ratios):
        # Gaussians add up exactly; composing their grids would round each of them up.
        found.append((from_gaussian_mechanism(1 / ratio, value_discretization_interval=grid), 1))
    found += [(_sampled_losses(*run, grid), n) for run, n in runs.sampled.items()]
    found += [(_grouped_losses(*run, grid), n) for run, n in runs.grouped.items()]
    found += [(_drawn_losses(*run, grid), n) for run, n in runs.drawn.items()]
    found += [(_discrete_losses(scale, grid), n) for scale, n in runs.discrete.items()]
    if runs.concentrated:
        found.append((_concentrated_losses(runs.concentrated, grid), 1))
    stated = [(DifferentialPrivacyParameters(eps, 0.0), n) for eps, n in runs.pure.items()]
    if runs.unlike:
        stated.append((DifferentialPrivacyParameters(0.0, runs.unlike), 1))
    for parameters, n in stated:
        found.append((from_privacy_parameters(parameters, value_discretization_interval=grid), n))
    return grid, found


def _cell(runs: _Runs, coarser: float) -> float:
    """Return the width of the grid's cells: small beside the losses of every run, if there is room for so many cells.

    Rounding adds about a quarter of a squared cell to the variance of each run's loss, so many quiet runs need small
    cells.
    """
    kinds = (runs.sampled, runs.grouped, runs.drawn)
    counts = [n for kind in (runs.pure, *kinds) for n in kind.values()]
    cell = coarser * (_GRID if sum(counts) <= _MANY else _FINE_GRID)
    sampled = [(noise, rate, n) for kind in kinds for (noise, rate, *_), n in kind.items()]
    quiet = [(rate * math.sqrt(math.expm1(min(noise**-2, FAR))), n) for noise, rate, n in sampled]
    if not quiet:
        return cell
    # A run's largest loss, where the Gaussian's tail has a probability of 1e-22.
    loudest = max(
        float(np.logaddexp(0.0, math.log(rate) + (_TAIL + 0.5 / noise) / noise)) for noise, rate, _ in sampled
    )
    spread = math.hypot(*runs.ratios, *(typical * math.sqrt(n) for typical, n in quiet))
    widest = 20 * spread + spread**2 + math.fsum(eps * n for eps, n in runs.pure.items())
    least = min(typical for typical, _ in quiet) / _CELLS_OF_A_RUN
    needed = max(least, widest / _MOST_CELLS, loudest / _MOST_CELLS_OF_A_RUN)
    # Powers of two of one width, so that steps are used again.
    return cell * min(1.0, 2.0 ** math.floor(math.log2(needed / _GRID)) * _GRID / cell)


def epsilon_by_losses(charges: Charges, delta: float, coarser: float = 1) -> float:
    """Return ε at δ by the composed privacy-loss distribution; infinite if its infinite loss alone is as likely as δ.

    Args:
        charges: mechanisms, with how often each is charged.
        delta: δ in (0, 1).
        coarser: factor by which the grid is widened.
    """
    if delta > TINY:
        return at_delta(losses(charges, coarser), delta)
    return float(tail_epsilons(charges, np.array([delta]), coarser)[0])


def tail_epsilons(charges: Charges, deltas: NDArray[np.float64], coarser: float = 1) -> NDArray[np.float64]:
    """Return ε (n,) at tiny δ (n,), for which the rounding errors of `losses` would be too large.

    Args:
        charges: mechanisms, with how often each is charged.
        deltas: (n,) in (0, `TINY`].
        coarser: factor by which the grid is widened.
    """
    grid, factors = _factors(charges, coarser)
    sides = [[(Loss.of(one._pmf_remove), n) for one, n in factors]]
    if not all(one._symmetric for one, _ in factors):
        sides.append([(Loss.of(one._pmf_add), n) for one, n in factors])
    found = np.zeros(len(deltas))
    decades = np.floor(np.log10(deltas))
    for decade in np.unique(decades):
        at = decades == decade
        for side in sides:
            found[at] = np.maximum(found[at], tail(side, grid, deltas[at] * (1 - _TAIL_ERROR)))
    return found


def at_delta(distribution: Any, delta: float) -> float:
    """Return ε at δ of a distribution from `losses`; infinite if δ is too small for its arithmetic."""
    usable = delta - ROUNDING
    return float(distribution.get_epsilon_for_delta(usable)) if usable > 0 else math.inf


def _sorted(charges: Charges) -> _Runs:
    runs, whole = _Runs(), Counter[DiscreteGaussian]()
    for charge, n in charges.items():
        if isinstance(charge, Selected):
            raise TypeError("losses: the best of several runs has a Rényi curve, and no loss distribution")
        if isinstance(charge, Drawn):
            g = charge.gaussian
            noise = g.scale / (g.sensitivity * math.sqrt(g.count))
            if charge.clients == 1:
                runs.ratios.append(math.sqrt(n * charge.steps) / noise)
            else:
                runs.drawn[noise, 1 / charge.clients] += n * charge.steps
        elif isinstance(charge, DiscreteGaussian):
            whole[charge] += n * charge.count
        elif isinstance(charge, Grouped):
            noise, rate = charge.event.scale / charge.event.sensitivity, charge.event.sample_rate
            runs.grouped[noise, rate, charge.size] += n * charge.count
        elif isinstance(charge, SampledGaussian) and charge.sample_rate < 1:
            noise = charge.scale / charge.sensitivity
            runs.sampled[noise, charge.sample_rate, charge.relation] += n * charge.count
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
    which the release may reveal everything.

    Smaller noise on values of Δ² < 4 is counted exactly: at most Δ² places change, each by one. Otherwise it is counted
    by zero-concentrated DP (Canonne, Kamath & Steinke 2020, Theorem 4).
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
        elif charge.sensitivity**2 < _ONE_BY_ONE:
            runs.discrete[charge.scale] += n * math.floor(charge.sensitivity**2 + _WHOLE)
        else:
            runs.concentrated += n * (charge.sensitivity / charge.scale) ** 2 / 2


@lru_cache(maxsize=16)
def _sampled_losses(noise: float, rate: float, relation: Relation, grid: float) -> Any:
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
def _grouped_losses(noise: float, rate: float, size: int, grid: float) -> Any:
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
        found: NDArray[np.float64] = logsumexp(log_chances + k * (2 * x - k) / (2 * noise**2), axis=0)
        return found

    low, high = -_TAIL * noise, size + _TAIL * noise
    top = math.ceil(max(float(loss(np.array([high]))[0]), -float(log_chances[0, 0])) / grid)
    eps = np.arange(-top, top + 1, dtype=np.float64) * np.float64(grid)
    x = _inverse(loss, np.asarray(eps, dtype=np.float64), low, high)
    removed = (chances * ndtr((k - x) / noise)).sum(0) - np.exp(eps) * ndtr(-x / noise)
    other = x[::-1]  # the threshold for a loss of -ε
    added = ndtr(other / noise) - np.exp(eps) * (chances * ndtr((other - k) / noise)).sum(0)
    least = np.maximum(-np.expm1(np.minimum(eps, 0.0)), 0.0)  # of the event that is always true
    sides = (np.maximum(deltas, least) for deltas in (removed, added))
    return PrivacyLossDistribution(
        *(create_pmf_pessimistic_connect_dots_fixed_gap(grid, -top, top, deltas) for deltas in sides)
    )


def _inverse(
    function: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    values: NDArray[np.float64],
    low: float,
    high: float,
) -> NDArray[np.float64]:
    """Return the points (n,) between two bounds at which a rising function has these values (n,), by bisection."""
    below, above = np.full(len(values), low), np.full(len(values), high)
    for _ in range(60):
        middle = (below + above) / 2
        beyond = function(middle) > values
        below, above = np.where(beyond, below, middle), np.where(beyond, middle, above)
    return below


@lru_cache(maxsize=16)
def _discrete_losses(scale: float, grid: float) -> Any:
    """Return the loss distribution of a discrete Gaussian on one whole number that changes by one."""
    from dp_accounting.pld.privacy_loss_distribution import from_discrete_gaussian_mechanism

    return from_discrete_gaussian_mechanism(scale, value_discretization_interval=grid, use_connect_dots=True)


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

    far = min(rho + 2 * math.sqrt(rho * math.log(1 / _UNLIKE)), FAR)
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

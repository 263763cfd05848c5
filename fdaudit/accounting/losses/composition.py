"""Composition of privacy-loss distributions, and ε at a δ.

An adaptive composition is dominated by the product of the mechanisms' dominating pairs (Zhu, Dong & Wang 2022,
Theorem 10).

Guarantees:
  * every charge has a dominating pair, and its rounding to the grid only raises δ(ε);
  * Gaussian releases are merged into one, for any number of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdaudit.accounting.charges import Charges, Drawn, Grouped, Selected, pure_each, signal_to_noise
from fdaudit.accounting.losses.pairs import (
    FARTHEST,
    UNLIKE,
    concentrated_losses,
    discrete_losses,
    drawn_losses,
    grouped_losses,
    sampled_losses,
)
from fdaudit.accounting.losses.tails import FAR, Losses, tail
from fdaudit.events import DiscreteGaussian, Gaussian, Relation, SampledGaussian

__all__ = [
    "ROUNDING",
    "TINY",
    "at_delta",
    "epsilon_by_losses",
    "losses",
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

_ONE_BY_ONE, _WHOLE = 4.0, 1e-9
"""Square of the sensitivity below which a whole number changes by one at most; and the rounding of such squares."""


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

    @classmethod
    def of(cls, charges: Charges) -> _Runs:
        """Return charges by the pairs of their runs; discrete Gaussians become Gaussians with a little less noise.

        Let x be N(μ, σ² - s²) with a whole μ, and let y be a whole number drawn with probability in proportion to
        exp(-(y - x)²/2s²). Write e(t) = 2 Σ_{n>=1} exp(-2π²n²t²). By Poisson's summation formula Σ_j N(j - x; 0, s²) is
        at least 1 - e(s), so that P[y = k] <= N(k; μ, σ²) / (1 - e(s)). A discrete Gaussian of parameter σ around μ has
        probability at least N(k; μ, σ²) / (1 + e(σ)) at k. It therefore equals y except for a probability of e(s) +
        e(σ), and y is computed from x. Whole numbers of ℓ2 sensitivity Δ change in at most Δ² places; the other places
        reveal nothing. So a release is computed from the Gaussian one of variance σ² - s², except for a probability of
        Δ² (e(s) + e(σ)), in which the release may reveal everything.

        Smaller noise on values of Δ² < 4 is counted exactly: at most Δ² places change, each by one. Otherwise it is
        counted by zero-concentrated DP (Canonne, Kamath & Steinke 2020, Theorem 4).
        """
        runs, whole = cls(), Counter[DiscreteGaussian]()
        for charge, n in charges.items():
            if isinstance(charge, Selected):
                raise TypeError(
                    "losses: the best of several runs has a Rényi curve, and no loss distribution"
                )
            if isinstance(charge, Drawn):
                if charge.drawn == charge.clients:
                    runs.ratios.append(math.sqrt(n * charge.steps) / charge.noise)
                else:
                    runs.drawn[charge.noise, charge.rate] += n * charge.steps
            elif isinstance(charge, DiscreteGaussian):
                whole[charge] += n * charge.count
            elif isinstance(charge, Grouped):
                noise, rate = charge.event.scale / charge.event.sensitivity, charge.event.sample_rate
                runs.grouped[noise, rate, charge.size] += n * charge.count
            elif isinstance(charge, SampledGaussian) and charge.sample_rate < 1:
                noise = charge.scale / charge.sensitivity
                runs.sampled[noise, charge.sample_rate, charge.relation] += n * charge.count
            elif isinstance(charge, Gaussian | SampledGaussian):
                runs.ratios.append(signal_to_noise(charge, n))
            else:
                runs.pure[pure_each(charge)] += n * charge.count
        places = list[int]()
        for discrete, n in whole.items():
            places.append(n * math.ceil(discrete.sensitivity**2))
        # s²; 5 exceeds 2 for each of two sums of e.
        less = math.log(5 * max(math.fsum(places), 1.0) / UNLIKE) / (2 * math.pi**2)
        for discrete, n in whole.items():
            if discrete.scale**2 >= 2 * less:
                noise = math.sqrt(discrete.scale**2 - less)
                runs.ratios.append(math.sqrt(n) * discrete.sensitivity / noise)
                runs.unlike = UNLIKE
            elif discrete.sensitivity**2 < _ONE_BY_ONE:
                runs.discrete[discrete.scale] += n * math.floor(discrete.sensitivity**2 + _WHOLE)
            else:
                runs.concentrated += n * (discrete.sensitivity / discrete.scale) ** 2 / 2
        return runs

    def cell(self, coarser: float) -> float:
        """Return the width of the grid's cells: small beside the losses of every run, if there is room for so many.

        Rounding adds about a quarter of a squared cell to the variance of each run's loss, so many quiet runs need
        small cells.
        """
        kinds = (self.sampled, self.grouped, self.drawn)
        count = self.pure.total() + sum(kind.total() for kind in kinds)
        cell = coarser * (_GRID if count <= _MANY else _FINE_GRID)
        spreads, quietest, loudest = list(self.ratios), math.inf, 0.0
        for kind in kinds:
            for (noise, rate, *_), n in kind.items():
                # The standard deviation of a run's loss, and its largest loss: the tail has a probability of 1e-22.
                typical = rate * math.sqrt(math.expm1(min(noise**-2, FAR)))
                largest = float(np.logaddexp(0.0, math.log(rate) + (FARTHEST + 0.5 / noise) / noise))
                spreads.append(typical * math.sqrt(n))
                quietest, loudest = min(quietest, typical), max(loudest, largest)
        if math.isinf(quietest):
            return cell
        spread = math.hypot(*spreads)
        widest = 20 * spread + spread**2 + math.fsum(eps * n for eps, n in self.pure.items())
        needed = max(quietest / _CELLS_OF_A_RUN, widest / _MOST_CELLS, loudest / _MOST_CELLS_OF_A_RUN)
        # Powers of two of one width, so that steps are used again.
        return cell * min(1.0, 2.0 ** math.floor(math.log2(needed / _GRID)) * _GRID / cell)


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
        if n > 1:
            one = one.self_compose(n)
        total = total.compose(one)
    return total


def _factors(charges: Charges, coarser: float) -> tuple[float, list[tuple[Any, int]]]:
    """Return the grid, and the loss distribution of each kind of run with the number of its runs."""
    from dp_accounting.pld.common import DifferentialPrivacyParameters
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism, from_privacy_parameters

    runs = _Runs.of(charges)
    grid = runs.cell(coarser)
    factors = list[tuple[Any, int]]()
    ratio = math.hypot(*runs.ratios)
    if ratio:
        # Gaussians add up exactly; composing their grids would round each of them up.
        factors.append((from_gaussian_mechanism(1 / ratio, value_discretization_interval=grid), 1))
    kinds: tuple[tuple[Callable[..., Any], Counter[Any]], ...] = (
        (sampled_losses, runs.sampled),
        (grouped_losses, runs.grouped),
        (drawn_losses, runs.drawn),
    )
    for losses_of, kind in kinds:
        for run, n in kind.items():
            factors.append((losses_of(*run, grid), n))
    for scale, n in runs.discrete.items():
        factors.append((discrete_losses(scale, grid), n))
    if runs.concentrated:
        factors.append((concentrated_losses(runs.concentrated, grid), 1))
    stated = [(DifferentialPrivacyParameters(eps, 0.0), n) for eps, n in runs.pure.items()]
    if runs.unlike:
        stated.append((DifferentialPrivacyParameters(0.0, runs.unlike), 1))
    for parameters, n in stated:
        factors.append((from_privacy_parameters(parameters, value_discretization_interval=grid), n))
    return grid, factors


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
    removed = list[tuple[Losses, int]]()
    for one, n in factors:
        removed.append((Losses.of(one._pmf_remove), n))
    sides = [removed]
    if not all(one._symmetric for one, _ in factors):
        added = list[tuple[Losses, int]]()
        for one, n in factors:
            added.append((Losses.of(one._pmf_add), n))
        sides.append(added)
    epsilons = np.zeros(len(deltas))
    decades = np.floor(np.log10(deltas))
    for decade in np.unique(decades):
        at = decades == decade
        for side in sides:
            epsilons[at] = np.maximum(epsilons[at], tail(side, grid, deltas[at] * (1 - _TAIL_ERROR)))
    return epsilons


def at_delta(distribution: Any, delta: float) -> float:
    """Return ε at δ of a distribution from `losses`; infinite if δ is too small for its arithmetic."""
    usable = delta - ROUNDING
    if usable <= 0:
        return math.inf
    return float(distribution.get_epsilon_for_delta(usable))

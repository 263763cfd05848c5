"""Costs of privacy events: Rényi curves, `dp_accounting` terms, and ε of several events at a δ.

Every mechanism is first expressed by its noise multiplier: scale over sensitivity, under the relation that the
sensitivity was stated for. Accountants never learn the relation. So none can double a sensitivity that is already
doubled.

Guarantees:
  * Gaussian releases without other mechanisms have exactly the ε of the one Gaussian release that they add up to.
    Otherwise ε is the least of three sound rules: pure ε added up, Rényi curves added up, and privacy-loss
    distributions convolved (only if all mechanisms have one);
  * a mechanism that cannot be stated for the ledger's unit and relation is refused with a reason, never approximated.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdaudit.accounting.charges import Charge, Charges, Drawn, Grouped, Selected, pure_each, signal_to_noise
from fdaudit.accounting.losses.composition import epsilon_by_losses
from fdaudit.events import DiscreteGaussian, Gaussian, Laplace, SampledGaussian

__all__ = ["ORDERS", "Epsilon", "by_library", "curve", "epsilon"]

Curve = NDArray[np.float64]

ORDERS: Curve = np.unique(
    np.concatenate(
        [
            1 + np.geomspace(1e-4, 0.1, 13),
            np.arange(1.1, 11, 0.1).round(1),
            np.arange(11, 64),
            2.0 ** np.arange(6, 24),
        ]
    )
)
"""Rényi orders: those of common use, closer to 1 for loud releases, and far out for very quiet ones."""

_SUMMED_UP_TO = 1024
"""With sampling, a curve at an order is a sum of that many terms; higher orders are left out."""

_SHORT = 64
"""Highest order of a search."""

_SOLVED = 1e-6
"""Relative error of a solved ε; the result is raised by it."""

_LOUDEST = 1e150
"""Largest signal-to-noise ratio with a finite square."""

_VACUOUS = 1e5
"""ε by Rényi curves above which no loss distribution is computed."""

_FULL = 4.0
"""Largest ε on the finest grid; above it the cell grows with ε, so that the number of cells stays constant."""


@dataclass(frozen=True, kw_only=True)
class Epsilon:
    """An ε at a δ, and the rule that gave it."""

    value: float
    accountant: str


def epsilon(charges: Charges, delta: float, *, pld: bool = True, coarse: bool = False) -> Epsilon:
    """Return ε at `delta` of all charges combined, by the rule that gives the least.

    Args:
        charges: mechanisms, all for one unit and relation, with how often each is charged.
        delta: δ in (0, 1).
        pld: whether privacy-loss distributions may be convolved, which takes about a second.
        coarse: for a search: a grid ten times as wide, and sampled mechanisms at a few orders. ε is a little larger, in
            a tenth of the time.
    """
    # Many views, victims and seeds have the same charges. The order is part of the key: last digits depend on it.
    return _epsilon(tuple(charges.items()), delta, pld, coarse)


@lru_cache(maxsize=1024)
def _epsilon(charged: tuple[tuple[Charge, int], ...], delta: float, pld: bool, coarse: bool) -> Epsilon:
    charges = dict(charged)
    if not charges:
        return Epsilon(value=0.0, accountant="nothing is charged")
    from dp_accounting import get_epsilon_gaussian
    from dp_accounting.rdp import compute_epsilon

    ratios = list[float]()
    for charge, n in charged:
        if isinstance(charge, Gaussian):
            ratios.append(signal_to_noise(charge, n))
    if len(ratios) == len(charged):
        # Adaptively chosen Gaussian releases reveal no more than one release whose squared signal-to-noise ratio is the
        # sum of theirs (Dong, Roth & Su 2019, Corollary 3.3). Its ε has a closed form (Balle & Wang 2018, Theorem 8).
        ratio = math.hypot(*ratios)
        noise = math.inf
        if ratio:
            noise = 1 / ratio
        value = math.inf
        if ratio < _LOUDEST:
            with np.errstate(divide="ignore"):  # an ε so large that its δ is zero
                value = float(get_epsilon_gaussian(noise, delta))
        # The library solves for ε in floating point. The result is raised by a millionth.
        return Epsilon(value=value * (1 + _SOLVED), accountant=by_library("Gaussian, in closed form"))
    bounds = list[Epsilon]()
    pure = _pure(charges)
    if math.isfinite(pure):
        bounds.append(Epsilon(value=pure, accountant="pure ε, added up"))
    curves = list[Curve]()
    for charge, n in charged:
        curves.append(n * curve(charge, coarse))
    value, order = compute_epsilon(list(ORDERS), list(np.sum(curves, axis=0)), delta)
    bounds.append(Epsilon(value=float(value), accountant=by_library(f"RDP at order {order:g}")))
    composed = not any(isinstance(charge, Selected) for charge in charges)
    least = min(bound.value for bound in bounds)
    if pld and composed and least < _VACUOUS:
        coarser = 10 if coarse else 1
        by_losses = _by_losses(charges, delta, least, coarser)
        bounds.append(by_losses)
        least = min(least, by_losses.value)
    # If figures differ by rounding only, the more informative rule is named first.
    return next(bound for bound in bounds if bound.value <= least * (1 + 1e-6))


@lru_cache(maxsize=4096)
def curve(charge: Charge, few: bool = False) -> Curve:
    """Return the read-only Rényi divergences of one charge at `ORDERS`, its count included."""
    if isinstance(charge, Drawn):
        import dp_accounting as dp
        from dp_accounting.rdp import RdpAccountant

        # Of clients drawn without replacement one has its whole data replaced (Wang, Balle & Kasiviswanathan 2019).
        orders = ORDERS[ORDERS <= _SUMMED_UP_TO]
        accountant = RdpAccountant(list(orders), dp.NeighboringRelation.REPLACE_ONE)
        once = dp.GaussianDpEvent(charge.noise)
        accountant.compose(
            dp.SampledWithoutReplacementDpEvent(charge.clients, charge.drawn, once), charge.steps
        )
        divergences: Curve = np.full(len(ORDERS), np.inf)
        divergences[: len(orders)] = accountant.rdp
        divergences = np.minimum(divergences, charge.steps * curve(charge.gaussian))
    elif isinstance(charge, Selected):
        # ε'(λ) = ε(λ) + 2 min over λ̂ of ((1 - 1/λ̂) ε(λ̂) + log(1/γ) / λ̂) + log E[K] / (λ - 1), where 1/γ = E[K]: the
        # best of a geometric number of runs (Papernot & Steinke 2022, Theorem 2, η = 1).
        one = np.sum([n * curve(part, few) for part, n in charge.charges], axis=0)
        log_mean = math.log(charge.mean)
        choice = 2 * float(np.min((1 - 1 / ORDERS) * one + log_mean / ORDERS))
        divergences = one + choice + log_mean / (ORDERS - 1)
        # Rényi divergences rise with the order, so a bound at a higher order holds at all lower ones.
        divergences = np.minimum.accumulate(divergences[::-1])[::-1]
    elif isinstance(charge, Grouped):
        divergences = curve(charge.loudest, few)
    elif isinstance(charge, SampledGaussian) and charge.relation == "replace-one" and charge.sample_rate < 1:
        divergences = charge.count * _replaced(charge, few)
    elif isinstance(charge, Gaussian | DiscreteGaussian):
        divergences = charge.count * ORDERS * (charge.sensitivity / charge.scale) ** 2 / 2
    elif isinstance(charge, SampledGaussian | Laplace):
        divergences = charge.count * _accounted(charge, few)
    else:
        # Binary randomised response is the worst that ε-DP allows (Mironov 2017, Prop. 5).
        eps = pure_each(charge)
        top = np.logaddexp(ORDERS * eps, (1 - ORDERS) * eps)
        divergences = charge.count * np.minimum((top - np.logaddexp(0.0, eps)) / (ORDERS - 1), eps)
    divergences = np.maximum(divergences, 0.0)  # rounding may turn a tiny loss negative
    divergences.setflags(write=False)
    return divergences


def _accounted(charge: SampledGaussian | Laplace, few: bool) -> Curve:
    """Return one run's curve from `dp_accounting`; with `few`, sampled mechanisms only at small whole orders."""
    from dp_accounting.rdp import RdpAccountant

    orders = np.ones_like(ORDERS, dtype=np.bool_)
    if isinstance(charge, SampledGaussian):
        orders = ORDERS <= _SUMMED_UP_TO
        if few:
            orders = (ORDERS <= _SHORT) & (ORDERS % 1 == 0)
    accountant = RdpAccountant(list(ORDERS[orders]))
    with _without_word_of_orders():
        accountant.compose(_plain(charge))
    divergences = np.full(len(ORDERS), np.inf)
    divergences[orders] = accountant.rdp
    return divergences


def _replaced(charge: SampledGaussian, few: bool) -> Curve:
    """Return one run's curve for a replaced record: by way of the data without it, or without sampling.

    D_α(P || Q) <= (α - 1/2) / (α - 1) D_2α(P || R) + D_(2α-1)(R || Q) (Mironov 2017, Proposition 11).
    """
    from dp_accounting.rdp import RdpAccountant

    divergences = ORDERS * (2 * charge.sensitivity / charge.scale) ** 2 / 2
    highest = _SHORT if few else _SUMMED_UP_TO
    whole = (ORDERS % 1 == 0) & (highest >= 2 * ORDERS)
    orders = ORDERS[whole]
    accountant = RdpAccountant([*(2 * orders), *(2 * orders - 1)])
    with _without_word_of_orders():
        accountant.compose(_plain(charge))
    there, back = np.split(np.asarray(accountant.rdp), 2)
    divergences[whole] = np.minimum(divergences[whole], (orders - 0.5) / (orders - 1) * there + back)
    return np.asarray(divergences)


@contextmanager
def _without_word_of_orders() -> Iterator[None]:
    """Silence the log messages of `dp_accounting` on orders that it cannot sum and leaves out."""
    logger = logging.getLogger("absl")
    disabled = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = disabled


def _plain(charge: SampledGaussian | Laplace | Gaussian) -> Any:
    """Return one run of a mechanism as a `dp_accounting` event."""
    import dp_accounting as dp

    multiplier = charge.scale / charge.sensitivity
    if isinstance(charge, Laplace):
        return dp.LaplaceDpEvent(multiplier)
    gaussian = dp.GaussianDpEvent(multiplier)
    if isinstance(charge, SampledGaussian) and charge.sample_rate < 1:
        return dp.PoissonSampledDpEvent(charge.sample_rate, gaussian)
    return gaussian


def _pure(charges: Charges) -> float:
    """Return the pure ε of charges, added up; infinite if one has none."""
    terms = []
    for charge, times in charges.items():
        each = pure_each(charge)
        if isinstance(charge, Drawn | Selected) or math.isinf(each):
            return math.inf
        terms.append(times * (charge.count * each))
    return math.fsum(terms)


def _by_losses(charges: Charges, delta: float, above: float, coarser: int) -> Epsilon:
    """Return ε by loss distributions; if ε is large, the grid's cell is a fixed fraction of it.

    Args:
        charges: mechanisms with their counts.
        delta: δ.
        above: an upper bound on ε. Rényi curves may be many times too large: then a first figure on a wide grid
            replaces this bound.
        coarser: factor by which the grid is widened.
    """
    if above > _FULL:
        above = min(above, epsilon_by_losses(charges, delta, _cells(10 * above)))
    value = epsilon_by_losses(charges, delta, coarser * _cells(above))
    return Epsilon(value=value, accountant=by_library("PLD"))


def by_library(rule: str) -> str:
    """Return the name of a rule with the version of the library that computes it."""
    return f"{rule} (dp-accounting {version('dp-accounting')})"


def _cells(eps: float) -> float:
    """Return how many cells of the finest grid form one cell at this ε: a power of two, so that steps are reused."""
    return 2.0 ** math.ceil(math.log2(max(eps / _FULL, 1.0)))

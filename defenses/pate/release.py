"""The data-dependent ε of GNMax's votes, for the auditor only, and its release under smooth sensitivity.

A data-dependent ε is a function of the votes. Publishing it unchanged would be a separate release without
accounting. Papernot et al. 2018, appendix B, add Gaussian noise scaled to its smooth sensitivity (Nissim,
Raskhodnikova & Smith 2007), at one Rényi order fixed beforehand, and also charge that noise.

The paper bounds how far a client can move the figure, under conditions that must be checked for each σ, C and α.
Here the figure is a table instead. The effective lead g of a row is the common lead over each other class that would
give the row's q̃. Moving a vote changes g by at most 2, for three reasons. Every lead changes by at most 2.
y ↦ Φ(Φ⁻¹(y) + c) is concave for c ≥ 0 and convex for c ≤ 0, so by Jensen's inequality equal leads move g
most. And q̃ is the smallest of such sums over the class taken as the first, so a change of plurality makes no jump.
The table holds a figure for each cell of g. It is at least Theorem 6's in the cell and does not rise with g. Cells are
wide enough that a client moves a row by at most a fixed number of them. Local and smooth sensitivity are then maxima
over the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.ndimage import maximum_filter1d
from scipy.special import log_ndtr, ndtri, ndtri_exp

from fdaudit.errors import SpecError
from fdaudit.rng import SecretStream

from ._inputs import Floats, order_array, scale, vote_array
from .gnmax import gnmax_log_q, gnmax_rdp, rdp_from_log_q

__all__ = [
    "DataDependentEpsilon",
    "SmoothRelease",
    "gnmax_epsilon",
    "gnmax_smooth_sensitivity",
    "release_gnmax_epsilon",
]

_SMALLEST = 1e-12
"""Below this part of the data-independent figure the table ends."""
_LEAST = 1e-9
"""Smooth sensitivity is at least this part of the data-independent figure, so that its logarithm exists."""
_MOST_CELLS = 2**21
_STEP = 2 * (1 + 1e-6)
"""Distance by which a client moves an effective lead, in votes, with room for rounding."""


@dataclass(frozen=True, kw_only=True)
class DataDependentEpsilon:
    """ε at δ of GNMax on given votes, for the client as unit, under replace-one.

    Attributes:
        epsilon: ε.
        delta: δ.
        order: the Rényi order α that it was converted from.
        auditor_only: it reveals information about the votes and must stay with the auditor. False once released with
            its noise.
        failure: the probability, over the release's noise, that the figure is below the true one; 0 if unreleased.
    """

    epsilon: float
    delta: float
    order: float
    auditor_only: bool = True
    failure: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SmoothRelease:
    """Parameters of the release of a data-dependent figure, fixed before the votes are seen.

    Two draws are charged. The first is the figure with noise N(0, (scale · S)²), S its β-smooth sensitivity. The second
    is log S, which a client moves by at most β, with noise N(0, (log_scale · β)²). Without the second draw the size of
    the first draw's noise would be unknown, and a figure that is too small half of the time is no guarantee.

    Attributes:
        order: α, the one order at which the figure is released.
        beta: β, by which smooth sensitivity decays with distance; (α - 1)(e^{2β} - 1) < 1.
        scale: standard deviation of the figure's noise, in units of S.
        log_scale: standard deviation of the noise on log S, in units of β.
        failure: the probability that the released figure is below the true one.

    Raises:
        SpecError: a parameter is out of range.
    """

    order: float
    beta: float
    scale: float
    log_scale: float = 10.0
    failure: float = 1e-6

    def __post_init__(self) -> None:
        order_array([self.order])
        for field in ("beta", "scale", "log_scale"):
            scale(field, getattr(self, field))
        most = 0.5 * math.log1p(1 / (self.order - 1))
        if self.beta >= most:
            problem = f"is too large for order {self.order}"
            raise SpecError("beta", self.beta, problem, f"Give less than {most:.6g}.")
        _probability("failure", self.failure)

    @property
    def value_rdp(self) -> float:
        """Return the RDP of the noisy figure at `order`.

        D_α of N(0, s²) from N(x, t²) for |x| ≤ min(s, t) / scale and |log(s / t)| ≤ β is largest at s = e^β t. This is
        exact. Papernot et al. 2018, Theorem 23, have αe^{2β}/scale² + (αβ - ½ log(1 - 2αβ)) / (α - 1), which is about
        twice as much for small αβ but too small if αβ approaches ½.
        """
        less = self.order - 1
        remainder = 1 - less * math.expm1(2 * self.beta)
        return self.order / (2 * self.scale**2 * remainder) - math.log(remainder) / (2 * less) - self.beta

    @property
    def rdp(self) -> float:
        """Return the RDP of the whole release at `order`: the noisy figure and the noisy log S."""
        return self.value_rdp + self.order / (2 * self.log_scale**2)


def gnmax_epsilon(votes: ArrayLike, sigma: float, orders: ArrayLike, delta: float) -> DataDependentEpsilon:
    """Return ε at δ of all queries together, at the best of the orders, from their data-dependent RDP.

    The conversion is Canonne, Kamath & Steinke 2020, Proposition 12.

    Args:
        votes: counts (q, C), whole numbers.
        sigma: σ, standard deviation of the noise, in votes.
        orders: Rényi orders α > 1, (orders,).
        delta: δ, in (0, 1).

    Raises:
        SpecError: an argument is out of range.
    """
    alphas, delta = order_array(orders), _probability("delta", delta)
    epsilons = _converted(gnmax_rdp(votes, sigma, alphas).sum(0), alphas, delta)
    best = int(epsilons.argmin())
    return DataDependentEpsilon(epsilon=float(epsilons[best]), delta=delta, order=float(alphas[best]))


def gnmax_smooth_sensitivity(
    votes: ArrayLike, sigma: float, order: float, beta: float
) -> tuple[float, float]:
    """Return the tabulated RDP of all queries at one order, and its β-smooth sensitivity. Both are private.

    Guarantees:
      * the RDP is at least `gnmax_rdp(votes, sigma, [order]).sum()` and at most the data-independent figure;
      * a client that changes its vote in every query moves the RDP by at most S, and log S by at most β.

    Args:
        votes: counts (q, C), whole numbers, of at least one query and two classes.
        sigma: σ, standard deviation of the noise, in votes.
        order: α > 1.
        beta: β > 0.

    Raises:
        SpecError: an argument is out of range.
    """
    checked, beta, orders = vote_array(votes), scale("beta", beta), order_array([order])
    if not len(checked) or checked.shape[1] < 2:
        problem = "has no query, or one class only: its figure is 0 whatever the votes"
        raise SpecError("votes", checked.shape, problem, "Give counts (q, C) with q > 0 and C > 1.")
    # A client moves a row by so many cells, of so many votes: there are about 64 cells to a σ.
    reach = min(max(math.ceil(128 / scale("sigma", sigma)), 4), 256)
    width = _STEP / reach
    table = _table(sigma, checked.shape[1], float(orders[0]), width)
    log_each = gnmax_log_q(checked, sigma) - math.log(checked.shape[1] - 1)
    leads = -ndtri_exp(log_each) * math.sqrt(2) * sigma
    cells = np.clip(np.floor(leads / width), 0, len(table) - 1).astype(np.int64)
    histogram = np.bincount(cells, minlength=len(table)).astype(np.float64)
    number, last = np.arange(len(table)), len(table) - 1
    below, above = table[np.maximum(number - reach, 0)], table[np.minimum(number + reach, last)]
    local = np.maximum(below - table, table - above)  # how far each figure may move, to a cell within reach
    most = float(local.max()) * len(checked)
    smooth = _LEAST * len(checked) * order / sigma**2
    for distance in range(len(table) // reach + 2):
        discount = math.exp(-beta * distance)
        if discount * most <= smooth:  # further away nothing can be larger
            break
        smooth = max(smooth, discount * float(histogram @ local))
        local = maximum_filter1d(local, 2 * reach + 1, mode="nearest")
    return float(histogram @ table), smooth


def release_gnmax_epsilon(
    votes: ArrayLike, sigma: float, delta: float, release: SmoothRelease, noise: SecretStream
) -> DataDependentEpsilon:
    """Return ε at δ of all queries and of this release together, with the noise that makes it publishable.

    The figure is an upper bound on the data-dependent ε, release included, except with probability
    `release.failure` over the noise. It is never above the data-independent ε with the release's cost.
    Each call costs `release.rdp` again: a second draw is a second release.

    Args:
        votes: counts (q, C), whole numbers.
        sigma: σ, standard deviation of the queries' noise, in votes.
        delta: δ, in (0, 1).
        release: parameters fixed before the votes were seen.
        noise: the vault's secret, for the two draws.

    Raises:
        SpecError: an argument is out of range.
    """
    delta, order = _probability("delta", delta), release.order
    value, smooth = gnmax_smooth_sensitivity(votes, sigma, order, release.beta)
    draws = noise.normal(2)
    tail = float(-ndtri(release.failure / 2))  # half for each draw
    noised = value + release.scale * smooth * float(draws[0])
    spread = release.log_scale * release.beta
    most = math.exp(math.log(smooth) + spread * float(draws[1]) + spread * tail)
    independent = len(vote_array(votes)) * order / sigma**2
    rdp = min(max(noised + release.scale * most * tail, 0.0), independent) + release.rdp
    epsilon = float(_converted(np.array([rdp]), np.array([order]), delta)[0])
    return DataDependentEpsilon(
        epsilon=epsilon, delta=delta, order=order, auditor_only=False, failure=release.failure
    )


def _probability(field: str, value: float) -> float:
    if not 0 < value < 1:
        raise SpecError(field, value, "is no probability", "Give a number between 0 and 1.")
    return float(value)


def _converted(rdp: Floats, orders: Floats, delta: float) -> Floats:
    """Return ε at δ of each order."""
    excess = np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return np.maximum(rdp + excess, 0.0)


def _table(sigma: float, classes: int, order: float, width: float) -> Floats:
    """Return the figure of each cell of effective leads, from 0 on, until it is negligible."""
    cells, floor = 1024, _SMALLEST * order / sigma**2
    while True:
        leads = np.arange(cells) * width
        log_tails = math.log(classes - 1) + log_ndtr(-leads / (math.sqrt(2) * sigma))
        log_q = np.minimum(log_tails, math.log1p(-1 / classes))
        figures = rdp_from_log_q(log_q, sigma, np.array([order]))[:, 0]
        if figures[-1] <= floor:
            break
        cells *= 2
        if cells > _MOST_CELLS:
            problem = f"needs too large a table at order {order}"
            raise SpecError("sigma", sigma, problem, "Give a smaller sigma or a lower order.")
    # The largest figure from here on: it does not rise with the lead, even where Theorem 6's bound does.
    table: Floats = np.maximum.accumulate(figures[::-1])[::-1]
    return table[: int(np.argmax(table <= floor)) + 1]

"""Privacy losses on a grid, and the far tail of a composed one: δ below the rounding errors of Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FAR", "Losses", "tail"]

Values = NDArray[np.float64]

FAR = 600.0
"""Largest loss with a finite exponential, with room for products."""

_UNSEEN = 45.0
"""Minus the logarithm of a probability that no sum of probabilities shows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Losses:
    """A privacy loss on a grid, rounded up: `probabilities[i]` is that of the loss grid * (lower + i).

    Attributes:
        grid: distance between two losses.
        lower: the first loss, as a multiple of the grid.
        infinity: the probability of an infinite loss.
        probabilities: (n,) of the losses from the first on.
    """

    grid: float
    lower: int
    infinity: float
    probabilities: Values

    @classmethod
    def of(cls, pmf: Any) -> Losses:
        """Return the distribution of a `dp_accounting` object."""
        dense = pmf.to_dense_pmf()
        return cls(
            grid=float(dense._discretization),
            lower=int(dense._lower_loss),
            infinity=float(dense._infinity_mass),
            probabilities=np.asarray(dense._probs, dtype=np.float64),
        )

    @cached_property
    def cells(self) -> NDArray[np.int64]:
        """Return the losses (n,) as multiples of the grid."""
        return self.lower + np.arange(len(self.probabilities))

    def epsilons(self, deltas: Values) -> Values:
        """Return the least ε >= 0 at each δ; infinite if the infinite loss by itself is as likely as δ.

        δ(ε) = infinity + Σ p (1 - e^(ε - loss)) over losses above ε (Sommer, Meiser & Mohammadi 2019, Lemma 5).
        """
        first = max(0, 1 - self.lower)
        values = self.grid * (self.lower + np.arange(first, len(self.probabilities)))
        weights = self.probabilities[first:]
        mass = self.infinity + np.cumsum(weights[::-1])[::-1]
        scaled = np.cumsum((weights * np.exp(-values))[::-1])[::-1]
        with np.errstate(over="ignore", invalid="ignore"):  # losses so large that the term vanishes
            at = mass - np.exp(values) * scaled
        epsilons = np.zeros(len(deltas))
        for i, delta in enumerate(deltas):
            fits = np.flatnonzero(at <= delta)
            if delta <= self.infinity:
                epsilons[i] = np.inf
            elif len(fits):
                k = fits[0]
                ratio = (mass[k] - delta) / scaled[k] if scaled[k] > 0 else 1.0
                epsilons[i] = min(np.log(max(ratio, 1.0)), values[k])
            elif len(values):
                epsilons[i] = values[-1]
        return epsilons

    def mean(self, tilt: float) -> float:
        """Return the mean cell after tilting."""
        return float(self.tilted(tilt)[0] @ self.cells)

    def tilted(self, tilt: float) -> tuple[Values, float]:
        """Return p e^(tilt * cell) divided by its sum, and the logarithm of that sum."""
        with np.errstate(divide="ignore"):
            logs = np.log(self.probabilities) + tilt * self.cells
        largest = float(logs.max())
        weights = np.exp(logs - largest)
        total = float(weights.sum())
        return weights / total, largest + math.log(total)


def tail(side: Sequence[tuple[Losses, int]], grid: float, deltas: Values) -> Values:
    """Return ε (n,) at tiny δ (n,) of one decade, from loss distributions that are tilted before they are composed.

    A Fourier transform makes errors of about 1e-15 in every probability, more than a tiny δ allows. Let P be the
    composed loss, and Q(l) = P(l) e^(tl) / M its tilted form, which composes in the same way. With a t that brings Q's
    mean near ε (Daniels 1954), an error of Q counts only as M e^(-tε), which is about δ.
    """
    infinity = -math.expm1(math.fsum(n * math.log1p(-loss.infinity) for loss, n in side))
    finite = np.asarray(deltas - infinity, dtype=np.float64)
    if not np.any(finite > 0):
        return np.full(len(deltas), np.inf)
    tilt = _saddle(side, grid, float(finite[finite > 0].min()))
    # Outside these cells the tilted loss has no probability to speak of: by Chernoff's bound, P(loss > x) is at most
    # exp(K(s) - K(0) - sx) for every s > 0, and in the same way below.
    first = last = 0
    for loss, n in side:
        first += n * int(loss.cells[0])
        last += n * int(loss.cells[-1])
    base = _cumulant(side, tilt)
    for s in tilt * np.geomspace(1e-2, 1e2, 17):
        last = min(last, math.ceil((_cumulant(side, tilt + s) - base + _UNSEEN) / s))
        first = max(first, math.floor((base - _cumulant(side, tilt - s) - _UNSEEN) / s))
    length = 1 << math.ceil(math.log2(last - first + 1))
    total: NDArray[np.complex128] = np.ones(length // 2 + 1, dtype=np.complex128)
    offset, log_mass = 0, 0.0
    for loss, n in side:
        weights, log_sum = loss.tilted(tilt)
        wrapped = np.bincount(np.arange(len(weights)) % length, weights, minlength=length)
        total *= np.fft.rfft(wrapped) ** n
        offset, log_mass = offset + n * int(loss.cells[0]), log_mass + n * log_sum
    composed = np.roll(np.fft.irfft(total, length), (offset - first) % length)
    cells = first + np.arange(length)
    mass = np.maximum(composed, 0.0) * np.exp(np.minimum(log_mass - tilt * cells, FAR))
    values = np.asarray(grid * cells, dtype=np.float64)
    epsilons = np.full(len(finite), np.inf)
    for i, delta in enumerate(finite):
        if delta > 0:
            epsilons[i] = _least_epsilon(values, mass, delta)
    return epsilons


def _cumulant(side: Sequence[tuple[Losses, int]], tilt: float) -> float:
    return math.fsum(n * loss.tilted(tilt)[1] for loss, n in side)


def _saddle(side: Sequence[tuple[Losses, int]], grid: float, delta: float) -> float:
    """Return the tilt, per cell, at which Chernoff's bound on P(loss > mean of the tilted loss) is δ."""
    low, high = 1e-9 * grid, 1e5 * grid
    while high / low > 1 + 1e-3:
        tilt = math.sqrt(low * high)
        exponents = list[float]()
        for loss, n in side:
            exponents.append(n * (loss.tilted(tilt)[1] - tilt * loss.mean(tilt)))
        if math.fsum(exponents) > math.log(delta):
            low = tilt
        else:
            high = tilt
    return low


def _least_epsilon(values: Values, mass: Values, delta: float) -> float:
    """Return the least ε >= 0 with Σ mass (1 - e^(ε - value)) <= δ over values above ε."""
    positive = values > 0
    values, mass = values[positive], mass[positive]
    above = np.cumsum(mass[::-1])[::-1]
    scaled = np.cumsum((mass * np.exp(-np.minimum(values, FAR)))[::-1])[::-1]
    at = above - np.exp(np.minimum(values, FAR)) * scaled
    fits = np.flatnonzero(at <= delta)
    if not len(fits):
        return math.inf
    k = fits[0]
    if scaled[k] <= 0:
        return float(values[k])
    # Between this value and the one below, δ(ε) = above - e^ε scaled.
    power = max((above[k] - delta) / scaled[k], 1.0)
    return float(min(max(math.log(power), 0.0), values[k]))

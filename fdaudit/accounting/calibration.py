"""Calibration: the least noise that keeps a run of a given shape within an ε."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import scipy  # its packages are loaded at first use
from pydantic import Field

from fdaudit.accounting.charges import Charge, Charges, Drawn
from fdaudit.accounting.costs import epsilon
from fdaudit.accounting.losses.participation import toeplitz_sensitivity
from fdaudit.config import Config
from fdaudit.errors import SpecError
from fdaudit.events import Gaussian, Laplace, PureDP, SampledGaussian

__all__ = ["SHAPES", "Shape", "calibrate", "least_noise", "noise_for", "written"]

_LEAST, _MOST = 1e-3, 1e7
_CLOSE = 1e-3
"""Relative distance of the noise to the least possible noise."""
_TINY = 1e-12


class Shape(Config):
    """Counts and parameters of a mechanism's use in a run; fields that a mechanism does not use keep their defaults."""

    releases: int = Field(1, ge=1)
    """Noised messages, or PATE queries."""
    steps: int = Field(1, ge=1)
    """Steps of DP-SGD, or of FedIOD's generator, in the whole run."""
    samples: int = Field(1, ge=1)
    """Generated samples per step whose gradients are sanitised."""
    sample_rate: float = Field(1.0, gt=0, le=1)
    """q of DP-SGD's Poisson sampling."""
    sensitivity: float = Field(1.0, gt=0)
    """Sensitivity of a noised message: twice its clip. The default assumes a clip of one half."""
    answered: int | None = Field(None, ge=0)
    """Confident-GNMax: the most queries that are answered; default: all."""
    threshold_noise: float = Field(2.0, gt=0)
    """Confident-GNMax: noise of the threshold step over that of the answers."""
    drawn_from: int = Field(1, ge=1)
    """Number of clients from which each step draws one, for views that do not show which."""
    bands: tuple[float, ...] = Field((1.0,), min_length=1)
    """DP-FTRL: the coefficients of its lower-triangular Toeplitz matrix, the diagonal first."""
    separation: int = Field(1, ge=1)
    """DP-FTRL: the least number of steps between two participations of one record."""
    participations: int = Field(1, ge=1)
    """DP-FTRL: the most participations of one record."""


_UNIT: dict[str, Any] = {"unit": "client", "relation": "replace-one", "covers": ("data", "messages")}


def _gaussian(sensitivity: float, noise: float, count: int = 1) -> Gaussian:
    return Gaussian(sensitivity=sensitivity, scale=noise, count=count, **_UNIT)


def _dp_sgd(shape: Shape, noise: float) -> Charges:
    event = SampledGaussian(
        sensitivity=1.0,
        scale=noise,
        sample_rate=shape.sample_rate,
        count=shape.steps,
        unit="record",
        relation="add-or-remove",
        covers=("data",),
    )
    return {event: 1}


def _dp_ftrl(shape: Shape, noise: float) -> Charges:
    sensitivity = toeplitz_sensitivity(shape.bands, shape.steps, shape.separation, shape.participations)
    return {_gaussian(sensitivity, noise): 1}


def _confident(shape: Shape, noise: float) -> Charges:
    charges: dict[Charge, int] = {_gaussian(1.0, noise * shape.threshold_noise, shape.releases): 1}
    answered = shape.releases
    if shape.answered is not None:
        answered = min(shape.answered, shape.releases)
    if answered:
        charges[_gaussian(math.sqrt(2), noise, answered)] = 1
    return charges


def _sanitized(shape: Shape, noise: float) -> Charges:
    event = _gaussian(2.0, noise, shape.samples)
    if shape.drawn_from > 1:
        return {Drawn(gaussian=event, clients=shape.drawn_from, steps=shape.steps): 1}
    return {event: shape.steps}


Curve = Callable[[Shape, float], Charges]
SHAPES: Mapping[str, tuple[str, Curve]] = {
    "dp-sgd": ("noise_multiplier", _dp_sgd),
    "dp-ftrl": ("noise_multiplier", _dp_ftrl),
    "gaussian-noise": ("sigma", lambda s, noise: {_gaussian(s.sensitivity, noise): s.releases}),
    "laplace-noise": (
        "1/gamma",
        lambda s, noise: {Laplace(sensitivity=s.sensitivity, scale=noise, **_UNIT): s.releases},
    ),
    "lnmax": ("1/gamma", lambda s, noise: {PureDP(epsilon=2 / noise, **_UNIT): s.releases}),
    "gnmax": ("sigma", lambda s, noise: {_gaussian(math.sqrt(2), noise): s.releases}),
    "confident-gnmax": ("sigma", _confident),
    "dp-fedavg": ("sigma", lambda s, noise: {_gaussian(2.0, noise): s.releases}),
    "sanitized-gradients": ("sigma", _sanitized),
}
"""By defence: the setting of the amount of noise, and the charges of a run of a shape under it."""


def calibrate(
    cost: Callable[[float], float],
    target: float,
    *,
    least: float = _LEAST,
    most: float = _MOST,
    close: float = _CLOSE,
) -> float:
    """Return the least noise whose cost is at most `target`, within `close` of it; never too little.

    Args:
        cost: ε as a function of the noise, falling.
        target: target ε.
        least: the smallest noise tried.
        most: the largest noise tried.
        close: relative; default a thousandth.

    Raises:
        SpecError: the target is not positive, or not met with the largest noise; the message gives the ε that is met.
    """
    if not 0 < target < math.inf:
        raise SpecError("epsilon", target, "is no budget", "Give a positive ε.")
    if (best := cost(most)) > target:
        problem = f"cannot be met: with noise of {most:g} ε is still {best:.4g}"
        remedy = "Ask for more, use the data less often, or defend what else it counts."
        raise SpecError("epsilon", target, problem, remedy)
    if cost(least) <= target:
        return least

    def beyond(log_noise: float) -> float:
        return math.log(min(max(cost(math.exp(log_noise)), _TINY), 1 / _TINY) / target)

    noise = math.exp(scipy.optimize.brentq(beyond, math.log(least), math.log(most), xtol=close / 4))
    while cost(noise) > target:
        noise *= 1 + close / 4
    return noise


def least_noise(charges: Callable[[float], Charges], target: float, delta: float) -> float:
    """Return the least noise of five digits whose charges keep to an ε; it never rises with the target.

    The first search uses loss distributions on a coarse grid. The second uses the ledger's fine grid, down to the last
    digit.

    Raises:
        SpecError: the target is not positive, or not met with the largest noise.
    """

    def coarse(noise: float) -> float:
        return epsilon(charges(noise), delta, coarse=True).value

    def fine(noise: float) -> float:
        return epsilon(charges(noise), delta).value

    most = 1.0
    while target > 0 and most < _MOST and coarse(most) > target:
        most *= 4
    candidate = calibrate(coarse, target, least=_below(coarse, target, most, 4), most=most)
    while candidate < _MOST and fine(candidate) > target:
        candidate *= 1 + 4 * _CLOSE
    least = _below(fine, target, candidate, 1 + 4 * _CLOSE)
    candidate = written(calibrate(fine, target, least=least, most=candidate, close=_CLOSE / 10))
    while candidate > _LEAST:
        digits = _digits(candidate)
        lower = (round(candidate * digits) - 1) / digits
        if fine(lower) > target:
            break
        candidate = lower
    return candidate


def _below(cost: Callable[[float], float], target: float, noise: float, factor: float) -> float:
    """Return a noise that costs more than the target, found by dividing `noise` by `factor` as often as needed."""
    while noise > _LEAST and cost(noise) <= target:
        noise /= factor
    return max(noise, _LEAST)


def written(noise: float) -> float:
    """Return the noise rounded up to five digits."""
    digits = _digits(noise)
    return math.ceil(noise * digits * (1 - 1e-15)) / digits


def _digits(noise: float) -> float:
    """Return the power of ten that makes a number's first five digits a whole number."""
    return 10.0 ** (4 - math.floor(math.log10(noise)))


def noise_for(defence: str, shape: Shape, target: float, delta: float) -> tuple[float, float]:
    """Return the noise of a defence that keeps a run of a shape to an ε, and the ε that it reaches.

    Raises:
        SpecError: no such defence, or the target cannot be met.
    """
    if defence not in SHAPES:
        names = ", ".join(sorted(SHAPES))
        raise SpecError("defence", defence, "is none that can be calibrated", f"Valid names: {names}.")
    _, charges = SHAPES[defence]
    least = least_noise(lambda noise: charges(shape, noise), target, delta)
    return least, epsilon(charges(shape, least), delta).value

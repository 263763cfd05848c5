"""Intervals for measured numbers: Clopper-Pearson for counts, the bootstrap for everything else.

Guarantees:
  * a Clopper-Pearson interval covers the true proportion with at least its confidence, for every n and p;
  * a bootstrap draws only from the given generator: the same generator state gives the same interval;
  * resampling respects strata: every resample has each stratum's own size;
  * if resampling cannot show uncertainty (one item, or a statistic that no resample changes), there is no interval
    instead of one of width zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import Floats, Integers, integers, probability, vector
from fdaudit.types import Figure

__all__ = [
    "Interval",
    "bootstrap",
    "clopper_pearson",
    "exceedance",
    "joined",
    "logit_interval",
    "mean_figure",
    "share_figure",
    "unavailable",
]

_CHUNK = 2_000_000
"""Weights held in memory at once."""

_MOST_BLOCKS = 1000
"""Values of a jackknife, about; of fewer units each has its own."""

_SAME = 1e-12
"""Relative difference below which two replicates count as equal."""


class Interval(NamedTuple):
    """A two-sided interval: its ends, its level and its method."""

    low: float
    high: float
    confidence: float
    method: str


def clopper_pearson(k: int, n: int, confidence: float = 0.95) -> Interval:
    """Return the exact interval for a proportion, from `k` successes in `n` independent trials.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the
    binomial", Biometrika 26 (1934), through quantiles of the beta distribution.

    Raises:
        UsageError: not 0 <= k <= n, n < 1, or a confidence outside (0, 1).
    """
    from scipy.special import betaincinv

    if n < 1 or not 0 <= k <= n:
        raise UsageError("k, n", (k, n), "are not successes among trials", "Give 0 <= k <= n with n >= 1.")
    tail = (1 - probability(confidence, "confidence")) / 2
    low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail))
    high = 1.0 if k == n else float(betaincinv(k + 1, n - k, 1 - tail))
    return Interval(low, high, confidence, "clopper-pearson")


def logit_interval(value: float, error: float, reach: float, confidence: float, method: str) -> Interval:
    """Return the interval of a value in (0, 1) that is symmetric on the logit scale: both ends are in (0, 1).

    Args:
        value: the estimate.
        error: its standard error.
        reach: quantile of the standardised error: how many standard errors each end is away.
        confidence: level of the interval.
        method: name of the method.
    """
    from scipy.special import expit, logit

    # The slope of the logit is 1 / (value (1 - value)): it turns the error into one on the logit scale.
    distance = reach * (error / (value * (1 - value)))
    low = float(expit(logit(value) - distance))
    high = float(expit(logit(value) + distance))
    return Interval(low, high, confidence, method)


def share_figure(
    name: str, k: int, n: int, confidence: float = 0.95, *, note: str = "", p: float | None = None
) -> Figure:
    """Return the share of k successes among n trials with its Clopper-Pearson interval.

    Raises:
        UsageError: as `clopper_pearson`.
    """
    interval = clopper_pearson(k, n, confidence)
    return Figure(name=name, value=k / n, unit="fraction", n=n, note=note, p=p, **interval._asdict())


def bootstrap(
    statistic: Callable[[Floats], Floats],
    n: int,
    generator: np.random.Generator,
    *,
    strata: Integers | None = None,
    resamples: int = 2000,
    confidence: float = 0.95,
    method: Literal["bca", "percentile"] = "bca",
    expand: bool = False,
) -> Interval | None:
    """Return a bootstrap interval for a statistic of `n` independent units.

    A resample is a vector of weights: the number of times that each unit was drawn. A statistic of weights, not copies,
    lets a unit be a group (matched pair, batch). The same function gives the jackknife of BCa: one unit left out has
    weight zero.

    Args:
        statistic: maps weights (r, n), whole numbers, to values (r,).
        n: number of units.
        generator: randomness of the draws.
        strata: (n,) stratum of each unit; strata are resampled separately. Default: one stratum.
        resamples: number of resamples.
        confidence: level of the interval.
        method: `bca`, bias-corrected and accelerated (Efron, "Better bootstrap confidence intervals", JASA 82
            (1987); acceleration over several strata as in Davison and Hinkley (1997), section 5.3), or
            `percentile`.
        expand: whether to widen the interval as Student's t widens the normal one. Resampling `n` units shows a
            variance short by (n - 1) / n and normal tails, which reduces the coverage of a mean of ten values by about
            five points (Hesterberg, "What teachers should know about the bootstrap", The American Statistician 69
            (2015), section 5.2).

    Returns:
        The interval, or None if the bootstrap is not informative: fewer than two units, or a statistic with the same
        value on every resample.

    Raises:
        UsageError: there is no unit, there are fewer than 100 resamples, or the confidence is outside (0, 1).
    """
    from scipy.special import ndtr, ndtri, stdtrit

    tail = (1 - probability(confidence, "confidence")) / 2
    if n < 1 or resamples < 100:
        raise UsageError(
            "n, resamples", (n, resamples), "are too few", "Give at least one unit and 100 resamples."
        )
    groups = np.zeros(n, dtype=np.int64) if strata is None else integers(strata, "strata", n)
    point = float(statistic(np.ones((1, n)))[0])
    values = _replicates(statistic, groups, generator, resamples)
    same = _SAME * max(1.0, abs(point))
    if n < 2 or float(np.ptp(values)) <= same:
        return None
    z: Floats = ndtri(np.array([tail, 1 - tail]))
    if expand:
        z = z * np.sqrt(n / (n - 1)) * stdtrit(n - 1, 1 - tail) / ndtri(1 - tail)
    levels = ndtr(z)
    if method == "bca":
        # The bias is the normal quantile of the share of replicates below the estimate; equal ones count half.
        below = (values < point - same).mean() + 0.5 * (np.abs(values - point) <= same).mean()
        bias = ndtri(np.clip(below, 0.5 / resamples, 1 - 0.5 / resamples))
        shifted = bias + z
        levels = ndtr(bias + shifted / (1 - _acceleration(statistic, groups) * shifted))
    low, high = np.quantile(values, levels)
    return Interval(float(low), float(high), confidence, f"bootstrap ({method}{', expanded' * expand})")


def _replicates(
    statistic: Callable[[Floats], Floats], groups: Integers, generator: np.random.Generator, resamples: int
) -> Floats:
    n = len(groups)
    members = [np.flatnonzero(groups == g) for g in np.unique(groups)]
    replicates: list[Floats] = []
    step = max(1, _CHUNK // n)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        weights = np.empty((rows, n))
        for index in members:
            size = len(index)
            # Draws of row k are numbered from k * size on: one count serves all rows, faster than a multinomial.
            picks = generator.integers(size, size=(rows, size)) + size * np.arange(rows)[:, None]
            weights[:, index] = np.bincount(picks.ravel(), minlength=rows * size).reshape(rows, size)
        replicates.append(statistic(weights))
    return np.concatenate(replicates)


def _acceleration(statistic: Callable[[Floats], Floats], groups: Integers) -> float:
    """Return BCa's acceleration from the jackknife; a stratum of one unit has no influence to estimate."""
    n = len(groups)
    blocks, strata = _blocks(groups)
    step = max(1, _CHUNK // n)
    left_out: Floats = np.empty(len(strata))
    for start in range(0, len(strata), step):
        index = np.arange(start, min(start + step, len(strata)))
        left_out[index] = statistic((blocks != index[:, None]).astype(np.float64))
    cubes = squares = 0.0
    for group in np.unique(strata):
        values = left_out[strata == group]
        influence = (len(values) - 1) * (values.mean() - values)
        cubes += float((influence**3).sum()) / len(values) ** 3
        squares += float((influence**2).sum()) / len(values) ** 2
    return cubes / (6 * squares**1.5) if squares > 0 else 0.0


def _blocks(groups: Integers) -> tuple[Integers, Integers]:
    """Return the number of each unit's block (n,), -1 for a stratum of one unit, and the stratum of each block (b,).

    A block is what one value of the jackknife leaves out: one unit, or of many units every so many of a stratum, so
    that the jackknife takes time linear in n. Sums of independent influences have the acceleration of single ones
    (Davison and Hinkley 1997, section 2.7).
    """
    blocks = np.full(len(groups), -1)
    strata: list[int] = []
    for group in np.unique(groups):
        units = np.flatnonzero(groups == group)
        if len(units) > 1:
            count = min(len(units), max(2, -(-_MOST_BLOCKS * len(units) // len(groups))))
            blocks[units] = len(strata) + np.arange(len(units)) % count
            strata += [int(group)] * count
    return blocks, np.array(strata, dtype=np.int64)


def mean_figure(
    name: str,
    values: ArrayLike,
    generator: np.random.Generator,
    *,
    unit: str = "",
    groups: ArrayLike | None = None,
    note: str = "",
    confidence: float = 0.95,
    resamples: int = 2000,
) -> Figure:
    """Return the mean of `values` (n,) with an expanded BCa bootstrap interval.

    Args:
        name: name of the figure.
        values: (n,) finite numbers.
        generator: randomness of the resamples.
        unit: unit of the figure.
        groups: (n,) whole numbers; values of one group are resampled as one unit. Default: each value is its own group.
        note: note for readers.
        confidence: level of the interval.
        resamples: number of resamples.

    Raises:
        UsageError: the vector is empty, or values are not finite.
    """
    numbers = vector(values, name)
    if not np.isfinite(numbers).all():
        raise UsageError(
            name, numbers[~np.isfinite(numbers)][0], "is not finite", "Cap or drop it, and say so."
        )
    labels = np.arange(len(numbers)) if groups is None else integers(groups, "groups", len(numbers))
    _, unit_of = np.unique(labels, return_inverse=True)
    sums, counts = np.bincount(unit_of, numbers), np.bincount(unit_of).astype(np.float64)

    def statistic(weights: Floats) -> Floats:
        return np.asarray(weights @ sums / (weights @ counts))

    interval = bootstrap(
        statistic, len(sums), generator, confidence=confidence, resamples=resamples, expand=True
    )
    figure = Figure(name=name, value=float(numbers.mean()), unit=unit, n=len(sums), note=note)
    if interval is None:
        why = "one item" if len(sums) < 2 else "values that do not vary"
        return replace(figure, note=joined(note, f"no interval: {why}"))
    return replace(figure, **interval._asdict())


def exceedance(reached: int, draws: int) -> float:
    """Return the p-value of a randomisation test, of whose `draws` so many reached the observed value.

    The observation counts as a draw, so P(p <= α) <= α (Phipson and Smyth 2010).
    """
    return (1 + reached) / (1 + draws)


def joined(*notes: str) -> str:
    """Return the notes that are not empty as one."""
    return "; ".join(filter(None, notes))


def unavailable(names: Iterable[str], why: str, unit: str = "") -> list[Figure]:
    """Return figures without a value, for one reason."""
    return [Figure(name=name, value=None, unit=unit, unavailable=why) for name in names]

"""Statistics written anew for the report's numbers: nothing here comes from the code that made them.

Sources are the field's definitions, by NumPy, SciPy and whole numbers: exact intervals and p-values, the BCa bootstrap,
SSIM, the Fréchet distance, and the lower bound of ε from one run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, ndimage, optimize, special, stats

Array = NDArray[Any]
Statistic = Callable[[Array], Array]
"""Maps how often each unit is counted (r, n) to values (r,)."""

DRAWN = 2000
"""Resamples of the report's bootstrap."""


@lru_cache
def exact_interval(k: int, n: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of 95 %."""
    found = stats.binomtest(k, n).proportion_ci(0.95, method="exact")
    return float(found.low), float(found.high)


# -- bootstrap ----------------------------------------------------------------------------------------------------


def mean_of(values: Sequence[float]) -> Statistic:
    """The mean of values (n,), each counted so often."""
    x = np.asarray(values, dtype=float)
    return lambda counts: np.asarray(counts @ x / counts.sum(1))


def auc_of(inside: Array, outside: Array) -> Statistic:
    """The AUC of matched pairs (n,), each counted so often; ties count half."""
    beats = (inside[:, None] > outside[None]) + 0.5 * (inside[:, None] == outside[None])
    return lambda counts: np.asarray(((counts @ beats) * counts).sum(1) / counts.sum(1) ** 2)


def drawn(n: int, draws: np.random.Generator, resamples: int = DRAWN) -> Array:
    """How often each of n units is drawn, a row a resample."""
    rows = draws.integers(n, size=(resamples, n))
    return np.stack([(rows == unit).sum(1) for unit in range(n)], 1).astype(float)


def bca(statistic: Statistic, counts: Array, expand: bool) -> tuple[float, float] | None:
    """Efron's interval of 95 % from resamples (r, n); None where no resample differs.

    `expand` puts √(n / (n - 1)) times Student's quantile in place of the normal one (Hesterberg 2015).
    """
    resamples, n = counts.shape
    point, replicates = float(statistic(np.ones((1, n)))[0]), statistic(counts)
    if n < 2 or float(np.ptp(replicates)) <= 1e-12 * max(1.0, abs(point)):
        return None
    left_out = statistic(1 - np.eye(n))
    influence = left_out.mean() - left_out
    cubes, squares = float((influence**3).sum()), float((influence**2).sum())
    acceleration = cubes / (6 * squares**1.5) if squares > 0 else 0.0
    z = special.stdtrit(n - 1, 0.975) * math.sqrt(n / (n - 1)) if expand else special.ndtri(0.975)
    same = np.isclose(replicates, point, rtol=1e-12, atol=1e-12)
    below = float(np.where(same, 0.5, replicates < point).mean())
    bias = special.ndtri(np.clip(below, 0.5 / resamples, 1 - 0.5 / resamples))
    shifted = bias + np.array([-z, z])
    low, high = np.quantile(replicates, special.ndtr(bias + shifted / (1 - acceleration * shifted)))
    return float(low), float(high)


# -- chance -------------------------------------------------------------------------------------------------------


def auc_p(inside: Array, outside: Array) -> float:
    """P(the sum of members' ranks is as large) where the coin of every matched pair is thrown again; exact."""
    doubled = np.rint(2 * stats.rankdata(np.concatenate([inside, outside]))).astype(int)
    gains = (doubled[: len(inside)] - doubled[len(inside) :]).tolist()
    sums = Counter({0: 1})
    for gain in gains:
        after: Counter[int] = Counter()
        for total, ways in sums.items():
            after[total + gain] += ways
            after[total - gain] += ways
        sums = after
    reached = sum(ways for total, ways in sums.items() if total >= sum(gains))
    return reached / 2 ** len(gains)


def order_p(found: int, members: int, wrong: int, others: int) -> float:
    """P(at most `wrong` non-members among the `found + wrong` first of a random order), in whole numbers."""
    drawn = found + wrong
    ways = sum(math.comb(others, k) * math.comb(members, drawn - k) for k in range(min(wrong, drawn) + 1))
    return ways / math.comb(members + others, drawn)


# -- ε from above -------------------------------------------------------------------------------------------------


@lru_cache
def sampled_gaussians(noise: float, rate: float, steps: int, delta: float) -> float:
    """ε at δ of so many Gaussian releases of Poisson samples, one record added or taken away.

    Privacy losses of one release on a grid of 5e-4, whose law is convolved with itself by FFT (Koskela, Jälkö & Honkela
    2020); the larger ε of both directions. `noise` is the deviation over the sensitivity.
    """
    x = np.linspace(-12 * noise, 1 + 12 * noise, 400_001)
    without = stats.norm.pdf(x, 0, noise)
    mixed = (1 - rate) * without + rate * stats.norm.pdf(x, 1, noise)
    return max(_composed(mixed, without, steps, delta, x), _composed(without, mixed, steps, delta, x))


def _composed(p: Array, q: Array, steps: int, delta: float, x: Array) -> float:
    step, half = 5e-4, 2**17
    mass = p * (x[1] - x[0])
    place = np.rint(np.log(p / q) / step).astype(int) + half
    one = np.bincount(place.clip(0, 2 * half - 1), mass / mass.sum(), minlength=2 * half)
    # A shift by `half` puts a loss of nought first, so that losses add up around the circle.
    law = np.fft.fftshift(np.fft.irfft(np.fft.rfft(np.fft.ifftshift(one)) ** steps, 2 * half))
    losses = (np.arange(2 * half) - half) * step

    def excess(epsilon: float) -> float:
        above = losses > epsilon
        return float((law[above] * -np.expm1(epsilon - losses[above])).sum()) - delta

    return float(optimize.brentq(excess, 0.0, losses[-1]))


# -- ε from below -------------------------------------------------------------------------------------------------


def right_guesses(scores: Array, member: Array, r: int) -> tuple[int, int]:
    """Right ones of r guesses about single coins: all "member", or half "member" and half not; ties at their worst."""
    from_above = sorted(zip(-scores, member, strict=True))
    from_below = sorted(zip(scores, ~member, strict=True))
    half = r // 2
    return (
        sum(bool(m) for _, m in from_above[:r]),
        sum(bool(m) for _, m in from_above[: r - half]) + sum(bool(m) for _, m in from_below[:half]),
    )


def right_pairs(inside: Array, outside: Array, r: int) -> int:
    """Right ones of the r pairs that differ most; ties at their worst."""
    ranked = sorted((-abs(a - b), a > b) for a, b in zip(inside, outside, strict=True))
    return sum(bool(right) for _, right in ranked[:r])


def least_epsilon(right: int, r: int, coins: int, delta: float, alpha: float, pairs: bool) -> float:
    """The ε at which so many right guesses have probability α (Steinke et al. 2023, Theorem 5.2); 0 if chance does.

    Of `pairs` it is that of records added or removed whose (2ε, (1 + e^ε)δ) of records replaced is tested.
    """

    def excess(epsilon: float) -> float:
        wider = (1 + math.exp(epsilon)) * delta if pairs else delta
        return _chance_of(right, r, coins, 2 * epsilon if pairs else epsilon, wider) - alpha

    if right == 0 or excess(0.0) > 0:
        return 0.0
    return float(optimize.bisect(excess, 0.0, 40.0, xtol=1e-10))


def chance_of(right: int, r: int, coins: int, epsilon: float, delta: float, pairs: bool) -> float:
    """The probability of so many right guesses under a claim; of `pairs`, of what it implies for records replaced."""
    if pairs:
        return _chance_of(right, r, coins, 2 * epsilon, (1 + math.exp(epsilon)) * delta) if right else 1.0
    return _chance_of(right, r, coins, epsilon, delta) if right else 1.0


def least_mu(right: int, r: int, coins: int, alpha: float) -> float:
    """The μ at which so many right guesses can have probability α (Mahloujifar et al. 2025); 0 if chance does.

    By the tails P_j of the number of right guesses: (r - j) P_j >= Σ_{i>j} P_i + m f(1 - (j + 1) P_{j+1}/m - …).
    """

    def impossible(mu: float) -> bool:
        tails = np.zeros(r + 2)
        tails[right] = alpha
        for j in range(right - 1, -1, -1):
            above = tails[j + 1 :].sum()
            told = ((j + 1) * tails[j + 1] + tails[j + 2 :].sum()) / coins
            if told >= 1:
                return True
            forced = coins * stats.norm.cdf(stats.norm.ppf(told) - mu)
            tails[j] = max(tails[j + 1], (above + forced) / (r - j))
        return bool(tails[0] > 1)

    low, high = 0.0, 16.0
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if impossible(middle) else (low, middle)
    return low


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at δ of N(0, 1) against N(μ, 1) (Balle & Wang 2018, Theorem 8)."""
    if mu == 0:
        return 0.0

    def excess(epsilon: float) -> float:
        least = stats.norm.cdf(mu / 2 - epsilon / mu)
        return float(least - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu) - delta)

    return 0.0 if excess(0.0) <= 0 else float(optimize.bisect(excess, 0.0, 200.0, xtol=1e-9))


def guesses_needed(epsilon: float, delta: float, alpha: float) -> int:
    """The least number of guesses, all right, at which ε is contradicted."""
    return next(r for r in range(1, 100_000) if _chance_of(r, r, r, epsilon, delta) <= alpha)


def _chance_of(right: int, r: int, coins: int, epsilon: float, delta: float) -> float:
    i = np.arange(1, right + 1)
    tail = stats.binom.sf(np.concatenate([[right - 1], right - 1 - i]), r, 1 / (1 + math.exp(-epsilon)))
    return float(min(1.0, tail[0] + 2 * coins * delta * ((tail[1:] - tail[0]) / i).max()))


# -- images and distributions -------------------------------------------------------------------------------------


@lru_cache
def _window(side: int) -> Array:
    """Gaussian weights (side,) of deviation 1.5 at a side of 11, and in proportion."""
    at = np.arange(side) - side // 2
    weights = np.exp(-0.5 * (at / (1.5 * side / 11)) ** 2)
    return np.asarray(weights / weights.sum())


def ssim(a: Array, b: Array) -> float:
    """Structural similarity of two images (h, w) in [0, 1], averaged over all pixels, borders mirrored.

    The Gaussian window has the largest odd side up to 11 that fits, and a deviation in proportion (1.5 at 11).
    """
    weights = _window(min(11, min(a.shape) - 1 + min(a.shape) % 2))

    def blurred(x: Array) -> Array:
        down = ndimage.correlate1d(x, weights, axis=0, mode="mirror")
        return np.asarray(ndimage.correlate1d(down, weights, axis=1, mode="mirror"))

    mean_a, mean_b = blurred(a), blurred(b)
    var_a, var_b = blurred(a * a) - mean_a**2, blurred(b * b) - mean_b**2
    shared = blurred(a * b) - mean_a * mean_b
    c1, c2 = 0.01**2, 0.03**2
    value = (
        (2 * mean_a * mean_b + c1) * (2 * shared + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    )
    return float(value.mean())


def pairing(guess: Array, truth: Array) -> Array:
    """For each true image (n, h, w) the guess (n, h, w) of the pairing with the least squared error."""
    cost = ((truth[:, None] - guess[None]) ** 2).mean((2, 3))
    return np.asarray(optimize.linear_sum_assignment(cost)[1])


def frechet(a: Array, b: Array) -> float:
    """The squared Fréchet distance of Gaussians fitted to features (n, d) and (m, d), by the root of a covariance."""
    values, vectors = linalg.eigh(np.cov(a.T))
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    between = linalg.eigvalsh(root @ np.cov(b.T) @ root)
    traces = np.trace(np.cov(a.T)) + np.trace(np.cov(b.T))
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + traces - 2 * np.sqrt(between.clip(0)).sum())


def divergences(truth: Sequence[float], guess: Sequence[float]) -> dict[str, float]:
    """KL in nats, each class of both raised by 1e-6; total variation; the largest difference."""
    p, q = (np.asarray(x, dtype=float).clip(0) for x in (truth, guess))
    p, q = p / p.sum(), q / q.sum()
    raised = [(x + 1e-6) / (x + 1e-6).sum() for x in (p, q)]
    return {
        "label_kl": float(stats.entropy(*raised)),
        "label_tv": float(np.abs(p - q).sum() / 2),
        "label_chebyshev": float(np.abs(p - q).max()),
    }

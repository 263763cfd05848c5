"""Exact draws of discrete Laplace and discrete Gaussian noise (Canonne, Kamath & Steinke 2020, Algorithms 1-3).

No draw depends on the rounding of a floating-point number. Given uniform bits, every law below is exactly that of its
formula. A coin of probability p, a ratio of whole numbers, compares p with a uniform number whose bits are drawn as
needed. The first 52 bits decide if a floating-point approximation of p is further from the drawn number than its error.
Otherwise, once in two thousand million coins, exact fractions of Python integers decide, with further bits as needed.
This makes arrays of coins cheap and changes no coin.

Guarantees:
  * coins, and so every draw, are the same for both ways of deciding them;
  * all randomness comes from the given stream.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fdaudit.rng import SecretStream

__all__ = ["LEAST_SCALE", "MOST_SCALE", "discrete_gaussian", "discrete_laplace"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

LEAST_SCALE, MOST_SCALE = 2.0**-10, 2.0**20
"""The approximations stay within the allowed error between these scales."""

_DOUBT = 2.0**-31
"""Largest allowed error of an approximation; the ones used here stay below 2^-35."""
_BITS = 52


def discrete_laplace(scale: float, n: int, stream: SecretStream) -> Ints:
    """Draw n values Y of P[Y = y] ∝ exp(-|y| / scale) on the whole numbers (n,).

    Algorithm 2, with U below m = ceil(scale) and V geometric: U + mV has P ∝ exp(-(U + mV) / scale). The
    floating-point scale is used as an exact fraction.

    Raises:
        ValueError: the scale is not in [2^-10, 2^20].
    """
    return _laplace(_fraction(scale), n, stream)


def _laplace(b: Fraction, n: int, stream: SecretStream) -> Ints:
    m = -(-b.numerator // b.denominator)
    rate = Fraction(m) / b
    out = np.zeros(n, dtype=np.int64)
    todo = np.arange(n)
    while len(todo):
        U = _below(m, len(todo), stream)
        heads = _bernoulli_exp(U / float(b), lambda i, U=U: Fraction(int(U[i])) / b, stream)  # type: ignore[misc]
        U, rows = U[heads], todo[heads]
        # Coins of probability exp(-m/b) until one fails: P[V >= v] = exp(-v · m/b).
        V = np.zeros(len(U), dtype=np.int64)
        running = np.arange(len(U))
        while len(running):
            running = running[_bernoulli_exp(np.full(len(running), float(rate)), lambda _: rate, stream)]
            V[running] += 1
        y = U + m * V
        negative = _below(2, len(U), stream).astype(bool)
        valid = ~(negative & (y == 0))  # zero has one sign
        out[rows[valid]] = np.where(negative, -y, y)[valid]
        todo = np.concatenate([todo[~heads], rows[~valid]])
    return out


def discrete_gaussian(sigma: float, n: int, stream: SecretStream) -> Ints:
    """Draw n values Y of P[Y = y] ∝ exp(-y² / 2σ²) on the whole numbers (n,).

    Algorithm 3: discrete Laplace draws of scale t = floor(σ) + 1, each kept by a coin of probability
    exp(-(|Y| - σ²/t)² / 2σ²). The floating-point σ is used as an exact fraction.

    Raises:
        ValueError: σ is not in [2^-10, 2^20].
    """
    variance = _fraction(sigma) ** 2
    t = int(sigma) + 1
    centre, twice = variance / t, 2 * variance
    out = np.zeros(n, dtype=np.int64)
    todo = np.arange(n)
    while len(todo):
        Y = _laplace(Fraction(t), len(todo), stream)
        gamma = (np.abs(Y) - float(centre)) ** 2 / float(twice)
        # Beyond this no approximation is reliable; the exact ratio decides.
        gamma[np.abs(Y) > 64 * t] = np.nan
        heads = _bernoulli_exp(gamma, lambda i, Y=Y: (abs(int(Y[i])) - centre) ** 2 / twice, stream)  # type: ignore[misc]
        out[todo[heads]] = Y[heads]
        todo = todo[~heads]
    return out


def _fraction(scale: float) -> Fraction:
    if not LEAST_SCALE <= scale <= MOST_SCALE:
        raise ValueError(f"scale = {scale} must lie in [{LEAST_SCALE}, {MOST_SCALE:.0f}].")
    return Fraction(scale)


def _bernoulli_exp(gamma: Floats, exact: Callable[[int], Fraction], stream: SecretStream) -> Flags:
    """Toss coins of probability exp(-γ) for each γ >= 0 (n,): Algorithm 1.

    For any whole p, exp(-γ) is exp(-γ/p)^p. With p >= γ this is p coins of the algorithm's first case.

    Args:
        gamma: approximations of γ (n,), NaN if there is none.
        exact: γ itself by number.
        stream: source of the bits.
    """
    # A whole number that is certainly not below γ, for any error of the approximation.
    parts = np.floor(np.nan_to_num(gamma) + 1e-3).astype(np.int64) + 1
    for i in np.flatnonzero(np.isnan(gamma)):
        parts[i] = int(exact(int(i))) + 1
    heads = np.ones(len(gamma), dtype=np.bool_)
    tosses = np.zeros(len(gamma), dtype=np.int64)
    while len(todo := np.flatnonzero(heads & (tosses < parts))):
        heads[todo] = _bernoulli_exp_below_one(gamma, parts, exact, todo, stream)
        tosses[todo] += 1
    return heads


def _bernoulli_exp_below_one(
    gamma: Floats, parts: Ints, exact: Callable[[int], Fraction], rows: Ints, stream: SecretStream
) -> Flags:
    """Toss coins of probability exp(-γ/p), γ/p <= 1, for the γ and p of `rows` (m,).

    Toss coins of probability (γ/p)/k for k = 1, 2, ... until one fails. The result is 1 if it fails at an odd k.
    """
    odd = np.zeros(len(rows), dtype=np.bool_)
    todo, k = np.arange(len(rows)), 1
    while len(todo):
        at = rows[todo]
        # A coin of probability p compares p bit by bit with a uniform number.
        p = gamma[at] / (parts[at] * k)
        words = np.frombuffer(stream.bytes(8 * len(p)), dtype="<u8") >> np.uint64(64 - _BITS)
        apart = p - (words.astype(np.float64) + 0.5) * 2.0**-_BITS
        heads = apart > 0
        for i in np.flatnonzero(~(np.abs(apart) > _DOUBT)):  # NaN among them
            exact_p = exact(int(at[i])) / (int(parts[at[i]]) * k)
            heads[i] = _surely_below(int(words[i]), exact_p, stream)
        odd[todo[~heads]] = k % 2 == 1
        todo, k = todo[heads], k + 1
    return odd


def _surely_below(word: int, p: Fraction, stream: SecretStream) -> bool:
    """Return whether the uniform number with the first 52 bits `word` is below p; draw further bits as needed."""
    bits = _BITS
    while True:
        reached = p * 2**bits
        if word + 1 <= reached:
            return True
        if word >= reached:
            return False
        word, bits = word << 64 | int.from_bytes(stream.bytes(8), "little"), bits + 64


def _below(m: int, n: int, stream: SecretStream) -> Ints:
    """Draw uniform whole numbers from 0 to m - 1 (n,), m at most 2^32; draw words again that would bias the result."""
    out = np.zeros(n, dtype=np.int64)
    todo = np.arange(n)
    most = np.uint64(2**63 // m * m)
    while len(todo):
        words = np.frombuffer(stream.bytes(8 * len(todo)), dtype="<u8") >> np.uint64(1)
        fits = words < most
        out[todo[fits]] = (words[fits] % np.uint64(m)).astype(np.int64)
        todo = todo[~fits]
    return out

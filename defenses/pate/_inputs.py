"""Checked inputs of the PATE analyses: vote counts, Rényi orders and noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fdaudit.errors import SpecError

__all__ = ["Floats", "Votes", "blocks", "log_mean", "order_array", "other_tails", "scale", "vote_array"]

Floats = NDArray[np.float64]
Votes = NDArray[Any]
"""Counts of any number type."""

_LARGEST = 1e50
"""Noise and orders beyond it, or below its inverse, would overflow; no real use needs them."""
_BLOCK = 2**19
"""Size of a block of intermediate results, in numbers: 4 MB in double precision."""


def vote_array(votes: ArrayLike) -> Votes:
    """Return vote counts (q, C) unchanged, checked block by block.

    Raises:
        SpecError: they are not a matrix of whole numbers from 0 to 2^53 with at least one class.
    """
    try:
        counts = np.asarray(votes)
    except ValueError:  # rows of unlike lengths
        counts = np.asarray("ragged")
    if counts.dtype.kind not in "buif":
        raise SpecError("votes", votes, "is no array of numbers", "Give counts (q, C).")
    if counts.ndim != 2 or not counts.shape[1]:
        raise SpecError("votes", counts.shape, "is not the shape of vote counts", "Give counts (q, C).")
    for rows in blocks(*counts.shape):
        part = counts[rows]
        wrong = ~((part >= 0) & (part <= 2.0**53) & (part == np.floor(part)))
        if wrong.any():
            value = float(part[wrong][0])
            raise SpecError("votes", value, "is no vote count", "Give whole numbers from 0 on.")
    return counts


def other_tails(votes: Votes, log_tail: Callable[[Floats], Floats]) -> Floats:
    """Return the logarithm (n,) of the sum of a tail over the leads of a row's first class, at most log(1 - 1/C).

    Args:
        votes: checked counts (q, C).
        log_tail: logarithm of the probability that a class overtakes the first, by the first's lead in votes.
    """
    q, classes = votes.shape
    log_sums = np.full(q, -np.inf)
    if classes == 1:
        return log_sums
    for rows in blocks(q, classes):
        part = votes[rows].astype(np.float64)
        number, first = np.arange(len(part)), part.argmax(1)
        tails = log_tail(part[number, first][:, None] - part)
        tails[number, first] = -np.inf
        most = tails.max(1)
        log_sums[rows] = most + np.log(np.exp(tails - most[:, None]).sum(1))
    capped: Floats = np.minimum(log_sums, np.log1p(-1 / classes))
    return capped


def order_array(orders: ArrayLike) -> Floats:
    """Return Rényi orders (orders,) as doubles.

    Raises:
        SpecError: they are not a non-empty list of finite numbers above 1.
    """
    alphas = np.asarray(orders, dtype=np.float64)
    if alphas.ndim != 1 or not alphas.size:
        raise SpecError("orders", orders, "is no list of Rényi orders", "Give numbers above 1.")
    wrong = ~((alphas > 1) & (alphas <= _LARGEST))
    if wrong.any():
        raise SpecError("orders", float(alphas[wrong][0]), "is no Rényi order", "Give numbers above 1.")
    return alphas


def scale(field: str, value: float) -> float:
    """Return a positive parameter of the noise, checked.

    Raises:
        SpecError: it is not positive, or too large or small to compute with.
    """
    if not 1 / _LARGEST <= value <= _LARGEST:
        raise SpecError(field, value, "is no scale of noise", "Give a positive number, from 1e-50 to 1e50.")
    return float(value)


def blocks(rows: int, width: int) -> Iterator[slice]:
    """Yield slices that cover `rows` rows of so many numbers, each of a bounded size."""
    step = max(1, _BLOCK // max(width, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def log_mean(log_p: Floats, log_q: Floats, x: Floats, y: Floats) -> Floats:
    """Return log(p e^x + q e^y) for p + q = 1, to full relative precision even if it is almost 0.

    Args:
        log_p: log p, (n, 1).
        log_q: log q, (n, 1).
        x: exponents (n, orders).
        y: exponents (n, orders).
    """
    logs: Floats = np.logaddexp(log_p + x, log_q + y)
    near = np.abs(logs) < 0.5
    excess = np.zeros(int(near.sum()))
    for log_w, z in ((log_p, x), (log_q, y)):
        log_w, z = np.broadcast_to(log_w, z.shape)[near], z[near]
        # w (e^z - 1): here w e^z does not overflow, but e^z may.
        large = np.exp(log_w + np.maximum(z, 1.0)) - np.exp(log_w)
        excess += np.where(z > 1, large, np.exp(log_w) * np.expm1(np.minimum(z, 1.0)))
    logs[near] = np.log1p(excess)
    return logs

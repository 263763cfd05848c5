"""Sensitivity of correlated noise: how far one unit moves C x if it may take part in several steps.

A training releases x + C^-1 z for the sums x of its steps, with Gaussian noise z and a lower-triangular matrix C. That
is a function of C x + z, one Gaussian release. Its sensitivity depends on the steps in which one unit may take part.

Guarantees:
  * the figure is at least the distance for every permitted set of steps and all contributions of norm 1 or less;
  * it is exact if a unit takes part once or twice, if permitted steps share no row of C, or if C^T C has no negative
    entry and steps at least twice the separation apart share no row.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["sensitivity", "toeplitz_sensitivity"]

Values = NDArray[np.float64]

_ROUNDED_UP = 1 + 1e-9


def sensitivity(matrix: ArrayLike, separation: int, participations: int) -> float:
    """Return the largest ||C u|| over the contributions u of one unit.

    A unit takes part in at most `participations` steps, any two of them at least `separation` apart, with a vector of
    norm at most 1 in each (Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Guha Thakurta & Xu 2023, Section 3, "b-min-
    separation"). With one participation this is the largest column norm.

    Args:
        matrix: (n, n) lower triangular, a row and a column for each step.
        separation: in steps, at least 1.
        participations: at least 1.

    Raises:
        ValueError: the matrix is no lower-triangular square, or a number is below 1.
    """
    C = np.asarray(matrix, dtype=np.float64)
    is_square = C.ndim == 2 and C.shape[0] == C.shape[1] > 0
    if not is_square or not np.isfinite(C).all() or np.triu(C, 1).any():
        raise ValueError(f"sensitivity: a matrix of shape {C.shape} is no lower-triangular square.")
    products = np.abs(C.T @ C)
    n = len(C)
    rows, columns = np.nonzero(products)
    farthest = int(np.max(rows - columns, initial=0))
    diagonals = np.zeros((farthest + 1, n))
    for offset in range(farthest + 1):
        diagonals[offset, offset:] = np.diagonal(products, -offset)
    return _largest(diagonals, separation, participations)


@lru_cache(maxsize=256)
def toeplitz_sensitivity(
    coefficients: tuple[float, ...], steps: int, separation: int, participations: int
) -> float:
    """Return `sensitivity` of the matrix with `coefficients` on its diagonal and on the bands below.

    Args:
        coefficients: (b,) the entry on the diagonal first; the rest of the matrix is zero.
        steps: n, number of rows.
        separation: in steps, at least 1.
        participations: at least 1.

    Raises:
        ValueError: there are no coefficients, or a number is below 1.
    """
    if not coefficients or steps < 1:
        raise ValueError("toeplitz_sensitivity: give one coefficient and one step at least.")
    c = np.asarray(coefficients[:steps], dtype=np.float64)
    diagonals = np.zeros((len(c), steps))
    for offset in range(len(c)):
        # Columns i and i - offset share the rows from i on, as many as the matrix has.
        sums = np.cumsum(c[: len(c) - offset] * c[offset:])
        last = np.minimum(len(sums) - 1, steps - 1 - np.arange(offset, steps))
        diagonals[offset, offset:] = np.abs(sums[last])
    return _largest(diagonals, separation, participations)


def _largest(products: Values, separation: int, participations: int) -> float:
    """Return the root of the largest sum of |X_ij| over pairs of permitted steps, or a bound above it.

    The steps are chosen in order. Beside the sum, the search knows the last step j before a step i. Products of i with
    steps before j are bounded by the best permitted choice of such steps.

    Args:
        products: (w, n) |X_(i, i - o)| by offset o and step i; zero for larger offsets.
        separation: in steps.
        participations: the most steps.
    """
    if separation < 1 or participations < 1:
        problem = f"separation = {separation} and participations = {participations} must be 1 or more"
        raise ValueError(f"sensitivity: {problem}.")
    w, n = products.shape
    # By offset: the best choice of steps at this offset or further back.
    earlier = np.zeros((w + separation + 1, n))
    for offset in range(w - 1, 0, -1):
        earlier[offset] = np.maximum(earlier[offset + 1], products[offset] + earlier[offset + separation])
    best = products[0].copy()  # with step i as the last of those chosen
    largest = float(best.max())
    for before in range(min(participations, math.ceil(n / separation)) - 1):
        reached = np.full(n, -math.inf)
        far = max(w, separation)
        if far < n:
            reached[far:] = np.maximum.accumulate(best)[: n - far]
        for offset in range(separation, min(w, n)):
            shared = products[offset]
            if before:  # the last step before i is not the first that was chosen
                shared = shared + earlier[min(offset + separation, w)]
            reached[offset:] = np.maximum(reached[offset:], best[:-offset] + 2 * shared[offset:])
        best = products[0] + reached
        largest = max(largest, float(best.max()))
    return math.sqrt(largest) * _ROUNDED_UP

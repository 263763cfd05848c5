"""Overlap of predicted and true masks, and the distance between their boundaries.

Guarantees:
  * equal masks have a Dice coefficient of 1 and a distance of 0, two empty ones included;
  * Dice and distance are symmetric in the two masks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import Flags, Integers

__all__ = ["dice", "hausdorff_95", "masks_of", "mean_iou"]


def masks_of(predicted: ArrayLike, true: ArrayLike, ndim: int) -> tuple[Integers, Integers]:
    """Return two masks of whole numbers as arrays of one shape.

    Raises:
        UsageError: the shapes differ or are not those of masks, or values are negative or no whole numbers.
    """
    masks = []
    for name, mask in (("predicted", predicted), ("true", true)):
        array = np.asarray(mask)
        if array.ndim != ndim or array.size == 0 or array.dtype.kind not in "biu" or array.min() < 0:
            shape = "(h, w)" if ndim == 2 else "(n, h, w)"
            problem = f"is no mask {shape} of whole numbers from 0 on"
            raise UsageError(name, (array.dtype.name, array.shape), problem, "Give a class for each pixel.")
        masks.append(array.astype(np.int64))
    guess, truth = masks
    if guess.shape != truth.shape:
        problem = f"does not match true masks {truth.shape}"
        raise UsageError("predicted", guess.shape, problem, "Give masks of one shape.")
    return guess, truth


def dice(predicted: ArrayLike, true: ArrayLike) -> float:
    """Return the Dice coefficient 2|A ∩ B| / (|A| + |B|) of one image's masks (h, w), background (0) left out.

    With several classes it is the mean over those that occur in either mask. Two masks of background only have 1.
    """
    guess, truth = masks_of(predicted, true, 2)
    by_class = []
    for c in np.union1d(guess, truth):
        if c:
            a, b = guess == c, truth == c
            by_class.append(2 * (a & b).sum() / (a.sum() + b.sum()))
    return float(np.mean(by_class)) if by_class else 1.0


def mean_iou(predicted: ArrayLike, true: ArrayLike) -> float:
    """Return the mean over classes of |A ∩ B| / |A ∪ B|, counted over the pixels of all masks (n, h, w).

    Background counts as a class. A class that occurs in neither is left out.
    """
    guess, truth = masks_of(predicted, true, 3)
    classes = np.union1d(guess, truth)
    by_class = []
    for c in classes:
        a, b = guess == c, truth == c
        by_class.append((a & b).sum() / (a | b).sum())
    return float(np.mean(by_class))


def hausdorff_95(predicted: ArrayLike, true: ArrayLike) -> float | None:
    """Return HD95 in pixels of one image's masks (h, w): all classes but background (0) together.

    It is the larger of two 95th percentiles: of the distances from each mask's boundary pixels to the nearest boundary
    pixel of the other. The Hausdorff distance of Gong et al. 2023 (FedIOD), Eq. 13, takes the maximum instead. Without
    a pixel in one of the masks there is no distance, unless both are empty: then it is 0.
    """
    from scipy.ndimage import distance_transform_edt

    guess, truth = masks_of(predicted, true, 2)
    guess_edge, true_edge = _boundary(guess > 0), _boundary(truth > 0)
    if not guess_edge.any() or not true_edge.any():
        return 0.0 if guess_edge.any() == true_edge.any() else None
    to_truth = distance_transform_edt(~true_edge)[guess_edge]
    to_guess = distance_transform_edt(~guess_edge)[true_edge]
    return float(max(np.percentile(to_truth, 95), np.percentile(to_guess, 95)))


def _boundary(mask: Flags) -> Flags:
    """Return the pixels of a mask (h, w) with a neighbour outside it above, below, left or right, or off the image."""
    padded = np.pad(mask, 1)
    inside = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    edge: Flags = mask & ~inside
    return edge

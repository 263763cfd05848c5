"""Overlap of predicted and true objects: object-level Dice and the aggregated Jaccard index.

Objects are numbered from 1 in masks (h, w) in which 0 is the background.

Guarantees:
  * equal objects have 1, under any numbering, two masks without objects included;
  * a predicted object that overlaps no true one lowers both figures, and so does a true one that is not found.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fdaudit.metrics._arrays import Floats
from fdaudit.metrics.segmentation.pixels import masks_of

__all__ = ["aggregated_jaccard", "components", "object_dice"]


def components(mask: ArrayLike) -> ArrayLike:
    """Return the number of each pixel's object (h, w): connected pixels of a mask's foreground, side by side."""
    from scipy.ndimage import label

    return np.asarray(label(np.asarray(mask) > 0)[0])


def object_dice(predicted: ArrayLike, true: ArrayLike) -> float:
    """Return the object-level Dice index of two numbered masks (Chen et al. 2016; Sirinukunwattana et al. 2017).

    Each true object is compared with the predicted one that it overlaps most, and each predicted with the true one. The
    Dice coefficients are averaged by the objects' sizes on either side, and the two averages equally.
    """
    both, guessed, true_areas = _overlaps(predicted, true)
    if not guessed.size or not true_areas.size:
        return float(guessed.size == true_areas.size)
    coefficients = 2 * both / (true_areas[:, None] + guessed)
    of_true = coefficients[np.arange(len(true_areas)), both.argmax(1)]
    of_guess = coefficients[both.argmax(0), np.arange(len(guessed))]
    return float((np.average(of_true, weights=true_areas) + np.average(of_guess, weights=guessed)) / 2)


def aggregated_jaccard(predicted: ArrayLike, true: ArrayLike) -> float:
    """Return the aggregated Jaccard index AJI of two numbered masks (Kumar et al. 2017, Algorithm 1).

    Each true object is matched with the predicted one of the largest Jaccard index. The sum of their intersections is
    divided by the sum of their unions and of all predicted objects that were never matched.
    """
    both, guessed, true_areas = _overlaps(predicted, true)
    if not guessed.size or not true_areas.size:
        return float(guessed.size == true_areas.size)
    either = true_areas[:, None] + guessed - both
    best = (both / either).argmax(1)
    rows = np.arange(len(true_areas))
    overlaps = both[rows, best] > 0
    shared = both[rows, best].sum()
    spanned = np.where(overlaps, either[rows, best], true_areas).sum()
    missed = np.setdiff1d(np.arange(len(guessed)), best[overlaps])
    return float(shared / (spanned + guessed[missed].sum()))


def _overlaps(predicted: ArrayLike, true: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Return the pixels shared by each true and predicted object (t, p), and the objects' sizes (p,) and (t,)."""
    guess, truth = masks_of(predicted, true, 2)
    codes = []
    for mask in (guess, truth):
        # A zero in front makes the background the first number, also of a mask that has none.
        numbers, code = np.unique(np.append(0, mask), return_inverse=True)
        codes.append((code[1:], len(numbers)))
    (g, m), (t, n) = codes
    table = np.bincount(t * m + g, minlength=n * m).reshape(n, m).astype(np.float64)
    return table[1:, 1:], table[:, 1:].sum(0), table[1:].sum(1)

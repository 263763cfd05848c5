"""Utility of a segmentation model on test records: the mean Dice coefficient with its interval, and its companions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import Floats
from fdaudit.metrics.intervals import logit_interval
from fdaudit.metrics.segmentation.objects import aggregated_jaccard, components, object_dice
from fdaudit.metrics.segmentation.pixels import dice, hausdorff_95, masks_of, mean_iou
from fdaudit.types import Figure

__all__ = ["DICE_METHOD", "SegmentationScore", "constant_dice", "mean_dice_figure", "score_masks"]

DICE_METHOD = "Student's t on the logit scale, by picture"
"""Name of the method for the interval of the mean Dice coefficient."""
_SAME = 1e-12
_CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class SegmentationScore:
    """Figures of one model on test masks.

    Attributes:
        dice: mean over images of the Dice coefficient, with its interval.
        mean_iou: mean intersection over union of the classes, over all pixels.
        object_dice: mean over images.
        aji: mean over images.
        hd95: mean over the images that have one, in pixels; None if none has.
    """

    dice: Figure
    mean_iou: float
    object_dice: float
    aji: float
    hd95: float | None


def score_masks(
    predicted: ArrayLike,
    true: ArrayLike,
    *,
    objects: ArrayLike | None = None,
    pictures: ArrayLike | None = None,
) -> SegmentationScore:
    """Return the figures of predicted masks.

    A predicted object is a connected part of the predicted foreground.

    Args:
        predicted: (n, h, w) predicted classes.
        true: (n, h, w) true classes.
        objects: (n, h, w) numbers of the true objects; default: connected parts of the true foreground.
        pictures: (n,) the picture that each image was cut from; default: every image is one.

    Raises:
        UsageError: shapes differ, or values are no classes.
    """
    guess, truth = masks_of(predicted, true, 3)
    true_objects = list(map(components, truth)) if objects is None else list(np.asarray(objects))
    of_pixels, of_objects, jaccard, distances = [], [], [], []
    for guessed, mask, numbered in zip(guess, truth, true_objects, strict=True):
        parts = components(guessed)
        of_pixels.append(dice(guessed, mask))
        of_objects.append(object_dice(parts, numbered))
        jaccard.append(aggregated_jaccard(parts, numbered))
        distance = hausdorff_95(guessed, mask)
        if distance is not None:
            distances.append(distance)
    return SegmentationScore(
        dice=mean_dice_figure(np.array(of_pixels), pictures),
        mean_iou=mean_iou(guess, truth),
        object_dice=float(np.mean(of_objects)),
        aji=float(np.mean(jaccard)),
        hd95=float(np.mean(distances)) if distances else None,
    )


def mean_dice_figure(by_image: Floats, pictures: ArrayLike | None = None) -> Figure:
    """Return the mean of Dice coefficients (n,) with an interval over pictures.

    Images of one picture are alike, so the error of the mean is summed by picture. If all pictures have the same error,
    or there is only one, there is no interval.

    Raises:
        UsageError: there is no coefficient, or not one picture for each.
    """
    from scipy.stats import t

    n = len(by_image)
    picture = np.arange(n) if pictures is None else np.asarray(pictures)
    if not n or picture.shape != (n,):
        problem = f"has shape {picture.shape} for {n} images"
        raise UsageError("pictures", picture.shape, problem, "Give at least one image, and each its picture.")
    value = float(by_image.mean())
    groups = np.unique(picture, return_inverse=True)[1]
    errors = np.bincount(groups, weights=(by_image - value) / n)
    many = len(errors)
    figure = Figure(name="dice", value=value, unit="fraction", n=n)
    error = float(np.sqrt(np.square(errors).sum() * many / max(many - 1, 1)))
    if many < 2 or error < _SAME or not 0 < value < 1:
        return figure
    reach = float(t.ppf(0.5 + _CONFIDENCE / 2, many - 1))
    interval = logit_interval(value, error, reach, _CONFIDENCE, DICE_METHOD)
    return replace(figure, **interval._asdict())


def constant_dice(true: ArrayLike) -> float:
    """Return the larger mean Dice coefficient of two constant answers: all background, or all of one class.

    Args:
        true: (n, h, w) true classes.
    """
    _, truth = masks_of(true, true, 3)
    means = []
    for c in {0, *np.unique(truth).tolist()}:
        answer = np.full(truth.shape[1:], c)
        by_image = [dice(answer, mask) for mask in truth]
        means.append(float(np.mean(by_image)))
    return max(means)

"""What was learnt of several labels a record: the mean area under the ROC curve over the classes (mAUC), and macro-F1.

True labels are (n, C): 1 where a class occurs, 0 where it does not, -1 where nobody knows.

Guarantees:
  * an unknown label takes no part in any figure;
  * a class of which only one answer is known (no positive, or no negative) has no area: it is left out of the
    mean and counted as left out;
  * both figures equal scikit-learn's where nothing is unknown and no class is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import Flags, Floats, Integers, matrix
from fdaudit.metrics.intervals import bootstrap
from fdaudit.metrics.ranking import WeightedAuc
from fdaudit.types import Figure

__all__ = ["MeanAuc", "mean_auc", "mean_auc_figure", "multilabel_macro_f1"]


@dataclass(frozen=True, kw_only=True)
class MeanAuc:
    """Mean AUC over classes.

    Attributes:
        value: the mean.
        by_class: AUC of every class that counts, by its number.
        left_out: classes with only one known answer.
    """

    value: float
    by_class: dict[int, float]
    left_out: tuple[int, ...]


def mean_auc(scores: Any, true: Any) -> MeanAuc:
    """Mean over classes of the area under the ROC curve, ties counting half.

    Args:
        scores: (n, C), higher for "occurs"; logits and probabilities give the same.
        true: (n, C) of -1, 0 and 1.

    Raises:
        UsageError: shapes that differ, a NaN score, other labels, or no class with both answers.
    """
    values, truth = _checked(scores, true)
    curves = _curves(values, truth)
    one = np.ones((1, len(values)))
    by_class = {c: float(curve(one)[0]) for c, curve in curves.items()}
    left_out = tuple(c for c in range(truth.shape[1]) if c not in curves)
    return MeanAuc(value=float(np.mean(list(by_class.values()))), by_class=by_class, left_out=left_out)


def mean_auc_figure(
    scores: Any,
    true: Any,
    generator: np.random.Generator,
    *,
    confidence: float = 0.95,
    resamples: int = 500,
) -> Figure:
    """mAUC with a percentile bootstrap interval over records; a class that a resample loses is left out of it.

    Raises:
        UsageError: as `mean_auc`.
    """
    values, truth = _checked(scores, true)
    found = mean_auc(values, truth)
    curves = list(_curves(values, truth).values())

    def statistic(weights: Floats) -> Floats:
        table = np.stack([curve(weights) for curve in curves])
        # A resample that lost every class of both answers falls back on no information: half.
        counted = np.isfinite(table).sum(0)
        return np.asarray(np.where(counted, np.nansum(table, 0) / np.maximum(counted, 1), 0.5))

    interval = bootstrap(
        statistic, len(values), generator, resamples=resamples, confidence=confidence, method="percentile"
    )
    note = f"mean over {len(curves)} of {truth.shape[1]} classes" if found.left_out else ""
    return Figure(
        name="mean_auc",
        value=found.value,
        unit="fraction",
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        confidence=None if interval is None else interval.confidence,
        method="" if interval is None else interval.method,
        n=len(values),
        note=note,
    )


def multilabel_macro_f1(predicted: Any, true: Any) -> float:
    """Unweighted mean, over the classes that occur in either, of the F1 of "occurs" among known labels.

    Args:
        predicted: (n, C) of 0 and 1.
        true: (n, C) of -1, 0 and 1.

    Raises:
        UsageError: shapes that differ, or other labels.
    """
    guess, truth = _checked(predicted, true)
    known, says, occurs = truth >= 0, guess > 0, truth == 1
    right = (says & occurs).sum(0)
    either = (says & known).sum(0) + occurs.sum(0)
    if not either.any():
        return 0.0
    return float((2 * right[either > 0] / either[either > 0]).mean())


class _KnownAuc:
    """AUC of one class among the records whose label is known, as a function of weights (r, n) -> (r,)."""

    def __init__(self, values: Floats, truth: Integers) -> None:
        self._known: Flags = truth >= 0
        self._auc = WeightedAuc(values[self._known], truth[self._known] == 1)

    def __call__(self, weights: Floats) -> Floats:
        with np.errstate(invalid="ignore"):  # 0 / 0 where a resample holds one answer only: NaN, left out
            return self._auc(weights[:, self._known])


def _curves(values: Floats, truth: Integers) -> dict[int, _KnownAuc]:
    both = (truth == 1).any(0) & (truth == 0).any(0)
    if not both.any():
        raise UsageError(
            "true", truth.shape, "has no class with both answers", "Evaluate on records of both kinds."
        )
    return {int(c): _KnownAuc(values[:, c], truth[:, c]) for c in np.flatnonzero(both)}


def _checked(scores: Any, true: Any) -> tuple[Floats, Integers]:
    truth = matrix(true, "true")
    if not np.isin(truth, (-1, 0, 1)).all():
        raise UsageError("true", true, "holds something other than -1, 0 and 1", "Give multi-hot labels.")
    values = matrix(scores, "scores")
    if values.shape != truth.shape:
        raise UsageError("scores", values.shape, f"does not match labels {truth.shape}", "Give one a label.")
    return values, truth.astype(np.int64)

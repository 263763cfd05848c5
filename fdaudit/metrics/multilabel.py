"""Utility of multi-label models: the mean area under the ROC curve over the classes (mAUC), and macro-F1.

True labels are (n, C): 1 if a class occurs, 0 if it does not, -1 if unknown.

Guarantees:
  * an unknown label takes no part in any figure;
  * a class with only one known answer (no positive, or no negative) has no area: it is left out of the mean and counted
    as left out;
  * both figures equal scikit-learn's if nothing is unknown and no class is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import Floats, Integers, matrix, probability
from fdaudit.metrics.intervals import logit_interval
from fdaudit.types import Figure

__all__ = ["MEAN_AUC_METHOD", "MeanAuc", "mean_auc", "mean_auc_figure", "multilabel_macro_f1"]

MEAN_AUC_METHOD = "DeLong, logit scale"
"""Name of the method for the interval of mAUC."""

_SAME = 1e-12
"""A standard error below this is rounding."""


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


def mean_auc(scores: ArrayLike, true: ArrayLike) -> MeanAuc:
    """Return the mean over classes of the area under the ROC curve; ties count half.

    Args:
        scores: (n, C), higher for "occurs"; logits and probabilities give the same.
        true: (n, C) of -1, 0 and 1.

    Raises:
        UsageError: shapes differ, a score is NaN, labels have other values, or no class has both answers.
    """
    return _measured(*_checked(scores, true))[0]


def mean_auc_figure(scores: ArrayLike, true: ArrayLike, *, confidence: float = 0.95) -> Figure:
    """Return mAUC with an interval over records, valid for every dependence between the classes of one record.

    The standard error is that of DeLong, DeLong and Clarke-Pearson ("Comparing the areas under two or more correlated
    receiver operating characteristic curves", Biometrics 44 (1988)), summed by record over the classes. The interval is
    normal on the logit scale, so its ends are in (0, 1). If scores separate all records, or none, there is no interval
    instead of one of width zero.

    Raises:
        UsageError: as `mean_auc`, or the confidence is outside (0, 1).
    """
    from scipy.special import ndtri

    mean, influence = _measured(*_checked(scores, true))
    total = len(mean.by_class) + len(mean.left_out)
    note = f"mean over {len(mean.by_class)} of {total} classes" if mean.left_out else ""
    figure = Figure(name="mean_auc", value=mean.value, unit="fraction", n=len(influence), note=note)
    error = float(np.sqrt(np.square(influence).sum()))
    if error <= _SAME or not 0 < mean.value < 1:
        return figure
    reach = ndtri(0.5 + probability(confidence, "confidence") / 2)
    interval = logit_interval(mean.value, error, reach, confidence, MEAN_AUC_METHOD)
    return replace(figure, **interval._asdict())


def multilabel_macro_f1(predicted: ArrayLike, true: ArrayLike) -> float:
    """Return the unweighted mean, over the classes that occur in either, of the F1 of "occurs" among known labels.

    Args:
        predicted: (n, C) of 0 and 1.
        true: (n, C) of -1, 0 and 1.

    Raises:
        UsageError: shapes differ, or labels have other values.
    """
    guess, truth = _checked(predicted, true)
    labelled, says, occurs = truth >= 0, guess > 0, truth == 1
    right = (says & occurs).sum(0)
    either = (says & labelled).sum(0) + occurs.sum(0)
    if not either.any():
        return 0.0
    return float((2 * right[either > 0] / either[either > 0]).mean())


def _measured(values: Floats, truth: Integers) -> tuple[MeanAuc, Floats]:
    """Return mAUC, and the influence of each record (n,) on it: squares of these sum to its variance.

    A record's placement is the share of the other kind that it is correctly ordered with. The AUC is its mean over
    either kind (DeLong 1988, V10 and V01).
    """
    from scipy.stats import rankdata

    both = (truth == 1).any(0) & (truth == 0).any(0)
    if not both.any():
        raise UsageError(
            "true", truth.shape, "has no class with both answers", "Evaluate on records of both kinds."
        )
    by_class, influence = {}, np.zeros(len(values))
    for c in np.flatnonzero(both).tolist():
        positive, negative = np.flatnonzero(truth[:, c] == 1), np.flatnonzero(truth[:, c] == 0)
        of_positive, of_negative = values[positive, c], values[negative, c]
        among_all = rankdata(np.concatenate([of_positive, of_negative]))
        # A rank among all less the rank among the own kind counts the records of the other kind below.
        beaten = (among_all[: len(positive)] - rankdata(of_positive)) / len(negative)
        beaten_by = 1 - (among_all[len(positive) :] - rankdata(of_negative)) / len(positive)
        for rows, placement in ((positive, beaten), (negative, beaten_by)):
            # One record of a kind has no spread: DeLong's estimate is undefined for it.
            influence[rows] += (placement - placement.mean()) / np.sqrt(len(rows) * max(len(rows) - 1, 1))
        by_class[c] = float(beaten_by.mean())
    left_out = tuple(map(int, np.flatnonzero(~both)))
    value = float(np.mean(list(by_class.values())))
    return MeanAuc(value=value, by_class=by_class, left_out=left_out), influence / len(by_class)


def _checked(scores: ArrayLike, true: ArrayLike) -> tuple[Floats, Integers]:
    truth = matrix(true, "true")
    if not np.isin(truth, (-1, 0, 1)).all():
        raise UsageError("true", true, "holds something other than -1, 0 and 1", "Give multi-hot labels.")
    values = matrix(scores, "scores")
    if values.shape != truth.shape:
        raise UsageError("scores", values.shape, f"does not match labels {truth.shape}", "Give one a label.")
    return values, truth.astype(np.int64)

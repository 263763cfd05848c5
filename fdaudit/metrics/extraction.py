"""Agreement of a copied model with the original, compared with baselines that saw no answer of the original.

Guarantees:
  * agreement and accuracy carry Clopper-Pearson intervals;
  * the copy and the baseline are compared on the same records, by McNemar's exact test: only records count on which
    exactly one of them agrees with the model;
  * the stronger of two baselines counts: a model that never saw an answer, and the model's own most frequent class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from fdaudit.metrics._arrays import Flags, integers
from fdaudit.metrics.intervals import clopper_pearson, share_figure
from fdaudit.metrics.utility import accuracy_figure
from fdaudit.types import Figure

__all__ = ["score_extraction"]


def score_extraction(
    copied: ArrayLike, model: ArrayLike, baseline: ArrayLike, true: ArrayLike, *, confidence: float = 0.95
) -> Mapping[str, Figure]:
    """Return the figures that compare a copy with the model, by name.

    Args:
        copied: (n,) classes that the copy predicts, for records that trained neither model.
        model: (n,) classes that the model predicts.
        baseline: (n,) classes predicted by a model that saw no answer.
        true: (n,) labels.
        confidence: of the intervals.

    Returns:
        `agreement` of the copy with the model, `agreement_baseline`, `agreement_gain` (their difference, with p of
        McNemar's one-sided test), `accuracy` of the copy and `accuracy_model`.

    Raises:
        UsageError: no record, or lengths that differ.
    """
    answers = integers(model, "model")
    n = len(answers)
    same = integers(copied, "copied", len(answers)) == answers
    constant = answers == np.bincount(answers).argmax()
    trained = integers(baseline, "baseline", len(answers)) == answers
    other, name = constant, "the most frequent class"
    if trained.sum() >= constant.sum():
        other, name = trained, "a model fitted to auxiliary records"
    figures = {
        "agreement": share_figure("agreement", int(same.sum()), n, confidence),
        "agreement_baseline": share_figure(
            "agreement_baseline", int(other.sum()), n, confidence, note=f"of {name}"
        ),
        "agreement_gain": _gain(same, other, confidence, name),
        "accuracy": accuracy_figure(copied, true, confidence=confidence),
    }
    figures["accuracy_model"] = replace(
        accuracy_figure(answers, true, confidence=confidence), name="accuracy_model"
    )
    return figures


def _gain(same: Flags, other: Flags, confidence: float, name: str) -> Figure:
    """Return the difference of two shares of the same records, with the interval from the discordant records."""
    from scipy.stats import binom

    n, better, worse = len(same), int((same & ~other).sum()), int((other & ~same).sum())
    apart = better + worse
    low, high = 0.0, 0.0
    if apart:
        interval = clopper_pearson(better, apart, confidence)
        low, high = ((2 * end - 1) * apart / n for end in (interval.low, interval.high))
    return Figure(
        name="agreement_gain",
        value=(better - worse) / n,
        unit="fraction",
        low=low,
        high=high,
        confidence=confidence,
        method="Clopper-Pearson on discordant records",
        n=n,
        note=f"over {name}; they differ on {apart} records",
        p=float(binom.sf(better - 1, apart, 0.5)) if apart else 1.0,
    )

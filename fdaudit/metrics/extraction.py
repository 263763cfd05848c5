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
    same = integers(copied, "copied", n) == answers
    constant = answers == np.bincount(answers).argmax()
    trained = integers(baseline, "baseline", n) == answers
    other, name = constant, "the most frequent class"
    if trained.sum() >= constant.sum():
        other, name = trained, "a model fitted to auxiliary records"
    of_model = accuracy_figure(answers, true, confidence=confidence)
    figures = (
        share_figure("agreement", int(same.sum()), n, confidence),
        share_figure("agreement_baseline", int(other.sum()), n, confidence, note=f"of {name}"),
        _gain(same, other, confidence, name),
        accuracy_figure(copied, true, confidence=confidence),
        replace(of_model, name="accuracy_model"),
    )
    return {figure.name: figure for figure in figures}


def _gain(same: Flags, other: Flags, confidence: float, name: str) -> Figure:
    """Return the difference of two shares of the same records, with the interval from the discordant records."""
    from scipy.stats import binom

    n = len(same)
    better = int((same & ~other).sum())
    worse = int((other & ~same).sum())
    apart = better + worse
    low, high, p = 0.0, 0.0, 1.0
    if apart:
        # The difference is (2 q - 1) apart / n for the share q of discordant records on which the copy agrees.
        interval = clopper_pearson(better, apart, confidence)
        low = (2 * interval.low - 1) * apart / n
        high = (2 * interval.high - 1) * apart / n
        p = float(binom.sf(better - 1, apart, 0.5))
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
        p=p,
    )

"""Membership scores of one attack on one target, as figures with intervals.

Guarantees:
  * resampling units are whole matched pairs if `pair` is given, else members and non-members separately;
  * perfect separation still gets an interval of positive width;
  * an AUC and a TPR carry the p-value against uninformative scores;
  * an FPR that the data cannot resolve yields a figure that says so, never a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics import ranking
from fdaudit.metrics._arrays import Flags, Floats, Integers
from fdaudit.metrics.chance import auc_p_value, tpr_p_value
from fdaudit.metrics.intervals import bootstrap, clopper_pearson, joined, share_figure
from fdaudit.metrics.ranking import RocCurve, roc_curve
from fdaudit.types import Figure

__all__ = [
    "FPRS",
    "MembershipScore",
    "auc_figure",
    "balanced_accuracy_figure",
    "fpr_name",
    "pair_accuracy_figure",
    "score_membership",
    "tpr_at_fpr_figure",
]

FPRS = (0.1, 0.01, 0.001)
"""False-positive rates reported by default."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MembershipScore:
    """The figures by name, and the ROC curve behind them."""

    figures: Mapping[str, Figure]
    roc: RocCurve


def auc_figure(
    scores: ArrayLike,
    member: ArrayLike,
    generator: np.random.Generator,
    *,
    pair: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Figure:
    """Return the AUC with a BCa bootstrap interval over pairs if given, else over members and non-members separately.

    Raises:
        UsageError: as `auc`; or `pair` does not match one member with one non-member.
    """
    values, truth = ranking.checked(scores, member)
    statistic = ranking.WeightedAuc(values, truth)
    units = None if pair is None else ranking.checked_pairs(pair, truth)
    figure = _resampled("auc", statistic, truth, units, generator, confidence)
    return replace(figure, p=auc_p_value(values, truth, pair=pair))


def _resampled(
    name: str,
    statistic: Callable[[Floats], Floats],
    truth: Flags,
    units: Integers | None,
    generator: np.random.Generator,
    confidence: float,
    note: str = "",
) -> Figure:
    """Return a figure in [0, 1] of a statistic of candidate weights, with an interval even at 0 and 1."""
    value = float(statistic(np.ones((1, len(truth))))[0])
    if units is None:
        n, fewer = len(truth), int(min(truth.sum(), (~truth).sum()))
        interval = bootstrap(statistic, n, generator, strata=truth.astype(np.int64), confidence=confidence)
        unit = "candidates"
    else:
        n = fewer = int(units.max()) + 1
        interval = bootstrap(
            lambda weights: statistic(weights[:, units]), n, generator, confidence=confidence
        )
        unit = "pairs"
    if value in (0.0, 1.0):
        # All resamples are equal, but the mean is uncertain: numbers in [0, 1] with mean μ are all 1 with probability
        # at most μ^n. So Clopper-Pearson's limit for n successes out of n holds for them too.
        interval = clopper_pearson(fewer if value == 1 else 0, fewer, confidence)
        note = joined(note, f"at its limit: exact interval from {fewer} disjoint comparisons")
    note = joined(f"n counts {unit}", note)
    figure = Figure(name=name, value=value, unit="fraction", n=n, note=note)
    if interval is None:
        return replace(figure, note=joined(note, "no interval"))
    return replace(figure, **interval._asdict())


def fpr_name(fpr: float) -> str:
    """Return the name of the TPR at this FPR: `tpr_at_1fpr` at one per cent."""
    return f"tpr_at_{100 * fpr:g}fpr"


def tpr_at_fpr_figure(
    scores: ArrayLike, member: ArrayLike, fpr: float, *, confidence: float = 0.95
) -> Figure:
    """Return the TPR at an FPR with a Clopper-Pearson interval; unavailable if the non-members cannot resolve the FPR.

    The interval is that of the TPR at the chosen threshold. The note gives the precision of the threshold's FPR.

    Raises:
        UsageError: as `auc`, or `fpr` outside (0, 1].
    """
    values, truth = ranking.checked(scores, member)
    n, others = int(truth.sum()), int((~truth).sum())
    if not 0 < fpr <= 1:
        raise UsageError("fpr", fpr, "is not in (0, 1]", "Give for example 0.01.")
    try:
        detected = ranking.detected(values, truth, fpr)
    except UsageError as refusal:
        return Figure(name=fpr_name(fpr), value=None, unit="fraction", n=n, unavailable=str(refusal))
    k, wrong = int(detected[truth].sum()), int(detected[~truth].sum())
    around = clopper_pearson(wrong, others, confidence)
    note = (
        f"n counts members; {wrong} of {others} non-members detected, so the threshold's own FPR is "
        f"between {around.low:.2g} and {around.high:.2g}"
    )
    p = tpr_p_value(k, n, wrong, others)
    return share_figure(fpr_name(fpr), k, n, confidence, note=note, p=p)


def pair_accuracy_figure(
    scores: ArrayLike, member: ArrayLike, pair: ArrayLike, *, confidence: float = 0.95
) -> Figure:
    """Return the pair accuracy with a Clopper-Pearson interval; chance is 1/2 for all scores.

    Half of the ties count as right. An odd tie counts as wrong for the lower end and as right for the upper end.

    Raises:
        UsageError: as `pair_accuracy`.
    """
    wins, ties, n = ranking.choices(scores, member, pair)
    low = clopper_pearson(wins + ties // 2, n, confidence).low
    high = clopper_pearson(wins + (ties + 1) // 2, n, confidence).high
    note = "n counts pairs"
    if ties:
        note += f"; {ties} ties, each half right"
    return Figure(
        name="pair_accuracy",
        value=(wins + ties / 2) / n,
        unit="fraction",
        low=low,
        high=high,
        confidence=confidence,
        method="clopper-pearson",
        n=n,
        note=note,
    )


def balanced_accuracy_figure(
    scores: ArrayLike,
    member: ArrayLike,
    generator: np.random.Generator,
    *,
    pair: ArrayLike | None = None,
    confidence: float = 0.95,
) -> Figure:
    """Return the balanced accuracy with a BCa bootstrap interval over the decisions, for fixed thresholds.

    Raises:
        UsageError: as `auc`; or `pair` does not match one member with one non-member.
    """
    values, truth = ranking.checked(scores, member)
    units = None if pair is None else ranking.checked_pairs(pair, truth)
    try:
        right = ranking.cross_decided(values, truth, generator, units)
    except UsageError as refusal:
        return Figure(name="balanced_accuracy", value=None, unit="fraction", unavailable=str(refusal))

    def statistic(weights: Floats) -> Floats:
        inside, outside = weights[:, truth], weights[:, ~truth]
        tpr = inside @ right[truth] / inside.sum(1)
        tnr = outside @ right[~truth] / outside.sum(1)
        return np.asarray((tpr + tnr) / 2)

    note = "threshold of each half chosen on the other"
    return _resampled("balanced_accuracy", statistic, truth, units, generator, confidence, note)


def score_membership(
    scores: ArrayLike,
    member: ArrayLike,
    *,
    generator: np.random.Generator,
    pair: ArrayLike | None = None,
    fprs: Sequence[float] = FPRS,
    confidence: float = 0.95,
) -> MembershipScore:
    """Return AUC, balanced accuracy, pair accuracy and TPR at low FPR of one attack on one target.

    Args:
        scores: (n,), higher for "member".
        member: (n,) booleans.
        generator: randomness of bootstrap resamples and the halves of balanced accuracy.
        pair: (n,) number of the matched pair of each candidate; leave out if each candidate had its own coin.
        fprs: false-positive rates to report.
        confidence: level of every interval.

    Returns:
        Figures `auc`, `balanced_accuracy`, `pair_accuracy` (with `pair`) and `tpr_at_10fpr`, `tpr_at_1fpr`,
        `tpr_at_0.1fpr` (an FPR that cannot be resolved is unavailable with its reason), and the ROC curve.

    Raises:
        UsageError: as `auc`; or `pair` does not match one member with one non-member.
    """
    figures = [
        auc_figure(scores, member, generator, pair=pair, confidence=confidence),
        balanced_accuracy_figure(scores, member, generator, pair=pair, confidence=confidence),
    ]
    if pair is not None:
        figures.append(pair_accuracy_figure(scores, member, pair, confidence=confidence))
    figures += [tpr_at_fpr_figure(scores, member, fpr, confidence=confidence) for fpr in fprs]
    return MembershipScore(figures={f.name: f for f in figures}, roc=roc_curve(scores, member))

"""Verdicts and remedies where members were told from others."""

from __future__ import annotations

from fdaudit.goals.membership import GOAL
from fdaudit.result import Cell, Remedy
from fdaudit.types import Figure

from ..text import amount, measure, p_value
from .remedy import LABELS_NO_REMEDY, NOT_BY_THE_RECEIVER, ONLY_A_BOUND
from .rule import (
    FAMILY_LEVEL,
    PublicRounding,
    Rule,
    RuleInput,
    WorstRecord,
    above,
    against_guessing,
    beats,
    bounded,
    by_name,
    lower_end,
    surely,
    true_positive_rates,
)

__all__ = ["RULE"]

AUC_STRONG = 0.7
"""Area under the ROC curve above which membership counts as a leak, not a partial one."""

TPR_MARGIN = 2.0
"""Without a p-value, a true-positive rate's interval must exceed this multiple of the false-positive rate to count: the
threshold's own false-positive rate is estimated from few non-members.
"""

TPR_STRONG = 5.0
"""Multiple of the false-positive rate above which membership counts as a leak."""

_COINS = 4
"""Least number of coins that must change to move a public AUC by one step."""

_TURN = 2.0
"""Largest move of an AUC by one coin of n, times n: a member and its partner swap the first and the last rank."""

AUC_CERTAIN = 0.95
"""Lower end of an AUC's interval from which it is all but certain who is a member."""


def _signal(evidence: RuleInput) -> str:
    auc = by_name(evidence.figures, "auc")
    if (blind := by_name(evidence.figures, "auc_blind")) is not None:
        return _beyond_blind(auc, blind)
    if auc is not None and beats(auc, 0.5, 0.5, evidence):
        if auc.p is None:
            return lower_end(auc, "0.5")
        return f"the AUC, {measure(auc, auc.value or 0.0)}, lies above 0.5{against_guessing(auc, evidence)}"
    pair = _rate_above_chance(evidence)
    if pair is None:
        return ""
    figure, rate = pair
    if figure.p is None:
        low, bound = (amount(v, "fraction") for v in (figure.low or 0.0, TPR_MARGIN * rate))
        return (
            f"the lower end of the true-positive rate, {low}, lies above {bound}, "
            f"{TPR_MARGIN:.0f} times the false-positive rate"
        )
    value, chance = amount(figure.value or 0.0, "fraction"), amount(rate, "fraction")
    return f"the true-positive rate, {value}, lies above {chance}{against_guessing(figure, evidence)}"


def _rate_above_chance(evidence: RuleInput) -> tuple[Figure, float] | None:
    """Return the first true-positive rate that is significantly above its false-positive rate, with the latter."""
    for figure, rate in true_positive_rates(evidence.figures):
        if beats(figure, rate, TPR_MARGIN * rate, evidence):
            return figure, rate
    return None


def _beyond_blind(auc: Figure | None, blind: Figure) -> str:
    """Return a clause if an AUC's interval is above that of a baseline that sees no message; else empty."""
    bound = max(0.5, blind.high if blind.high is not None else 1.0)
    if not above(auc, bound) or auc is None:
        return ""
    clause = f"the interval of the AUC, from {measure(auc, auc.low or 0.0)}, lies above a blind baseline's"
    return (
        f"{clause}, up to {measure(blind, bound)}; no coins decided who is a member, so chance is not bounded"
    )


def _strong(evidence: RuleInput) -> bool:
    auc = by_name(evidence.figures, "auc")
    if (blind := by_name(evidence.figures, "auc_blind")) is not None:
        return bool(_beyond_blind(auc, blind)) and auc is not None and (auc.value or 0.0) >= AUC_STRONG
    if auc is not None and (auc.value or 0.0) >= AUC_STRONG and beats(auc, 0.5, 0.5, evidence):
        return True
    return any(
        (figure.value or 0.0) >= TPR_STRONG * rate and beats(figure, rate, rate, evidence)
        for figure, rate in true_positive_rates(evidence.figures)
    )


def _rate_instead(evidence: RuleInput, auc: Figure) -> str | None:
    """Return the rate that decided, where the AUC alone would not have; nothing if no coins decided who is a member."""
    if by_name(evidence.figures, "auc_blind") is not None:
        return ""
    if beats(auc, 0.5, 0.5, evidence):
        return None
    pair = _rate_above_chance(evidence)
    if pair is None:
        return ""
    value, rate = amount(pair[0].value or 0.0, "fraction"), amount(pair[1], "fraction")
    decided = f"decided by {value} of members found at a false-positive rate of {rate}"
    p = pair[0].p
    return decided if p is None else f"{decided}, {p_value(p, evidence.level)} after correction"


def _above_all_others(cell: Cell) -> WorstRecord | None:
    """Return the largest share of a victim's members whose scores no non-member reaches."""
    clear = []
    for target in cell.targets:
        if target.roc is not None:
            above_all: list[float] = []
            for false_rate, true_rate in zip(target.roc.fpr, target.roc.tpr, strict=True):
                if false_rate == 0.0:
                    above_all.append(true_rate)
            clear.append(max(above_all, default=0.0))
    if not clear:
        return None
    return WorstRecord(value=max(clear), unit="fraction", what="above all non-members of one victim")


def _telling(evidence: RuleInput) -> bool:
    """Return whether the AUC has an interval or a p-value, and a baseline that it could have exceeded."""
    blind = by_name(evidence.figures, "auc_blind")
    if blind is not None and (blind.high is None or blind.high >= 1):
        return False
    return bounded("auc")(evidence)


RULE = Rule(
    goal=GOAL,
    figure="auc",
    chance=0.5,
    higher=True,
    leaked="could tell which records were trained on",
    likely="could tell members from others better than chance",
    frame="AUC {}",
    counted="pair",
    signal=_signal,
    strong=_strong,
    certain=surely("auc", AUC_CERTAIN),
    telling=_telling,
    text="The AUC lies above 0.5, or the true-positive rate at a stated false-positive rate lies above that "
    "rate, and this holds after correction: in a run that leaks nothing, any figure of any attack does so with "
    f"a chance of at most {FAMILY_LEVEL:.0%}. Scores without a p-value count by their interval instead. "
    "Where no coins decided who is a member, the AUC's interval must lie above that of a baseline that sees no "
    "message. "
    "It is a leak where such an AUC reaches "
    f"{AUC_STRONG:.2f} or such a rate {TPR_STRONG:.0f} times the false-positive rate, "
    "else a partial leak.",
    baseline="chance",
    decided_else=_rate_instead,
    record=_above_all_others,
    also_deciding="tpr_at_",
    public=PublicRounding(names=("auc",), least=1, steps=(0.01, 0.02, 0.05, 0.1), turn=_COINS * _TURN),
    remedies={
        "updates": Remedy(
            do="Train every network that is sent with `dp-sgd` at a stated ε before sending {kinds}.",
            why=f"{ONLY_A_BOUND} A secure sum, where the protocol needs only the sum, hides whose record it is.",
            tries=("record-noise", "secure-sum"),
        ),
        "model": Remedy(
            do="Train with `dp-sgd` at a stated ε before a model is sent out.",
            why=ONLY_A_BOUND,
            tries=("record-noise",),
        ),
        "answers": Remedy(
            do="Train with `dp-sgd` at a stated ε before answering.",
            why=f"{LABELS_NO_REMEDY} {NOT_BY_THE_RECEIVER}",
            tries=("record-noise",),
        ),
        "ensemble": Remedy(
            do="Publish noisy votes (`gnmax`) instead of {kinds}, at a stated ε.",
            why=LABELS_NO_REMEDY,
            tries=("client-noise", "record-noise"),
        ),
        "declined": Remedy(
            do="Answer every public sample, and train with `dp-sgd` at a stated ε.",
            why="Which samples a client declines depends on each of its records; `dp-sgd` alone does not cover that.",
            tries=("record-noise",),
        ),
        "prototypes": Remedy(
            do="Sum each client's {kinds} securely, with `gaussian-noise` at a stated ε.",
            why="A mean over few records shows who is among them.",
            tries=("record-noise",),
        ),
        "generator": Remedy(
            do="Train generator and discriminator with noise at a stated ε: `sanitized-gradients`.",
            why="Generated samples and a discriminator's scores are closest to what was trained on.",
            tries=("record-noise",),
        ),
        "cotangents": Remedy(
            do="Train with `dp-sgd` at a stated ε before answering.",
            why="{kinds} follow from every client's answers. Noise on gradients at samples hides nothing of these.",
            tries=("record-noise",),
        ),
        "oracle": Remedy(
            do="Train everything that answers questions with `dp-sgd` at a stated ε.",
            why=LABELS_NO_REMEDY,
            tries=("record-noise", "no-questions"),
        ),
    },
    general=Remedy(do="Train with `dp-sgd` at a stated ε.", why=ONLY_A_BOUND, tries=("record-noise",)),
)

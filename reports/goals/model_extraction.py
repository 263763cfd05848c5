"""Verdicts and remedies where a model was copied."""

from __future__ import annotations

from fdaudit.goals.model_extraction import GOAL
from fdaudit.result import Cell, Remedy

from ..text import measure
from .rule import Rule, RuleInput, against_guessing, bounded, by_name, significant, surely, value_of

__all__ = ["HELD", "RULE", "holds_model"]

HELD = "there is nothing to copy"
"""End of the reason why a model that an adversary has in view is not copied."""

AGREEMENT_STRONG = 0.9
"""Share of records with equal answers of copy and model above which a model counts as copied."""

AGREEMENT_CERTAIN = 0.95
"""Lower end of the interval of the agreement from which a copy stands for the model."""


def holds_model(cell: Cell) -> bool:
    """Return whether a cell was not tried because the adversary has the victims' models in view."""
    return cell.status == "not-applicable" and cell.goal == GOAL.name and cell.reason.endswith(HELD)


def _signal(evidence: RuleInput) -> str:
    gain = by_name(evidence.figures, "agreement_gain")
    if gain is None or (gain.value or 0.0) <= 0 or not significant(gain, evidence.level):
        return ""
    above = measure(gain, gain.value or 0.0)
    return f"the copy agrees with the model {above} more than the baseline does{against_guessing(gain, evidence)}"


def _strong(evidence: RuleInput) -> bool:
    agreement = value_of(evidence.figures, "agreement")
    return agreement is not None and agreement >= AGREEMENT_STRONG


RULE = Rule(
    goal=GOAL,
    figure="agreement_gain",
    chance=0.0,
    higher=True,
    leaked="could copy a model that it was not given",
    frame="agreement with the model {} above the baseline",
    signal=_signal,
    strong=_strong,
    certain=surely("agreement", AGREEMENT_CERTAIN),
    telling=bounded("agreement_gain"),
    text="A copy agrees with the model on more test records than the baseline does (a model fitted to "
    "auxiliary records, or the most frequent class), by McNemar's exact test after correction. "
    f"It is a leak where the two agree on {AGREEMENT_STRONG:.0%} of the records or more, "
    "else a partial leak.",
    in_all="agreement",
    remedies={
        "updates": Remedy(
            do="Treat each client's model as known to whoever receives its {kinds}.",
            why="The model can be computed from them.",
            tries=("secure-sum",),
        ),
        "answers": Remedy(
            do="Treat each client's model as known to whoever receives its {kinds}; or let a secure aggregation count "
            "votes (`gnmax`).",
            why="Every attack on a white box can be tried on the copy.",
            tries=("secure-sum", "client-noise"),
        ),
        "ensemble": Remedy(
            do="Treat the ensemble as known to whoever receives {kinds}.",
            why="Every attack on a white box can be tried on the copy.",
        ),
        "oracle": Remedy(
            do="Limit and log questions, and treat the model as known to whoever may ask.",
            why="Every attack on a white box can be tried on the copy.",
            tries=("no-questions",),
        ),
    },
    general=Remedy(
        do="Treat the copied model as known to this adversary.",
        why="Every attack on a white box can be tried on the copy.",
    ),
)

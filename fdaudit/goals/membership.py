"""Membership: which candidates a client trained on."""

from __future__ import annotations

from dataclasses import dataclass

from fdaudit.goals.goal import Goal, Threshold
from fdaudit.goals.guess import Guess, Note, Real, Share

__all__ = ["GOAL", "Membership"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Membership(Guess):
    """Scores for the candidates of one target's challenge, in its order.

    Attributes:
        target: the party asked about.
        scores: (n,), finite; higher means member.
        generated: (k, c, h, w) in [0, 1], the generated samples behind the scores, if any.
        note: information needed to read its figures, or empty.
        rehearsed: the share of coins that it told right in rehearsed federations, where it knows them, or None.
    """

    scores: Real
    generated: Real | None = None
    note: Note = ""
    rehearsed: Share | None = None


GOAL = Goal(
    name="membership",
    guess=Membership,
    learnt="which records were trained on",
    scale="an AUC of 0.5 is guessing, and 1 is certainty",
    figures={
        "auc": "Area under the ROC curve",
        "balanced_accuracy": "Balanced accuracy",
        "pair_accuracy": "Right choices within pairs",
        "pair_accuracy_rehearsed": "Right choices within pairs, in rehearsed federations",
        "tpr_at_0.1fpr": "True positives at 0.1 % false positives",
        "tpr_at_10fpr": "True positives at 10 % false positives",
        "tpr_at_1fpr": "True positives at 1 % false positives",
    },
    settled_by="candidates",
    impact=3,
    scored_with=("candidates", "images"),
    gates={
        "membership_auc": Threshold(
            figure="auc", explained="Largest membership AUC, for any cell and victim.", least=0, most=1
        ),
        "membership_tpr_at_1fpr": Threshold(
            figure="tpr_at_1fpr",
            explained="Largest true-positive rate at 1 % false positives, for any cell and victim.",
            least=0,
            most=1,
        ),
    },
    challenged=True,
)

"""Label distribution: how a client's records divide among the classes."""

from __future__ import annotations

from dataclasses import dataclass

from fdaudit.goals.goal import Goal, Threshold
from fdaudit.goals.guess import Guess, Real

__all__ = ["GOAL", "LabelDistribution"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelDistribution(Guess):
    """A guessed class distribution of one party's data.

    Attributes:
        target: the party whose records they are.
        distribution: (C,) shares that sum to 1.
    """

    distribution: Real


GOAL = Goal(
    name="label-distribution",
    guess=LabelDistribution,
    learnt="a client's class shares",
    scale="a total variation of 0 is exact, and 1 is entirely wrong",
    figures={
        "label_chebyshev": "Chebyshev distance of class shares",
        "label_kl": "KL divergence of class shares",
        "label_tv": "Total variation of class shares",
    },
    impact=2,
    scored_with=("records",),
    gates={
        "label_tv": Threshold(
            figure="label_tv",
            explained="Smallest total variation distance between guessed and true class shares, for any cell and "
            "victim.",
            at_least=True,
            least=0,
            most=1,
        )
    },
    at_sites=True,
)

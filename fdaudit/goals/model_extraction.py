"""Model extraction: a copy of a model that the adversary was not given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fdaudit.goals.goal import Goal
from fdaudit.goals.guess import Guess, Real

__all__ = ["GOAL", "RELEASED", "Extraction"]

RELEASED = "server"
"""Target of a copy of the released model, which is no client's own."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Extraction(Guess):
    """A copy of one party's final model, in the federation's architecture.

    Attributes:
        target: whose model was copied: a victim, or `server` for the released one.
        parameters: of the copy, by name; finite floating-point tensors of the architecture's shapes.
        answers: samples whose answers the copy was fitted to.
    """

    parameters: Mapping[str, Real]
    answers: int = 0


GOAL = Goal(
    name="model-extraction",
    guess=Extraction,
    learnt="a copy of a model",
    scale="agreement is the share of equal answers, and its baseline a model fitted to other data",
    figures={
        "accuracy_model": "Accuracy of the model that was copied",
        "agreement": "Agreement of a copy with the model",
        "agreement_baseline": "Agreement without any answer",
        "agreement_gain": "Agreement gained by the answers",
    },
    impact=2,
    scored_with=("auxiliary", "test"),
    on_released=True,
)

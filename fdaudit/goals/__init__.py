"""Goals of attacks: a module for each, with the class of its guesses, its gates and its words.

Their guesses are checked and scored in `fdaudit/scoring/goals/`, and their figures are judged in `reports/goals/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fdaudit.goals import (
    label_distribution,
    membership,
    model_extraction,
    reconstruction,
    row_reconstruction,
    text_reconstruction,
)
from fdaudit.goals.goal import Goal, Threshold
from fdaudit.goals.guess import Guess

__all__ = ["GOALS", "Goal", "Guess", "Threshold", "challenged", "goal_of"]

GOALS: Mapping[str, Goal] = MappingProxyType(
    {
        goal.name: goal
        for goal in (
            reconstruction.GOAL,
            row_reconstruction.GOAL,
            text_reconstruction.GOAL,
            membership.GOAL,
            label_distribution.GOAL,
            model_extraction.GOAL,
        )
    }
)
"""The goals by name, in the order in which reports name them."""


def challenged(name: object) -> bool:
    """Return whether a goal's attacks are given candidates whose membership coins decided; no for unknown goals."""
    return isinstance(name, str) and name in GOALS and GOALS[name].challenged


def goal_of(guess: object) -> Goal:
    """Return the goal of a guess.

    Raises:
        TypeError: it is a guess of no goal.
    """
    for goal in GOALS.values():
        if isinstance(guess, goal.guess):
            return goal
    raise TypeError(f"a {type(guess).__name__} is a guess of no goal")

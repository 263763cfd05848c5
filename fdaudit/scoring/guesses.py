"""Refuse guesses that are not about their target, or are more than its messages can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fdaudit.goals import GOALS, Guess, goal_of
from fdaudit.scoring.goals import SCORERS
from fdaudit.scoring.goals.scorer import CheckedTask

if TYPE_CHECKING:
    from fdaudit.adversary.view import View
    from fdaudit.scoring.ground_truth import Truth

__all__ = ["check_guesses", "refuse_another_goal", "refuse_too_many"]

_MOST_SHOWN = 1000
"""Largest number of records shown a victim, because they are matched with its records one to one."""


def check_guesses(guesses: Sequence[Guess], asked: CheckedTask) -> None:
    """Refuse guesses of several goals, about no victim, or that their goal's own check refuses.

    Args:
        guesses: what the attack returned, at least one.
        asked: what it was asked.

    Raises:
        TypeError: one is a guess of no goal.
        ValueError: a guess breaks a rule.
    """
    goal = goal_of(guesses[0])
    if any(type(guess) is not type(guesses[0]) for guess in guesses):
        raise ValueError("the attack returned guesses of more than one kind")
    scorer = SCORERS[goal.name]
    answered, due = sorted(guess.target for guess in guesses), scorer.due(asked)
    if due is not None and answered != sorted(due):
        which = "challenged were" if goal.challenged else "the victims are"
        raise ValueError(f"the attack answered for {answered}; {which} {sorted(due)}")
    for target in answered:
        if target not in asked.victims:
            raise ValueError(f"the attack answered for {target}, who is no victim")
    scorer.check(guesses, asked)


def refuse_another_goal(guesses: Sequence[Guess], goal: str) -> None:
    """Refuse guesses for a goal that the attack was not given: candidates, for example, reveal a client's classes.

    Raises:
        ValueError: a guess is about another goal.
    """
    for guess in guesses:
        if not isinstance(guess, GOALS[goal].guess):
            raise ValueError(f"the attack returned a {type(guess).__name__}, which is not about {goal}")


def refuse_too_many(guesses: Sequence[Guess], view: View, truth: Truth) -> None:
    """Refuse more reconstructed records than there are behind the messages that the guess names.

    An adversary may not know this number, so it may always guess one batch. If secret coins draw the records of a
    step, it may guess as many as the victim has.

    Raises:
        ValueError: a guess has more.
    """
    if truth.case.missing("uses"):  # whoever holds the records counts them
        return
    batch = int(view.hyperparameters.get("batch_size") or 1)
    guess: Any
    for guess in guesses:
        goal = goal_of(guess)
        count = SCORERS[goal.name].shown(guess)
        if not count:
            continue
        behind, _ = truth.behind(guess.target, guess.messages)
        most = max(len(behind), batch)
        if truth.case.training:
            most = max(most, len(truth.case.records(guess.target)[1]))
        most = min(most, _MOST_SHOWN)
        if count > most:
            problem = (
                f"has {count} {goal.shows}, more than the {most} records that its messages can come from"
            )
            raise ValueError(f"{guess.target}: {problem}. Give the {most} likeliest, or fewer")

"""What every attack does with messages that it cannot read: leave them out, and say so."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from fdaudit.adversary.forms import forms_of, left_out, legible
from fdaudit.types import Applicability

if TYPE_CHECKING:
    import torch

    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.task import Attack
    from fdaudit.adversary.view import View
    from fdaudit.goals import Guess
    from fdaudit.types import AttackTask

__all__ = ["reads_forms"]

A = TypeVar("A", bound="type[Any]")


def reads_forms(cls: A) -> A:
    """Make an attack see only messages that have the form of their kind (`fdaudit.adversary.forms`).

    If it does not apply, its reason names the messages of the kinds that it needs and that were left out.
    """
    applicable, run = cls.applicable, cls.run

    @wraps(applicable)
    def checked(self: Attack, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        forms = forms_of(view, knowledge)
        verdict = applicable(self, legible(view, forms), knowledge, task)
        reason = "" if verdict.ok else left_out(view, forms, cls.card.needs)
        return Applicability(False, f"{verdict.reason}; {reason}") if reason else verdict

    @wraps(run)
    def checked_run(
        self: Attack, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> Sequence[Guess]:
        guesses: Sequence[Guess] = run(
            self, legible(view, forms_of(view, knowledge)), knowledge, task, generator
        )
        return guesses

    cls.applicable, cls.run = checked, checked_run
    return cls

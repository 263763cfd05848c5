"""Remedies that were tried: the same federation with a defence, attacked again."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fdaudit.result.cell import Status
from fdaudit.result.part import Part, is_empty
from fdaudit.types import Figure

__all__ = ["Effect", "TriedRemedy"]


class Effect(Part):
    """What a remedy changed for one adversary and one goal."""

    adversary: str
    goal: str
    attack: str
    """The attack with the gravest finding before."""
    before: Figure | None = None
    """Its deciding figure, of the worst victim if a leak was found for one."""
    attack_after: str = ""
    """The attack with the gravest finding after; empty if none applies."""
    after: Figure | None = None
    level: str
    """The gravest level after."""
    again: Status | Literal[""] = Field(default="", exclude_if=is_empty)
    """Status after of the attack with the gravest finding before; empty if it was not among the attacks."""
    again_figure: Figure | None = Field(default=None, exclude_if=is_empty)
    """Its deciding figure after."""
    needed: float | None = Field(default=None, exclude_if=is_empty)
    """Seconds of a budget for the remedied run that would hold it, if it found no time."""
    epsilon: float | None = None
    """ε of the adversary's view after; None if there is none to state."""
    unit: str = ""
    """What ε protects."""

    @property
    def same_attack(self) -> bool:
        """Return whether one attack gave the figures before and after."""
        return self.attack == self.attack_after and self.after is not None

    @property
    def settled(self) -> bool:
        """Return whether the attack that found the leak was tried again, or no longer applies."""
        return self.same_attack or self.again in ("run", "inconclusive", "not-applicable")


class TriedRemedy(Part):
    """One remedy: what was changed, and what came of it."""

    name: str
    words: str
    """What was changed, in a clause."""
    settings: str = Field(default="", exclude_if=is_empty)
    """The settings that were chosen on auxiliary records, in words."""
    settings_tried: int = Field(default=0, ge=0)
    """How many were tried."""
    command: str = Field(default="", exclude_if=is_empty)
    """The command that repeats it."""
    utility_before: Figure | None = None
    utility: Figure | None = None
    alone: float | None = None
    """Mean utility of clients that train alone."""
    effects: tuple[Effect, ...] = ()
    left_out: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Attacks that the budget left out after it."""
    state: Literal["run", "not-applicable", "no-time", "failed"] = "run"
    reason: str = Field(default="", exclude_if=is_empty)
    """Why it was not run."""

    @property
    def utility_value(self) -> float:
        """Return the utility after; 0 if there is none."""
        return 0.0 if self.utility is None else self.utility.value or 0.0

    @property
    def kept(self) -> bool:
        """Return whether the federation still serves its clients: its utility is above that of clients alone."""
        return self.utility_value > (self.alone or 0.0)

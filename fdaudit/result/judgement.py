"""The judgement of a run: what each test shows, what each adversary can learn, how bad it is, and what to do.

It is made once, when its result is made (`fdaudit.reports.judgement`), and kept in `result.json`. Pages, console,
comparison, JSON and evidence print it.

Guarantees:
  * levels, severities, their factors and remedies are public. Words about figures and victims are the auditor's;
  * only a leak has a severity and a remedy.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fdaudit.result.part import AUDITOR, Audience, Part, is_empty

__all__ = ["JudgedCell", "JudgedView", "Judgement", "Level", "Remedy", "Severity"]

Level = Literal[
    "leak",
    "partial",
    "possible",
    "none-seen",
    "inconclusive",
    "not-tested",
    "failed",
    "not-applicable",
    "not-requested",
]
"""From the gravest to the least informative. A cell is "not tested" if it is still to come or a budget of time left it
out, and a view if private messages in it were read by no attack."""


class JudgedCell(Part):
    """The judgement of one cell, with the words for it."""

    _audience: ClassVar[Audience] = "public"

    cell: str
    """The cell's id."""
    level: Level
    certain: bool = False
    """Whether a leak leaves little doubt about any record, by the rule of its goal."""
    of_classes: bool = False
    """Whether it is about what classes look like, and not about single records."""
    measured: Annotated[str, AUDITOR] = Field(default="", exclude_if=is_empty)
    """The measurement in one sentence with its numbers; empty if the cell did not run."""
    because: Annotated[str, AUDITOR] = Field(default="", exclude_if=is_empty)
    """Why this level, in one sentence."""
    cautions: Annotated[tuple[str, ...], AUDITOR] = Field(default=(), exclude_if=is_empty)
    """Limits of the finding that a reader must know."""
    worst: Annotated[str | None, AUDITOR] = Field(default=None, exclude_if=is_empty)
    """The victim whose deciding figure leaks most."""
    affected: Annotated[tuple[str, ...], AUDITOR] = Field(default=(), exclude_if=is_empty)
    """The victims for each of whom alone a leak was found."""
    together: Annotated[bool, AUDITOR] = False
    """Whether a leak was found for all victims together."""
    decided_by: Annotated[dict[str, str], AUDITOR] = Field(default_factory=dict, exclude_if=is_empty)
    """What decided in place of the deciding figure, by victim."""
    detectable: Annotated[str, AUDITOR] = Field(default="", exclude_if=is_empty)
    """What would have been significant, in a clause, if nothing was found."""
    rehearsed: Annotated[str, AUDITOR] = Field(default="", exclude_if=is_empty)
    """What the attack reached where coins are known, in a sentence, if nothing was found."""
    blind: Annotated[bool, AUDITOR] = False
    """Whether too few coins were tossed for any AUC to be significant."""


class Severity(Part):
    """How bad a leak is: a word for the product of three factors."""

    _audience: ClassVar[Audience] = "public"

    word: Literal["critical", "high", "medium", "low"]
    impact: int
    """Harm to those whom the data are about, from 1 to 4."""
    access: int
    """How easily one becomes this adversary, from 1 to 3."""
    strength: int
    """Strength of the leak, from 1 to 3."""

    @property
    def factors(self) -> tuple[int, int, int]:
        """Return impact, access and strength."""
        return self.impact, self.access, self.strength


class Remedy(Part):
    """One thing to do and why."""

    _audience: ClassVar[Audience] = "public"

    do: str
    """What to do. In the tables of `fdaudit.reports.goals`, `{kinds}` stands for the kinds of messages behind it."""
    why: str
    tries: tuple[str, ...] = ()
    """Names of what `fdaudit remedy` runs to measure its effect."""


class JudgedView(Part):
    """The judgement of one adversary for one goal, by its own attacks and those on every view that its own contains."""

    _audience: ClassVar[Audience] = "public"

    adversary: str
    goal: str
    level: Level
    source: str
    """The adversary whose attack found it: another one if it is inherited."""
    cell: str = ""
    """The id of the gravest cell behind it; empty if nothing was audited."""
    alone: str = Field(default="", exclude_if=is_empty)
    """The part of a coalition that has this leak without the others."""
    untested: str = Field(default="", exclude_if=is_empty)
    """What was not tested of its view, in sentences, if the level rests on it."""
    severity: Severity | None = Field(default=None, exclude_if=is_empty)
    remedy: Remedy | None = Field(default=None, exclude_if=is_empty)
    effect_measured: Annotated[bool, AUDITOR] = False
    """Whether the remedy was tried on this adversary and goal."""


class Judgement(Part):
    """The judgement of a run."""

    _audience: ClassVar[Audience] = "public"

    version: str
    """The version of fdaudit whose rules it follows."""
    level: Level
    """The headline's level."""
    cells: tuple[JudgedCell, ...]
    """One for each cell, in the result's order."""
    views: tuple[JudgedView, ...]
    """One for each adversary and goal."""

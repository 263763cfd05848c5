"""The honest twin of a deviating run: the same records and secret, with every party following its protocol."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fdaudit.result.judgement import Level
from fdaudit.result.part import PUBLIC, Part, is_empty
from fdaudit.types import Figure

__all__ = ["Gain", "GainVerdict", "Noticed", "Twin"]

GainVerdict = Literal["gain", "only-active", "none", "less", "no-figure"]
"""A gain: the interval under the deviation lies above the twin's. Only active: no attack applies to the twin. None:
the intervals overlap. Less: the twin's lies above. No figure: one of both has no interval or no answer."""


class Gain(Part):
    """What an adversary reaches for one goal under the deviation, beside the honest twin."""

    adversary: str
    goal: str
    victim: str = Field(default="", exclude_if=is_empty)
    """The victim; empty for all victims together."""
    attack: str
    """The attack with the gravest finding under the deviation."""
    level: Level
    """The level of that finding."""
    figure: Figure | None = None
    """Its deciding figure."""
    honest_attack: str
    """The attack with the gravest finding in the twin."""
    honest_level: Level
    """The level of that finding."""
    honest_figure: Figure | None = None
    """Its deciding figure."""
    verdict: GainVerdict


class Noticed(Part):
    """How well one detector tells a party's crafted messages from those that it sends in the twin."""

    party: str
    deviation: str
    kind: str
    detector: str
    learnt_on: int = Field(default=0, ge=0)
    """Honest messages, the first half, whose largest value is the threshold."""
    threshold: float | None = None
    """A larger value is an alarm. None: there are too few honest messages."""
    alarms: int = Field(default=0, ge=0)
    """Honest messages of the other half above the threshold."""
    of_honest: int = Field(default=0, ge=0)
    """Honest messages of the other half."""
    caught: int = Field(default=0, ge=0)
    """Crafted messages above the threshold."""
    of_crafted: int = Field(ge=0)
    """Crafted messages."""
    reason: str = Field(default="", exclude_if=is_empty)
    """Why there is no rate."""


class Twin(Part):
    """The honest twin beside the run: what the deviation gained and cost, and whether receivers could have noticed."""

    command: str = ""
    """The command that makes the twin again."""
    head: str = ""
    """Head of the twin's transcript."""
    utility: Annotated[Figure | None, PUBLIC] = None
    """Final utility under the deviation: of the server's model, or the mean of the clients'."""
    honest_utility: Annotated[Figure | None, PUBLIC] = None
    """The same of the twin."""
    gains: tuple[Gain, ...] = ()
    """For each adversary and goal: all victims together, then each victim."""
    noticed: tuple[Noticed, ...] = ()
    """For each deviating party, kind of message and detector."""

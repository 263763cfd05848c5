"""In which rounds a party deviates."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fdaudit.config import Config

__all__ = ["SomeRounds"]


class SomeRounds(Config):
    """Settings of a deviation that can be confined to some rounds."""

    rounds: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(None, max_length=10_000)
    """Rounds, counted from 0, in which the party deviates; default: all. None at all: the honest run."""

    def within(self, round: int) -> bool:
        """Return whether the party deviates in a round."""
        return self.rounds is None or round in self.rounds

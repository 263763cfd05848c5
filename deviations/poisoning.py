"""Poisoning: a client trains on candidates with wrong classes, so that models say more of those that others hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.config import Config
from fdaudit.registry import DeviationCard
from fdaudit.transcript.wire import Outgoing

from ._candidates import by_turns
from ._uploads import UPLOADS

__all__ = ["Poisoning", "PoisoningConfig"]


class PoisoningConfig(Config):
    """Settings of poisoning."""

    copies: int = Field(1, ge=1, le=1000)
    """Copies of each candidate among the client's records, all with the same wrong class."""
    share: float = Field(1.0, gt=0, le=1)
    """Share of the client's own records that mislabelled candidates replace."""


class Poisoning:
    """A client puts candidates with wrong classes in the place of its own records, and trains on them as it should.

    A wrong class makes the model unsure of a candidate, unless another client's records hold it with the right one.
    The difference that membership makes grows. The candidates are those of all clients by turns, as many as there is
    room for.
    """

    card = DeviationCard(
        name="poisoning",
        source="Tramèr, Shokri, San Joaquin, Le, Jagielski, Hong & Carlini 2022, section 4",
        roles=("client",),
        changes=UPLOADS,
        read_by=("lira-online", "rmia"),
        noticed="Answers differ from other clients'. The length of an update shows nothing.",
        detectors=("disagreement", "other-classes"),
        knows=("candidates",),
    )
    Config: ClassVar[type[PoisoningConfig]] = PoisoningConfig

    def __init__(self, config: PoisoningConfig, knowledge: Knowledge) -> None:
        self._x, self._y = by_turns(knowledge)
        self._config, self._classes = config, knowledge.classes

    def trains_on(self, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return records (n, ...) of which the first are candidates, and their classes (n,), wrong for these."""
        room = max(1, round(self._config.share * len(x)))
        which = torch.arange(len(self._y)).repeat_interleave(self._config.copies)[:room]
        step = torch.randint(1, self._classes, (len(self._y),), generator=generator)
        wrong = (self._y + step) % self._classes
        x[: len(which)] = self._x[which].to(x)
        y[: len(which)] = wrong[which].to(y)
        return x, y

    def sends(self, draft: Outgoing, generator: torch.Generator) -> Sequence[Outgoing]:
        """Return the message, marked as made of other records."""
        return (replace(draft),)

"""The gap attack: a correctly classified candidate is called a member."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from fdaudit.registry import AttackCard
from fdaudit.types import Challenge

from .._reading import reads_forms
from .base import Given, LabelOnly, LabelOnlyConfig, Voter

__all__ = ["Gap", "GapConfig"]


class GapConfig(LabelOnlyConfig):
    """Settings of the gap attack."""


@reads_forms
class Gap(LabelOnly):
    """Scores a candidate 1 if its label is predicted correctly, else 0: one query a candidate.

    Its AUC is one half plus half the accuracy gap between members and non-members. Every other label-only attack uses
    more queries and has to do better.
    """

    card = AttackCard(
        name="gap",
        work={"once": 100, "each": 200},
        goal="membership",
        needs=("oracle (hard labels)", "model_parameters"),
        assumes=(),
        oracle="hard",
        source="Yeom, Giacomelli, Fredrikson & Jha 2018; Choquette-Choo, Tramèr, Carlini & Papernot 2021",
        tasks=("single-label", "text", "table"),
        profiles={"quick": {}, "standard": {}, "full": {}},
    )
    Config: ClassVar[type[GapConfig]] = GapConfig

    def score(self, ask: Voter, challenge: Challenge, questions: int, given: Given) -> tuple[Tensor, str]:
        """Return 1 or 0 (n,)."""
        return (ask(challenge.x) == challenge.y).double(), ""

"""The gap attack: whoever is classified right is called a member."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from fdaudit.types import Challenge

from .base import Given, LabelOnly, LabelOnlyConfig, Voter

__all__ = ["Gap", "GapConfig"]


class GapConfig(LabelOnlyConfig):
    """Settings of the gap attack."""


class Gap(LabelOnly):
    """Scores a candidate 1 where its label is predicted right, else 0: one query a candidate.

    Its AUC is one half and half the gap between the accuracies on members and on others. Every other label-only attack
    asks more and has to do better.
    """

    name: ClassVar[str] = "gap"
    goal: ClassVar[str] = "membership"
    needs: ClassVar[tuple[str, ...]] = ("oracle (hard labels)", "model_parameters")
    assumes: ClassVar[tuple[str, ...]] = ()
    oracle: ClassVar[str | None] = "hard"
    source: ClassVar[str] = (
        "Yeom, Giacomelli, Fredrikson & Jha 2018; Choquette-Choo, Tramèr, Carlini & Papernot 2021"
    )
    tasks: ClassVar[tuple[str, ...]] = ("single-label",)
    profiles: ClassVar[dict[str, dict[str, Any]]] = {"quick": {}, "standard": {}, "full": {}}
    Config: ClassVar[type[GapConfig]] = GapConfig

    def score(self, ask: Voter, challenge: Challenge, questions: int, given: Given) -> tuple[Tensor, str]:
        """1 or 0 (n,)."""
        return (ask(challenge.x) == challenge.y).double(), ""

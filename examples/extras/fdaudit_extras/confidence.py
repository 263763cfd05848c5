"""Membership by confidence: a model is surer of records it was trained on."""

from __future__ import annotations

from typing import ClassVar

import torch

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import View
from fdaudit.config import Config
from fdaudit.goals.membership import Membership
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability, AttackTask


class ConfidenceConfig(Config):
    """The attack has no settings."""


class Confidence:
    """Scores a candidate by the largest class probability that the released model gives it."""

    card = AttackCard(
        name="confidence",
        goal="membership",
        needs=("oracle (soft labels)",),
        assumes=(),
        oracle="soft",
        source="Salem et al. 2019, adversary 3",
        profiles={"quick": {}, "standard": {}, "full": {}},
    )
    Config: ClassVar[type[ConfidenceConfig]] = ConfidenceConfig

    def __init__(self, config: ConfidenceConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Yes with a soft-label oracle and a budget for every candidate."""
        if task.oracle is None or not task.challenges:
            return Applicability(False, "no soft-label oracle, or no challenge")
        asked = sum(len(c.y) for c in task.challenges.values())
        if asked > task.oracle.budget:
            return Applicability(False, f"needs {asked} queries, the budget allows {task.oracle.budget}")
        return Applicability(True)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """One `Membership` for each challenge."""
        return tuple(
            Membership(target=target, scores=task.oracle.query(c.x).max(1).values)
            for target, c in task.challenges.items()
        )

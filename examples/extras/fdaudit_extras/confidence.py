"""Membership by confidence: a model is surer of records it was trained on."""

from typing import ClassVar

import torch

from fdaudit.config import Config
from fdaudit.goals.membership import Membership
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability


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

    def __init__(self, config): ...

    def applicable(self, view, knowledge, task):
        if task.oracle is None or task.oracle.budget < sum(len(c.y) for c in task.challenges.values()):
            return Applicability(False, "no soft-label oracle with a budget for every candidate")
        return Applicability(True)

    def run(self, view, knowledge, task, generator: torch.Generator):
        answers = {k: task.oracle.query(c.x) for k, c in task.challenges.items()}
        return tuple(Membership(target=k, scores=a.max(1).values) for k, a in answers.items())

"""Membership by robustness to noise: decisions on training records change less under small random changes."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.registry import AttackCard
from fdaudit.types import Challenge

from .._reading import reads_forms
from .base import Given, LabelOnly, LabelOnlyConfig, Voter

__all__ = ["NoiseRobustness", "NoiseRobustnessConfig"]


class NoiseRobustnessConfig(LabelOnlyConfig):
    """Settings of the noise-robustness attack."""

    queries: int = Field(100, ge=2)
    """Largest number of queries a candidate, including the candidate itself."""
    sigma: tuple[float, ...] = Field((0.1, 0.2, 0.3), min_length=1)
    """Standard deviations of the Gaussian noise, in units of pixel intensity; queries take turns."""


@reads_forms
class NoiseRobustness(LabelOnly):
    """Scores a candidate by the share of its noisy copies that are still classified correctly.

    A misclassified candidate scores 0, independent of its copies. Copies are clipped to [0, 1].
    """

    card = AttackCard(
        name="noise-robustness",
        work={"once": 400, "each": 600, "grows": ("queries",)},
        goal="membership",
        needs=("oracle (hard labels)", "model_parameters"),
        assumes=(),
        oracle="hard",
        source="Choquette-Choo, Tramèr, Carlini & Papernot 2021",
        tasks=("single-label",),
        profiles={
            "quick": {"queries": 31},
            "standard": {"queries": 301},
            "full": {"queries": 3001},
        },
    )
    Config: ClassVar[type[NoiseRobustnessConfig]] = NoiseRobustnessConfig

    def least(self) -> int:
        """Return 2: the candidate and one noisy copy."""
        return 2

    def most(self) -> int:
        """Return the number in the settings."""
        return int(self.config.queries)

    def score(self, ask: Voter, challenge: Challenge, questions: int, given: Given) -> tuple[Tensor, str]:
        """Return the shares (n,) of answers that equal the candidate's label, including the answer without noise."""
        x, y = challenge.x, challenge.y
        right = ask(x) == y
        matches = right.double()
        for number in range(questions - 1):
            sigma = self.config.sigma[number % len(self.config.sigma)]
            for rows in torch.arange(len(y)).split(ask.chunk):
                noise = torch.randn(len(rows), *x.shape[1:], generator=given.generator)
                matches[rows] += ask((x[rows] + sigma * noise).clamp(0, 1)) == y[rows]
        return torch.where(right, matches / questions, 0.0), ""

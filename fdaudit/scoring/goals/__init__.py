"""Scorers of guesses: a module for each goal of `fdaudit.goals`, with the check of its guesses and their figures."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fdaudit.scoring.goals.label_distribution import LabelScorer
from fdaudit.scoring.goals.membership import MembershipScorer
from fdaudit.scoring.goals.model_extraction import CopyScorer
from fdaudit.scoring.goals.reconstruction import ReconstructionScorer
from fdaudit.scoring.goals.row_reconstruction import RowScorer
from fdaudit.scoring.goals.scorer import GoalScorer
from fdaudit.scoring.goals.text_reconstruction import TextScorer

__all__ = ["SCORERS"]

SCORERS: Mapping[str, type[GoalScorer[Any]]] = MappingProxyType(
    {
        scorer.goal.name: scorer
        for scorer in (ReconstructionScorer, RowScorer, TextScorer, MembershipScorer, LabelScorer, CopyScorer)
    }
)
"""The scorers by the names of their goals."""

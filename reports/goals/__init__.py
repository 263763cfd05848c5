"""Rules of verdicts and remedies: a module for each goal of attacks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import (
    label_distribution,
    membership,
    model_extraction,
    reconstruction,
    row_reconstruction,
    text_reconstruction,
)
from .rule import Rule

__all__ = ["RULES", "Rule"]

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.goal.name: rule
        for rule in (
            reconstruction.RULE,
            row_reconstruction.RULE,
            text_reconstruction.RULE,
            membership.RULE,
            label_distribution.RULE,
            model_extraction.RULE,
        )
    }
)
"""The rules, by goal. Cells of a goal without a rule get no verdict: they read inconclusive."""

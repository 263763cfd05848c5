"""Execution backends: the machines that share a run's work; by default only this one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fdaudit.parallel.pool import Workers

__all__ = ["HERE", "Elsewhere"]


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """Other machines that share a run's work; outcomes are the same bytes with and without them.

    Attributes:
        cells: run attack cells, as processes of `fdaudit.evaluation.attack_worker` do here; None for local processes.
    """

    cells: Workers | None = None


HERE = Elsewhere()
"""This machine only."""

"""Where a run's work is done besides this process and its own: nowhere, unless other machines are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fdaudit.parallel.pool import Workers

__all__ = ["HERE", "Elsewhere"]


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """Other machines' part in a run; whatever they do, outcomes are the same bytes.

    Attributes:
        cells: run attack cells, as processes of `fdaudit.evaluation.attack_worker` do here; None leaves them to these.
    """

    cells: Workers | None = None


HERE = Elsewhere()
"""On this machine alone."""

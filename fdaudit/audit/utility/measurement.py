"""The contract of a measurement of utility: a row of `utility.csv`, and what the result reads from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.metrics import Chance
    from fdaudit.planning.case import Case
    from fdaudit.types import Figure

__all__ = ["Measurement"]


class Measurement(ABC):
    """A way to measure models on test records.

    Attributes:
        name: the name of the main figure.
        columns: of `utility.csv`, after those that say which model it was.
        curve: those columns that the report draws or lists by round.
    """

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    curve: ClassVar[tuple[str, ...]]

    @abstractmethod
    def measured(self, logits: Tensor, y: Tensor, case: Case) -> tuple[Any, ...]:
        """Return a value for each column, None for an empty cell, from a model's answers to all test records."""

    def measured_by_site(self, logits: Tensor, y: Tensor, case: Case) -> list[tuple[Any, ...]]:
        """Return such values for the test records of each site; none if there is one site, or no figure by site."""
        return []

    @abstractmethod
    def figure(self, row: Any, classes: int) -> Figure:
        """Return the main figure of a row that was read back, whose empty cells are NaN."""

    @abstractmethod
    def chance(self, y: Tensor) -> Chance:
        """Return what an answer reaches on test records with labels y that has learnt nothing."""

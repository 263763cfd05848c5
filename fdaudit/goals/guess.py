"""The base of all guesses, and the types of their fields, by which guesses cross from an attack's process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Guess", "Long", "Longest", "Note", "Numbers", "Real", "Share", "Whole", "Within"]


@dataclass(frozen=True)
class Numbers:
    """The numbers of a tensor.

    Attributes:
        whole: whether they are integers; else they are real, and received integers become float64.
        wide: whether received integers become int64.
    """

    whole: bool = False
    wide: bool = False


@dataclass(frozen=True)
class Longest:
    """The most characters of a text; the rest of a received text is cut off, and every character prints."""

    characters: int


@dataclass(frozen=True)
class Within:
    """The least and the largest value of a number."""

    least: float
    most: float


Real = Annotated["Tensor", Numbers()]
"""A tensor of real numbers."""
Whole = Annotated["Tensor", Numbers(whole=True)]
"""A tensor of integers."""
Long = Annotated["Tensor", Numbers(whole=True, wide=True)]
"""A tensor of integers that arrives as int64."""
Note = Annotated[str, Longest(500)]
"""A text of the attack's own that people read."""
Share = Annotated[float, Within(0.0, 1.0)]
"""A share between 0 and 1."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Guess:
    """The answer of an attack about one party.

    A goal's guess adds fields of the types of this module, `str`, `int`, `float`, tuples and mappings of these, or
    None. It crosses to the auditor by these annotations, so it needs no other code.

    Attributes:
        target: the party that the guess is about.
    """

    target: str

"""Row reconstruction: the numbers and categories of a client's rows of a table."""

from __future__ import annotations

from dataclasses import dataclass

from fdaudit.goals.goal import Goal
from fdaudit.goals.guess import Guess, Note, Real, Whole

__all__ = ["GOAL", "RowReconstruction"]


@dataclass(frozen=True, kw_only=True, eq=False)
class RowReconstruction(Guess):
    """Guessed rows behind some messages of one party.

    Attributes:
        target: the party whose rows were reconstructed.
        messages: `seq` of the messages inverted.
        rows: (n, d) vectors as the network reads them: scaled numbers, and one-hot categories of which the largest
            entry counts.
        labels: (n,) guessed labels, or None.
        objective: the attack's own final matching loss (lower is better); not a quality figure.
        evaluations: gradient evaluations spent.
        note: information needed to read its figures, or empty.
    """

    messages: tuple[int, ...]
    rows: Real
    labels: Whole | None = None
    objective: float | None = None
    evaluations: int = 0
    note: Note = ""


GOAL = Goal(
    name="row-reconstruction",
    guess=RowReconstruction,
    learnt="numbers and categories of rows",
    scale="a gain of 0 is no better than a guess, and cells recovered of 100 % are whole rows",
    figures={
        "categories_right": "Categories recovered",
        "cells_gain": "Cells recovered, gain over guessing",
        "cells_right": "Cells recovered",
        "labels_right": "Labels recovered",
        "numbers_error": "Median relative error of numbers",
    },
    impact=4,
    scored_with=("records", "images", "uses"),
    shows="rows",
)

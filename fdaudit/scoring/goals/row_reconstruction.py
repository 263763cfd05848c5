"""Score recovered rows of a table against the rows behind a client's messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from fdaudit.errors import FdauditError
from fdaudit.goals.row_reconstruction import GOAL, RowReconstruction
from fdaudit.handout.auxiliary import Assumption, others
from fdaudit.metrics._arrays import Floats, Integers
from fdaudit.metrics.rows.recovery import (
    RecoveredRows,
    matched_rows,
    score_rows,
    typical_row,
)
from fdaudit.result import Row, RowCell, Target, noted
from fdaudit.scoring.galleries import unused_records
from fdaudit.scoring.goals.scorer import (
    CheckedTask,
    GoalScorer,
    Scores,
    ScoringInputs,
    refuse_other_senders,
    refuse_two_of_a_victim,
)
from fdaudit.tasks.columns import cells_of, plain_columns, shown_cell
from fdaudit.types import Figure

__all__ = ["RowScorer"]

_MOST_ROWS, _MOST_CELLS = 8, 40
"""Rows that a result shows of a victim, and cells of each: the first in the order of the records and columns."""


class RowScorer(GoalScorer[RowReconstruction]):
    """Scores recovered rows."""

    goal = GOAL

    def __init__(self, inputs: ScoringInputs) -> None:
        super().__init__(inputs)
        data = self.case.dataset
        self._columns = data.columns or plain_columns(data.input_shape[0])

    @classmethod
    def check(cls, guesses: Sequence[RowReconstruction], asked: CheckedTask) -> None:
        """Refuse guesses about another client's messages, and rows that are no finite vectors."""
        for guess in guesses:
            refuse_other_senders(guess, guess.messages, asked.view)
            if guess.rows.ndim != 2 or not bool(torch.isfinite(guess.rows).all()):
                raise ValueError(f"{guess.target}: needs finite rows (n, d), got {tuple(guess.rows.shape)}")
            if guess.labels is not None and guess.labels.shape != (len(guess.rows),):
                raise ValueError(f"{guess.target}: needs one class for each of {len(guess.rows)} rows")
        refuse_two_of_a_victim(guesses)

    @classmethod
    def shown(cls, guess: RowReconstruction) -> int:
        """Return the number of rows."""
        return len(guess.rows)

    def score(
        self, cell: str, guesses: Sequence[RowReconstruction], assumed: Sequence[Assumption] = ()
    ) -> Scores:
        """Return the figures of recovered rows over all victims, and each victim's own with its first rows.

        Raises:
            FdauditError: no record stands behind a victim's messages.
            ValueError: rows have another length than the records.
        """
        recovered = [self._recovered(guess) for guess in guesses]
        auxiliary = np.zeros((0, len(self._columns))), np.zeros(0, dtype=np.int64)
        x, y = others(self.case).prior
        if x is not None and y is not None and len(x):
            auxiliary = cells_of(x, self._columns).numpy(), y.numpy()
        victims = [guess.target for guess in guesses]
        data, unused = self.case.dataset, unused_records(self.case, victims)
        bystanders = cells_of(data.x[unused], self._columns).numpy(), data.y[unused].numpy()

        def figures_of(guesses: Sequence[RowReconstruction], rows: Sequence[RecoveredRows]) -> list[Figure]:
            # Bystanders of all victims stand beside each victim's rows.
            score = partial(score_rows, rows, self._columns, auxiliary, bystanders)
            return list(self.scores.once("rows", guesses, score, beside=victims).values())

        whole = figures_of(guesses, recovered)
        targets = []
        for guess, rows in zip(guesses, recovered, strict=True):
            figures = figures_of([guess], [rows])
            targets.append(
                Target(
                    target=guess.target,
                    messages=guess.messages,
                    figures=tuple(noted(figure, guess.note, "cells_right") for figure in figures),
                    rows=self._rows(rows, auxiliary),
                )
            )
        return tuple(whole), tuple(targets)

    def _recovered(self, guess: RowReconstruction) -> RecoveredRows:
        x, y = self.truth.behind(guess.target, guess.messages)
        if not len(x):
            raise FdauditError(
                f"{guess.target}: no record stands behind its messages {list(guess.messages)}."
            )
        if guess.rows.shape[1] != x.shape[1]:
            raise ValueError(f"{guess.target}: has rows of {guess.rows.shape[1]} numbers, not {x.shape[1]}")
        return RecoveredRows(
            guess=cells_of(guess.rows, self._columns).numpy(),
            guess_labels=None if guess.labels is None else guess.labels.numpy(),
            truth=cells_of(x, self._columns).numpy(),
            labels=y.numpy(),
        )

    def _rows(self, one: RecoveredRows, auxiliary: tuple[Floats, Integers]) -> tuple[Row, ...]:
        """Return a victim's first rows, guess beside truth."""
        match = matched_rows(one.guess, one.truth, self._columns)
        rows = []
        for i, truth in enumerate(one.truth[:_MOST_ROWS]):
            number, label = int(match.guess[i]), int(one.labels[i])
            guess = None if number < 0 else one.guess[number]
            prior = typical_row(*auxiliary, label, self._columns)
            cells = []
            for k, column in enumerate(self._columns[:_MOST_CELLS]):
                cells.append(
                    RowCell(
                        column=column.name,
                        truth=shown_cell(truth[k], column),
                        guess=None if guess is None else shown_cell(guess[k], column),
                        prior=None if prior is None else shown_cell(prior[k], column),
                        right=bool(match.right[i, k]),
                    )
                )
            guessed = None
            if guess is not None and one.guess_labels is not None:
                guessed = int(one.guess_labels[number])
            rows.append(
                Row(
                    cells=tuple(cells),
                    columns=len(self._columns),
                    right=int(match.right[i].sum()),
                    true_label=label,
                    guessed_label=guessed,
                )
            )
        return tuple(rows)

"""Figures of recovered rows: what counts as recovered, how guesses are matched, the prior, and chance."""

from __future__ import annotations

import numpy as np
import pytest

from fdaudit.metrics.rows.recovery import (
    RecoveredRows,
    matched_rows,
    relative_errors,
    score_rows,
    typical_row,
)
from fdaudit.tasks.columns import Column

AGE = Column(name="age", mean=50, scale=20)
COLOUR = Column(name="colour", categories=("red", "green", "blue"))
COLUMNS = (AGE, COLOUR)
NOBODY = (np.zeros((0, 2)), np.zeros(0, dtype=np.int64))


def rows_of(*cells):
    return np.array(cells, dtype=float).reshape(-1, 2)


def recovered(guess, truth, labels=None):
    y = np.zeros(len(truth), dtype=np.int64) if labels is None else np.array(labels)
    return RecoveredRows(guess=guess, guess_labels=None, truth=truth, labels=y)


def scored(*found, columns=COLUMNS, auxiliary=NOBODY, others=NOBODY):
    return score_rows(found, columns, auxiliary, others, np.random.default_rng(0))


def test_numbers_count_by_the_scale_and_categories_if_true() -> None:
    truth = np.array([50.0, -10.0, 0.0, 0.1])
    errors = relative_errors(truth + np.array([0.5, 0.1, 0.002, -0.002]), truth, AGE)
    assert errors == pytest.approx([0.01, 0.01, 0.01, 0.01])
    truth = rows_of((50, 0), (60, 1), (70, 2))
    guess = rows_of((50.19, 0), (60.5, 1), (70, 1))
    figures = scored(recovered(guess, truth))
    assert figures["cells_right"].value == pytest.approx(4 / 6)
    assert figures["categories_right"].value == pytest.approx(2 / 3)
    assert figures["numbers_error"].value == pytest.approx(0.19 / 50)
    year = Column(name="year", mean=2000, scale=10)
    figures = scored(recovered(rows_of((2005, 2005)), rows_of((1995, 1995))), columns=(year, year))
    assert figures["cells_right"].value == 0
    assert figures["numbers_error"].value < 0.01


def test_guesses_are_matched_with_rows_one_to_one():
    truth = rows_of((50, 0), (60, 1), (70, 2))
    found = matched_rows(truth[[2, 0]], truth, COLUMNS)
    assert found.guess.tolist() == [1, -1, 0]
    assert found.right.tolist() == [[True, True], [False, False], [True, True]]
    repeated = matched_rows(truth[[1, 1, 1]], truth, COLUMNS)
    assert repeated.right.all(1).sum() == 1


def test_without_a_guess_or_other_rows_nothing_is_shown() -> None:
    figures = scored(recovered(rows_of(), rows_of((50, 0))))
    assert figures["cells_right"].value == 0
    assert figures["numbers_error"].value is None
    assert "no row" in figures["numbers_error"].unavailable
    truth, others = rows_of((50, 0)), rows_of(*[(20 + k, 1) for k in range(9)])
    found = scored(recovered(truth, truth), others=(others, np.zeros(9, dtype=np.int64)))
    assert 0.08 < found["cells_gain"].p < 0.12
    truth = rows_of((50, 0), (60, 1))
    gain = scored(recovered(truth, truth), others=(truth[:1], np.zeros(1, dtype=np.int64)))["cells_gain"]
    assert gain.p is None
    assert "nothing bounds chance" in gain.note


@pytest.mark.parametrize(
    ("columns", "absent", "missing"),
    [((COLOUR, COLOUR), "numbers_error", "numbers"), ((AGE, AGE), "categories_right", "categories")],
)
def test_a_figure_of_absent_columns_is_unavailable_with_its_reason(columns, absent, missing):
    figures = scored(recovered(rows_of((1, 1)), rows_of((1, 1))), columns=columns)
    assert figures[absent].value is None
    assert f"column of {missing}" in figures[absent].unavailable
    assert figures["cells_right"].value == 1


def test_the_prior_is_what_most_auxiliary_rows_of_the_class_share():
    auxiliary = rows_of((50, 0), (50, 0), (60, 1), (70, 2), (70, 2), (70, 2))
    labels = np.array([0, 0, 0, 1, 1, 1])
    assert typical_row(auxiliary, labels, 0, COLUMNS).tolist() == [50, 0]
    assert typical_row(auxiliary, labels, 1, COLUMNS).tolist() == [70, 2]
    assert typical_row(auxiliary, labels, 5, COLUMNS).tolist() == [70, 2]
    assert typical_row(*NOBODY, 0, COLUMNS) is None
    truth = rows_of((50, 1), (70, 2))
    figures = scored(recovered(truth, truth, [0, 1]), auxiliary=(auxiliary, labels))
    assert figures["cells_right_prior"].value == pytest.approx(0.75)


def drawn(rng, n):
    return np.column_stack([rng.integers(20, 80, n), rng.integers(0, 3, n)]).astype(float)


def test_recovered_rows_stand_out_from_other_rows():
    rng = np.random.default_rng(1)
    truth, others = drawn(rng, 4), drawn(rng, 200)
    figures = scored(recovered(truth, truth), others=(others, np.zeros(200, dtype=np.int64)))
    assert figures["cells_gain"].value > 0.4
    assert figures["cells_gain"].p < 0.001


def test_guesses_that_know_nothing_have_small_p_values_as_rarely_as_they_say():
    rng = np.random.default_rng(2)
    small = 0
    for _ in range(200):
        truth, others, guess = drawn(rng, 1), drawn(rng, 30), drawn(rng, 1)
        found = scored(recovered(guess, truth), others=(others, np.zeros(30, dtype=np.int64)))
        small += found["cells_gain"].p <= 0.1
    assert small <= 34  # of 200 at 10 %: more has a chance of one in a thousand

"""Score recovered rows against the rows behind a client's messages, column by column, beside a prior and other rows.

A cell is recovered if its category is the true one, or if its number differs from the true one by at most a hundredth
of the column's scale: 1 % of a year's own size would be twenty years. The relative error of a number is
|guess - truth| / |truth|. Where |truth| is below a hundredth of the column's scale, zero included, it is the difference
over that hundredth, so that a true 0 has an error too.

Guarantees:
  * guesses are matched with true rows one to one, as closely as possible; a true row without a guess has no cell right;
  * the prior uses auxiliary rows only: in each column the value that most auxiliary rows of the class share;
  * if a guess does not depend on which rows of their classes a client trained on, `cells_gain` has p of at most α with
    a chance of at most α: the true rows are then one draw among all rows of those classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its packages are loaded at first use

from fdaudit.metrics._arrays import Flags, Floats, Integers
from fdaudit.metrics.intervals import exceedance, mean_figure
from fdaudit.metrics.labels import class_pools, draw_like, label_recovery_figures
from fdaudit.tasks.columns import Column
from fdaudit.types import Figure

__all__ = [
    "TOLERANCE",
    "MatchedRows",
    "RecoveredRows",
    "matched_rows",
    "relative_errors",
    "right_cells",
    "score_rows",
    "typical_row",
]

TOLERANCE = 0.01
"""Share of a column's scale by which a recovered number may differ from the true one."""
_SMALL = 0.01
"""Share of a column's scale below which a true number is too small to divide by."""
_DRAWS, _FEW_DRAWS = 4999, 999
"""Batches of rows that a guess is compared with; fewer where each needs a matching of many rows."""
_LARGE_BATCH = 64
"""Number of pairs of a guess and a row from which there are fewer draws."""
_MOST_OTHERS = 500
"""Most other rows that a guess is compared with."""
_MOST_AUXILIARY = 200
"""Most auxiliary rows that the prior counts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RecoveredRows:
    """One victim's rows, and what an attack recovered of them. Cells are those of `fdaudit.tasks.columns.cells_of`.

    Attributes:
        guess: (m, k) guessed cells.
        guess_labels: (m,) guessed classes; None if the attack guesses none.
        truth: (n, k) the cells behind the messages.
        labels: (n,) their classes.
    """

    guess: Floats
    guess_labels: Integers | None
    truth: Floats
    labels: Integers


@dataclass(frozen=True, kw_only=True, eq=False)
class MatchedRows:
    """True rows and their guesses.

    Attributes:
        guess: (n,) the number of each true row's guess; -1 without one.
        right: (n, k) whether a cell is recovered.
    """

    guess: Integers
    right: Flags


def relative_errors(guess: Floats, truth: Floats, column: Column) -> Floats:
    """Return the relative errors of guessed numbers of a column; both have shapes that broadcast."""
    size = np.maximum(np.abs(truth), _SMALL * column.scale)
    return np.asarray(np.abs(guess - truth) / size)


def _alike(guess: Floats, truth: Floats, column: Column) -> Flags:
    """Return whether cells of a column count as equal."""
    if column.is_number:
        return np.asarray(np.abs(guess - truth) <= TOLERANCE * column.scale)
    return np.asarray(guess == truth)


def right_cells(guess: Floats, truth: Floats, columns: Sequence[Column]) -> Flags:
    """Return which cells (n, k) of guesses are recovered; `guess` and `truth` have shapes that broadcast."""
    right = np.zeros(np.broadcast_shapes(guess.shape, truth.shape), dtype=bool)
    for k, column in enumerate(columns):
        right[..., k] = _alike(guess[..., k], truth[..., k], column)
    return right


def matched_rows(guess: Floats, truth: Floats, columns: Sequence[Column]) -> MatchedRows:
    """Match guesses (m, k) with true rows (n, k) one to one: most cells recovered, then the closest."""
    likeness = _shares(guess, truth, columns)
    for k, column in enumerate(columns):  # ties go to the closest numbers
        apart = np.abs(guess[:, k, None] - truth[None, :, k])
        apart = np.minimum(apart / column.scale, 1.0) if column.is_number else (apart > 0).astype(float)
        likeness -= 1e-3 / len(columns) * apart
    rows, places = scipy.optimize.linear_sum_assignment(likeness, maximize=True)
    of = np.full(len(truth), -1, dtype=np.int64)
    of[places] = rows
    right = np.zeros(truth.shape, dtype=bool)
    right[places] = right_cells(guess[rows], truth[places], columns)
    return MatchedRows(guess=of, right=right)


def typical_row(auxiliary: Floats, labels: Integers, label: int, columns: Sequence[Column]) -> Floats | None:
    """Return the cells (k,) that most auxiliary rows (a, k) of a class share, of all classes if it has none.

    None without auxiliary rows.
    """
    if not len(auxiliary):
        return None
    of_class = labels == label
    rows = auxiliary[of_class] if of_class.any() else auxiliary
    rows = rows[:_MOST_AUXILIARY]
    cells = np.empty(len(columns))
    for k, column in enumerate(columns):
        values = rows[:, k]
        supporters = _alike(values[:, None], values[None], column).sum(1)
        cells[k] = values[supporters.argmax()]
    return cells


def score_rows(
    recovered: Sequence[RecoveredRows],
    columns: Sequence[Column],
    auxiliary: tuple[Floats, Integers],
    others: tuple[Floats, Integers],
    generator: np.random.Generator,
) -> Mapping[str, Figure]:
    """Return figures over victims, by name.

    Args:
        recovered: one a victim.
        columns: the columns of the cells.
        auxiliary: cells (a, k) and classes (a,) of the adversary's rows; there may be none.
        others: cells (b, k) and classes (b,) of rows that no victim trains on and no adversary holds.
        generator: draws other rows, and resamples.

    Returns:
        `cells_right`, a mean over rows, with `cells_right_prior`; `cells_gain` with p; `categories_right` of all
        categories; `numbers_error`, the median over all numbers of matched rows, and `numbers_error_prior`;
        `labels_right` and its prior. Figures that cannot be measured are unavailable with their reason.
    """
    matches = [matched_rows(one.guess, one.truth, columns) for one in recovered]
    right = np.concatenate([m.right.mean(1) for m in matches])
    figures = {"cells_right": mean_figure("cells_right", right, generator, unit="fraction")}
    priors, prior = list[Floats](), None
    if len(auxiliary[0]):
        shares = []
        for one in recovered:
            typical = _typical(one.labels, auxiliary, columns)
            priors.append(typical)
            shares.append(right_cells(typical, one.truth, columns).mean(1))
        prior = float(np.concatenate(shares).mean())
        note = "of the value that most auxiliary rows of the class share, in each column"
        figures["cells_right_prior"] = Figure(
            name="cells_right_prior", value=prior, unit="fraction", n=len(right), note=note
        )
    figures["cells_gain"] = _gain(recovered, columns, prior, others, generator)
    figures["categories_right"] = _categories(matches, columns)
    guesses = list[Floats]()
    for one, match in zip(recovered, matches, strict=True):
        cells = np.full_like(one.truth, np.nan)  # NaN in rows without a guess
        has_guess = match.guess >= 0
        cells[has_guess] = one.guess[match.guess[has_guess]]
        guesses.append(cells)
    figures["numbers_error"] = _numbers("numbers_error", recovered, columns, guesses)
    if prior is not None:
        figures["numbers_error_prior"] = _numbers("numbers_error_prior", recovered, columns, priors)
    guessed = [one.guess_labels for one in recovered if one.guess_labels is not None]
    labels = label_recovery_figures(
        guessed if len(guessed) == len(recovered) else None,
        [one.labels for one in recovered],
        auxiliary[1] if len(auxiliary[1]) else None,
        generator,
    )
    return {**figures, **{figure.name: figure for figure in labels}}


def _typical(labels: Integers, auxiliary: tuple[Floats, Integers], columns: Sequence[Column]) -> Floats:
    """Return the prior's guess (n, k) of rows of these classes (n,)."""
    cells = np.full((len(labels), len(columns)), np.nan)
    for label in np.unique(labels).tolist():
        row = typical_row(*auxiliary, label, columns)
        if row is not None:
            cells[labels == label] = row
    return cells


def _categories(matches: Sequence[MatchedRows], columns: Sequence[Column]) -> Figure:
    places = [k for k, column in enumerate(columns) if not column.is_number]
    if not places:
        why = "the table has no column of categories"
        return Figure(name="categories_right", value=None, unit="fraction", unavailable=why)
    right = np.concatenate([m.right[:, places].ravel() for m in matches])
    return Figure(name="categories_right", value=float(right.mean()), unit="fraction", n=len(right))


def _numbers(
    name: str, recovered: Sequence[RecoveredRows], columns: Sequence[Column], guesses: Sequence[Floats]
) -> Figure:
    """Return the median relative error of guessed numbers."""
    errors = list[Floats]()
    for one, guess in zip(recovered, guesses, strict=True):
        for k, column in enumerate(columns):
            if column.is_number:
                errors.append(relative_errors(guess[:, k], one.truth[:, k], column))
    if not errors:
        return Figure(name=name, value=None, unavailable="the table has no column of numbers")
    every = np.concatenate(errors)
    matched = every[~np.isnan(every)]
    if not len(matched):
        return Figure(name=name, value=None, unavailable="the attack guessed no row")
    return Figure(name=name, value=float(np.median(matched)), unit="fraction", n=len(matched))


def _gain(
    recovered: Sequence[RecoveredRows],
    columns: Sequence[Column],
    prior: float | None,
    others: tuple[Floats, Integers],
    generator: np.random.Generator,
) -> Figure:
    """Return the cells recovered over the larger of the prior and the same guess on other rows, tested by those."""
    shares = []
    draws = []
    for one in recovered:
        own, values = _against_others(one, columns, others, generator)
        shares.append(own)
        if values is not None:
            draws.append(values)
    observed = float(np.mean(shares))
    floor = prior or 0.0
    if len(draws) < len(recovered):
        why = "there are fewer other rows of the victim's classes than its own, so nothing bounds chance"
        return Figure(name="cells_gain", value=observed - floor, unit="fraction", n=len(recovered), note=why)
    least = min(map(len, draws))
    chance = np.mean([values[:least] for values in draws], axis=0)
    return Figure(
        name="cells_gain",
        value=observed - max(floor, float(chance.mean())),
        unit="fraction",
        n=len(recovered),
        note=f"the same guess recovers {chance.mean():.1%} of rows drawn from the same classes",
        p=exceedance(int((chance >= observed - 1e-12).sum()), len(chance)),
    )


def _against_others(
    one: RecoveredRows,
    columns: Sequence[Column],
    others: tuple[Floats, Integers],
    generator: np.random.Generator,
) -> tuple[float, Floats | None]:
    """Return the share of cells that a guess recovers of its victim's rows, and of rows drawn from their classes.

    The draws are from the victim's own and the other rows together, so the victim's are one draw among equals. None if
    there are too few others.
    """
    n, (x, y) = len(one.truth), others
    others_used = generator.permutation(len(x))[:_MOST_OTHERS]
    pool = np.concatenate([one.truth, x[others_used]])
    share = _shares(one.guess, pool, columns)
    observed = _largest(share[:, :n])
    groups = class_pools(one.labels, np.concatenate([one.labels, y[others_used]]))
    if groups is None:
        return observed, None
    if n == 1 and len(share):  # the best guess of a single row needs no matching
        rows, _ = groups[0]
        return observed, share.max(0)[generator.choice(rows, _DRAWS)]
    total = _DRAWS if share.shape[0] * n < _LARGE_BATCH else _FEW_DRAWS
    values = np.empty(total)
    for k in range(total):
        values[k] = _largest(share[:, draw_like(groups, generator)])
    return observed, values


def _shares(guess: Floats, truth: Floats, columns: Sequence[Column]) -> Floats:
    """Return the share (m, n) of the cells of each true row that each guess recovers."""
    share = np.zeros((len(guess), len(truth)))
    for k, row in enumerate(guess):
        share[k] = right_cells(row, truth, columns).mean(1)
    return share


def _largest(share: Floats) -> float:
    """Return the mean over true rows of the share of cells (m, n) that a one-to-one matching recovers at most."""
    if not len(share):
        return 0.0
    rows, places = scipy.optimize.linear_sum_assignment(share, maximize=True)
    return float(share[rows, places].sum() / share.shape[1])

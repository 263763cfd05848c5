"""From a stored table to rows: which columns are numbers, which are categories, and which one is the label."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fdaudit.data.raw import RawData, text_origins
from fdaudit.data.tables.sheet import Sheet
from fdaudit.errors import DataError, nearest
from fdaudit.limits import DATA_BYTES
from fdaudit.spec.schema import ColumnSpec
from fdaudit.tasks.columns import Column, width_of

__all__ = ["LABEL", "rows_of"]

LABEL = "label"
"""The column of the label if the spec names none."""
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-"})
"""Texts that stand for a missing value, in small letters."""
_MOST_CATEGORIES = 1000
"""Most categories of one column."""
_LARGEST = 1e30
"""Largest size of a number: 32-bit numbers and their squares in training still hold it after scaling."""
_FEW_CLASSES = 20
"""Number of different whole numbers that are classes, however few rows there are."""
_ROWS_A_CLASS = 4
"""Fewest rows for each class, on average, beyond `_FEW_CLASSES`; with fewer the label is a quantity or a name."""


def rows_of(
    sheet: Sheet, label: str | None, described: Mapping[str, ColumnSpec] | None, provenance: str
) -> RawData:
    """Return the rows of a table as vectors (n, d) with their classes.

    They are float64 until they are scaled. Numbers and categories that the spec describes are final. Other numbers are
    in their own units, and other columns have all categories that occur: `fdaudit.data.tables.known` replaces both by
    what all parties may know.

    Args:
        sheet: the table.
        label: the column of the label; None for `label`.
        described: what the spec says of columns, by name.
        provenance: source and licence, in a sentence.

    Raises:
        DataError: a column is absent, or holds a value that it cannot have; the error names the row.
    """
    label, specs = label or LABEL, dict(described or {})
    _refuse_unknown(sheet, label, specs)
    y, classes = _labels(sheet, label)
    columns, parts, cells = list[Column](), list[NDArray[np.float64]](), list[NDArray[Any]]()
    for name, values in sheet.columns.items():
        spec = specs.get(name, ColumnSpec())
        if name == label or spec.kind == "ignored":
            continue
        column, entries = _column(sheet, name, values, spec)
        columns.append(column)
        parts.append(entries)
        cells.append(values)
        if (size := 8 * len(sheet) * width_of(columns)) > DATA_BYTES.most:
            remedy = "Give fewer rows, or `kind: ignored` for columns with many categories."
            raise sheet.unfit(f"makes {DATA_BYTES.refusal(size)}", remedy)
    if not columns:
        raise sheet.unfit("has no column but its label", "Give one column at least.")
    return RawData(
        x=torch.from_numpy(np.concatenate(parts, axis=1)),
        y=torch.from_numpy(y),
        classes=len(classes),
        class_names=classes,
        columns=tuple(columns),
        provenance=provenance,
        origins=text_origins(list(map(str, row)) for row in zip(*cells, strict=True)),
    )


def _refuse_unknown(sheet: Sheet, label: str, specs: Mapping[str, ColumnSpec]) -> None:
    """Refuse a table without rows, without its label, or without a column that the spec describes."""
    names = tuple(sheet.columns)[:1000]
    if label not in sheet.columns:
        problem = f"is no column of {sheet.source}"
        raise DataError("dataset.label", label, problem, nearest(label, names))
    if not len(sheet):
        raise sheet.unfit("holds no record", "Give one with records.")
    for name in specs:
        if name not in sheet.columns:
            problem = f"is no column of {sheet.source}"
            raise DataError(f"dataset.columns.{name}", name, problem, nearest(name, names))
        if name == label:
            problem = "is the label, whose classes are those that occur"
            raise DataError(f"dataset.columns.{name}", name, problem, "Describe other columns only.")


def _column(
    sheet: Sheet, name: str, values: NDArray[Any], spec: ColumnSpec
) -> tuple[Column, NDArray[np.float64]]:
    """Return a column and its entries (n, width) of the rows' vectors."""
    kind = spec.kind_stated
    _refuse_missing(sheet, name, values, spec.names)
    numbers = _numbers(values) if kind != "category" else None
    if kind == "number" and numbers is None:
        row = 0
        while _number(values[row]) is not None:
            row += 1
        problem = f"has {str(values[row])[:40]!r} in column {name[:80]!r}, which is no number"
        remedy = "Correct it, or describe the column with `kind: category`."
        raise sheet.unfit(problem, remedy, row)
    if numbers is None:
        texts = list(map(_named, values))
        categories = spec.names or tuple(sorted(set(texts)))
        if len(categories) > _MOST_CATEGORIES:
            many = f"{len(categories):,} different values"
            problem = f"has {many} in column {name[:80]!r}, more than {_MOST_CATEGORIES:,}"
            remedy = "Describe it under `dataset.columns` with `kind: ignored`, or group its values."
            raise sheet.unfit(problem, remedy)
        place = {category: k for k, category in enumerate(categories)}
        entries = np.zeros((len(texts), len(categories)), dtype=np.float64)
        for row, text in enumerate(texts):
            if text not in place:
                problem = f"has {text[:40]!r} in column {name[:80]!r}, which is not among its categories"
                remedy = f"Add it to `dataset.columns.{name[:80]}.categories`, or correct the row."
                raise sheet.unfit(problem, remedy, row)
            entries[row, place[text]] = 1
        return Column(name=name, categories=categories, stated=bool(spec.names)), entries
    wrong = np.flatnonzero(~(np.abs(numbers) <= _LARGEST))
    if len(wrong):
        problem = f"has {numbers[wrong[0]]:g} in column {name[:80]!r}"
        remedy = f"Give finite numbers of a size up to {_LARGEST:g}."
        raise sheet.unfit(problem, remedy, int(wrong[0]))
    mean, scale = spec.mean or 0.0, spec.scale or 1.0
    column = Column(name=name, mean=mean, scale=scale, stated=spec.scale is not None)
    return column, ((numbers - mean) / scale)[:, None]


def _labels(sheet: Sheet, name: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the classes (n,) of rows, and their names: numbers in their order, texts in that of the alphabet."""
    values = sheet.columns[name]
    _refuse_missing(sheet, name, values, ())
    numbers = _numbers(values)
    n = len(values)
    if numbers is not None:
        fractions = np.flatnonzero(numbers != np.round(numbers))
        if len(fractions):
            raise _quantity(sheet, name, f"holds {numbers[fractions[0]]:g}")
        distinct, y = np.unique(numbers, return_inverse=True)
        names = tuple(map(_named, distinct))
    else:
        texts = np.array(list(map(_named, values)), dtype=object)
        distinct, y = np.unique(texts, return_inverse=True)
        names = tuple(distinct.tolist())
    if len(names) > max(_FEW_CLASSES, n // _ROWS_A_CLASS):
        raise _quantity(sheet, name, f"has {len(names):,} different values in {n:,} rows")
    if len(names) < 2:
        raise DataError("dataset.label", name, "holds one class only", "Give data of at least two classes.")
    return y.astype(np.int64).reshape(-1), names


def _quantity(sheet: Sheet, name: str, problem: str) -> DataError:
    problem = f"{problem}, so it is a quantity or a name and no class"
    remedy = "Models here predict classes: group its values, or name another column."
    return DataError("dataset.label", name, problem, remedy)


def _refuse_missing(sheet: Sheet, name: str, values: NDArray[Any], allowed: tuple[str, ...]) -> None:
    """Refuse a column with missing values, unless they are stated as a category."""
    gone = list[int]()
    if values.dtype.kind == "f":
        gone = np.flatnonzero(np.isnan(values)).tolist()
    else:
        for row, value in enumerate(values):
            if value.lower() in _MISSING and value not in allowed:
                gone.append(row)
    if gone:
        problem = f"has no value in column {name[:80]!r} ({len(gone):,} of {len(values):,} rows have none)"
        remedy = "Fill them in or remove the rows. If it is a category, list it in the column's `categories`."
        raise sheet.unfit(problem, remedy, gone[0])


def _numbers(values: NDArray[Any]) -> NDArray[np.float64] | None:
    """Return a column as numbers (n,), if every value is one."""
    if values.dtype.kind == "f":
        return values
    numbers = np.empty(len(values))
    for row, value in enumerate(values):
        number = _number(value)
        if number is None:
            return None
        numbers[row] = number
    return numbers


def _number(value: object) -> float | None:
    """Return a cell as a number; None if it is none."""
    text = str(value)
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _named(value: object) -> str:
    """Return a cell as the name of a category: whole numbers without a point."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return str(int(value))
    return str(value)

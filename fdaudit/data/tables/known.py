"""The scales and categories that every party may know.

Guarantees:
  * they follow from the spec, and from public and auxiliary rows only: no other row changes a scale or adds a category;
  * a value outside the categories counts as the category `(other)`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import compress

import torch
from torch import Tensor

from fdaudit.data.datasets import Dataset
from fdaudit.errors import DataError
from fdaudit.tasks.columns import OTHER, Column, spans

__all__ = ["known_columns"]

_SMALLEST = 1e-9
"""Least standard deviation that is a scale, as a share of the mean's size; a constant column keeps the scale 1."""


def known_columns(dataset: Dataset, public: Tensor) -> Dataset:
    """Return rows with scales and categories that everyone may know; other datasets as they are.

    Args:
        dataset: rows as `fdaudit.data.tables.reading` makes them.
        public: (m,) rows of the public and auxiliary records.

    Raises:
        DataError: there is no public or auxiliary row, and the spec leaves a scale or categories open.
    """
    if not dataset.columns:
        return dataset
    if all(column.stated for column in dataset.columns):
        return replace(dataset, x=dataset.x.float())
    if not len(public):
        problem = "leave no row to take scales and categories from"
        remedy = "Raise splits.proxy or splits.auxiliary, or state them under `dataset.columns`."
        raise DataError("splits", "proxy and auxiliary", problem, remedy)
    columns, parts = list[Column](), list[Tensor]()
    for column, span in zip(dataset.columns, spans(dataset.columns), strict=True):
        entries = dataset.x[:, span]
        if not column.stated:
            column, entries = _known(column, entries, public)
        columns.append(column)
        parts.append(entries)
    return replace(dataset, x=torch.cat(parts, 1).float(), columns=tuple(columns))


def _known(column: Column, entries: Tensor, public: Tensor) -> tuple[Column, Tensor]:
    """Return a column with what its public entries show, and all entries (n, width)."""
    if column.is_number:
        mean = float(entries[public].mean())
        scale = float(entries[public].std(correction=0))
        if scale <= _SMALLEST * max(abs(mean), 1.0):
            scale = 1.0
        return replace(column, mean=mean, scale=scale, stated=True), (entries - mean) / scale
    occurs = entries[public].any(0)
    if OTHER in column.categories:
        occurs[column.categories.index(OTHER)] = False
    names = compress(column.categories, occurs.tolist())
    of_names = entries[:, occurs]
    of_others = 1 - of_names.sum(1, keepdim=True)
    public_column = replace(column, categories=(*names, OTHER), stated=True)
    return public_column, torch.cat([of_names, of_others], 1)

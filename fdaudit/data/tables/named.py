"""Tables known by name: two of scikit-learn's, and one with categories that is made here."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdaudit.data.tables.reading import LABEL
from fdaudit.data.tables.sheet import Sheet
from fdaudit.rng import child_numpy

__all__ = ["NAMED", "named_table"]

NAMED = ("breast_cancer", "made-table", "wine")
"""Known tables."""
_MADE_ROWS = 1200


def named_table(name: str) -> tuple[Sheet, str]:
    """Return a known table, and a sentence on its source.

    `breast_cancer` has 569 rows of 30 numbers in two classes, `wine` 178 rows of 13 numbers in three. `made-table` has
    1,200 rows of four numbers and three categories in two classes.

    Args:
        name: one of `NAMED`.
    """
    if name == "made-table":
        return _made(), "Rows drawn from a fixed seed by fdaudit; they describe nobody."
    from sklearn.datasets import load_breast_cancer, load_wine

    if name == "breast_cancer":
        bunch = load_breast_cancer()
        provenance = "Breast Cancer Wisconsin (Diagnostic) (Wolberg, Street and Mangasarian 1993), CC BY 4.0."
    else:
        bunch = load_wine()
        provenance = "Wine (Aeberhard and Forina 1992), CC BY 4.0."
    columns: dict[str, NDArray[Any]] = {}
    for k, column in enumerate(bunch.feature_names):
        columns[str(column)] = bunch.data[:, k].astype(np.float64)
    columns[LABEL] = np.array([str(bunch.target_names[c]) for c in bunch.target], dtype=object)
    return Sheet(name, columns), provenance


def _made() -> Sheet:
    """Return a table with a label that its columns explain in part; the same in every run."""
    rng = child_numpy(0, "made-table")
    n = _MADE_ROWS
    age = rng.integers(18, 90, n).astype(np.float64)
    income = np.round(np.exp(rng.normal(10.3, 0.5, n)), 2)
    visits = rng.poisson(1.5, n).astype(np.float64)  # many are 0
    pressure = np.round(rng.normal(125, 15, n), 1)
    region = rng.choice(["east", "north", "south", "west"], n, p=[0.4, 0.3, 0.2, 0.1])
    plan = rng.choice(["basic", "family", "premium"], n, p=[0.5, 0.3, 0.2])
    smoker = rng.choice(["no", "yes"], n, p=[0.75, 0.25])
    score = 0.05 * (age - 54) + 0.04 * (pressure - 125) + 0.5 * (visits - 1.5)
    score += 1.5 * (smoker == "yes") - 0.8 * (plan == "premium") + 0.6 * (region == "north") - 0.4
    readmitted = rng.random(n) < 1 / (1 + np.exp(-1.5 * score))
    return Sheet(
        "made-table",
        {
            "age": age,
            "income": income,
            "visits": visits,
            "blood pressure": pressure,
            "region": region.astype(object),
            "plan": plan.astype(object),
            "smoker": smoker.astype(object),
            LABEL: np.where(readmitted, "readmitted", "not readmitted").astype(object),
        },
    )

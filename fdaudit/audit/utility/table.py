"""The table `utility.csv` of a run, read back for its result."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from fdaudit.audit.utility import measurement_of
from fdaudit.data.splits import test_xy
from fdaudit.errors import IntegrityError
from fdaudit.limits import TABLE_BYTES, read_file
from fdaudit.metrics import Chance, near_chance
from fdaudit.result import CurvePoint, FinalUtility, Utility

if TYPE_CHECKING:
    import pandas as pd

    from fdaudit.planning.case import Case

__all__ = ["reference_near_chance", "utility_of", "utility_table"]


def utility_table(run: Path) -> pd.DataFrame:
    """Return `utility.csv` of a run.

    Raises:
        IntegrityError: it cannot be read, or is not a table.
    """
    import pandas as pd

    try:
        return pd.read_csv(io.BytesIO(read_file(run / "utility.csv", TABLE_BYTES)))
    except (OSError, ValueError) as error:
        raise _unreadable(error) from None


def utility_of(run: Path, case: Case) -> Utility:
    """Return the utility of a run's models, by round and at the end, with warnings of a final model near chance.

    Raises:
        IntegrityError: the table cannot be read, or is not one.
    """
    rows = []  # about all test records: numbers as floats, and NaN for an empty cell
    try:
        text = read_file(run / "utility.csv", TABLE_BYTES).decode("utf-8")
        for cells in csv.DictReader(io.StringIO(text)):
            row = SimpleNamespace(
                line=cells.pop("line"), party=cells.pop("party"), round=int(cells.pop("round"))
            )
            for name, cell in cells.items():
                setattr(row, name, float(cell or "nan"))
            if math.isnan(getattr(row, "site", math.nan)):
                rows.append(row)
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise _unreadable(error) from None
    measurement = measurement_of(case.dataset.task)
    by_line: dict[str, list[SimpleNamespace]] = {}
    for row in rows:
        by_line.setdefault(row.line, []).append(row)
    final = []
    for line, of_line in by_line.items():
        last = max(row.round for row in of_line)
        for row in of_line:
            if row.round == last:
                figure = measurement.figure(row, case.dataset.classes)
                final.append(FinalUtility(line=line, party=row.party, figure=figure))
    curve = []
    for row in rows:
        figures = {name: getattr(row, name) for name in measurement.curve}
        curve.append(CurvePoint(line=row.line, round=row.round, party=row.party, **figures))
    warnings = near_chance(final, curve, case.protocol.card.name, _chance(case))
    return Utility(
        curve=tuple(curve),
        final=tuple(final),
        warnings=tuple(f"{line} Attacks on it say little about a trained model." for line in warnings),
    )


def reference_near_chance(utility: Utility, case: Case) -> Iterator[str]:
    """Yield why the line `centralized` is no measure of the others, if its model ends near chance."""
    if not utility.final:
        return
    for line in near_chance(utility.final, utility.curve, "centralized", _chance(case)):
        yield f"Compare nothing with the line `centralized`. {line}"


def _unreadable(error: Exception) -> IntegrityError:
    cause = getattr(error, "strerror", None) or str(error)
    return IntegrityError([f"utility.csv cannot be read: {' '.join(cause.split())}"])


def _chance(case: Case) -> Chance:
    """Return the utility of an answer that has learnt nothing."""
    return measurement_of(case.dataset.task).chance(test_xy(case.dataset, case.splits)[1])

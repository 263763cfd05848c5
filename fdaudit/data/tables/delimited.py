"""Rows of comma- and tab-separated files, of bounded size."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fdaudit.errors import DataError
from fdaudit.limits import TABLE_BYTES, read_file

__all__ = ["FIELD", "DelimitedRow", "absent", "damaged", "read_rows"]

FIELD = "dataset.name"
"""The user's field that names the file, for errors."""


class _Tabs(csv.excel_tab):
    """Tabs between fields; quotes are plain characters."""

    quoting = csv.QUOTE_NONE


class DelimitedRow(NamedTuple):
    """A row of a table with the number of its first line, for errors."""

    line: int
    fields: list[str]


def read_rows(file: Path, delimiter: str) -> Iterator[DelimitedRow]:
    """Yield the rows of a table that hold anything.

    Args:
        file: the file, UTF-8.
        delimiter: a comma or a tab.

    Raises:
        DataError: the file is absent, too large, no UTF-8, or no such table.
    """
    try:
        content = read_file(file, TABLE_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        raise absent(file) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        remedy = "Store a table in UTF-8, with fields separated by commas or tabs."
        raise DataError(FIELD, str(file), f"cannot be read ({reason})", remedy) from None
    dialect: type[csv.Dialect] = _Tabs if delimiter == "\t" else csv.excel
    reader = csv.reader(io.StringIO(content, newline=""), dialect, strict=True)
    line = 1
    try:
        for fields in reader:
            if fields:
                yield DelimitedRow(line, fields)
            line = reader.line_num + 1
    except csv.Error as error:
        raise damaged(file, line, f"is no row of a table ({error})") from None


def absent(file: Path) -> DataError:
    """Return the error that a file does not exist."""
    remedy = "Give a path below `dataset.root`, or an absolute path."
    return DataError(FIELD, str(file), "names no file", remedy)


def damaged(file: Path, line: int, problem: str, remedy: str = "Correct or remove that row.") -> DataError:
    """Return the error that the row at a line cannot be used."""
    return DataError(FIELD, str(file), f"row at line {line} {problem}", remedy)

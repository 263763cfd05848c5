"""A table as it is stored: columns of texts or numbers, from CSV, npz and Parquet files.

Guarantees:
  * the size of a table is bounded before its cells are kept;
  * nothing in a file is run: npz files are read without pickles, and Parquet files by pyarrow alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fdaudit.data.files import array_names, read_arrays
from fdaudit.data.raw import printable
from fdaudit.data.tables.delimited import FIELD, absent, damaged, read_rows
from fdaudit.errors import DataError, reason_of
from fdaudit.limits import DATA_BYTES, open_file

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Sheet", "sheet_in", "sheet_of_arrays", "sheet_of_frame"]

MOST_CELLS = 1 << 24
"""Most cells of a table."""
MOST_COLUMNS = 16_384
"""Most columns of a table."""
_LONGEST_NAME = 200
"""Most characters of a column's name or of a cell of text."""
_TABS = (".tsv", ".tab")
_PARQUET = (".parquet", ".pq")


@dataclass(frozen=True, eq=False)
class Sheet:
    """The columns of a table.

    Attributes:
        source: the file, for errors.
        columns: by name, (n,) float64 with NaN where a value is missing, or (n,) texts as objects, "" where missing.
        lines: the line of each row in a file of text; None elsewhere.
    """

    source: str
    columns: Mapping[str, NDArray[Any]]
    lines: Sequence[int] | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.columns.values()), ()))

    def unfit(self, problem: str, remedy: str, row: int | None = None) -> DataError:
        """Return the error that the table, or a row of it, cannot be used."""
        if row is not None:
            place = f"row {row + 1}" if self.lines is None else f"row at line {self.lines[row]}"
            problem = f"{place} {problem}"
        return DataError(FIELD, self.source, problem, remedy)


def sheet_in(file: Path) -> Sheet:
    """Return the table of a file: `.csv`, `.tsv`, `.npz` or `.parquet`.

    Raises:
        DataError: the file is absent, damaged, too large or of another type; the error names the row or the column.
    """
    suffix = file.suffix.lower()
    if suffix == ".npz":
        if not file.exists():
            raise absent(file)
        names = array_names(file, FIELD)
        return sheet_of_arrays(read_arrays(file, names, FIELD), str(file))
    if suffix in _PARQUET:
        return _in_parquet(file)
    if suffix not in (".csv", *_TABS):
        raise DataError(
            FIELD, str(file), "is no .csv, .tsv, .npz or .parquet file", "Store the table as one."
        )
    rows = read_rows(file, "\t" if suffix in _TABS else ",")
    header = next(rows, None)
    if header is None:
        raise DataError(FIELD, str(file), "is empty", "Begin it with the names of its columns.")
    headings = [name.strip() for name in header.fields]
    _refuse_names(headings, str(file))
    columns: list[list[str]] = [[] for _ in headings]
    lines = list[int]()
    for line, fields in rows:
        if len(fields) != len(headings):
            raise damaged(file, line, f"has {len(fields)} fields, not {len(headings)}")
        lines.append(line)
        _refuse_size(len(headings), len(lines), str(file))
        for column, field in zip(columns, fields, strict=True):
            column.append(field.strip())
    cells = dict[str, NDArray[Any]]()
    for name, column in zip(headings, columns, strict=True):
        cells[name] = _plain(np.array(column, dtype=object))
    return Sheet(str(file), cells, lines)


def sheet_of_arrays(arrays: Mapping[str, NDArray[Any]], source: str) -> Sheet:
    """Return the table of arrays (n,), one a column, and (n, d), d columns that count from 0.

    Raises:
        DataError: the arrays have other shapes or types, or do not have one length.
    """
    columns = dict[str, NDArray[Any]]()
    for name, array in arrays.items():
        if array.ndim not in (1, 2) or array.dtype.kind not in "biufU":
            problem = f"has an array {name[:80]!r} {array.dtype} {array.shape}"
            remedy = "Store numbers, booleans or texts, as (n,) for one column or (n, d) for several."
            raise DataError(FIELD, source, problem, remedy)
        if array.ndim == 1:
            columns[name] = _plain(array)
            continue
        for k in range(array.shape[1]):
            columns[f"{name} {k}"] = _plain(array[:, k])
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        problem = f"has columns of {min(lengths)} and of {max(lengths)} rows"
        raise DataError(FIELD, source, problem, "Store one value a row in each column.")
    _refuse_names(list(columns), source)
    _refuse_size(len(columns), max(lengths, default=0), source)
    return Sheet(source, columns)


def sheet_of_frame(frame: pd.DataFrame, source: str) -> Sheet:
    """Return the table of a data frame: numbers, booleans, texts and pandas' own categories.

    Raises:
        DataError: a column has another type.
    """
    columns = dict[str, NDArray[Any]]()
    _refuse_names(list(map(str, frame.columns)), source)
    for name, series in frame.items():
        missing = series.isna().to_numpy(dtype=bool)
        kind = getattr(series.dtype, "kind", "O")
        if kind in "iuf":
            columns[str(name)] = series.to_numpy(dtype=np.float64, na_value=np.nan)
            continue
        texts = []
        for value, is_missing in zip(series.astype(object).tolist(), missing, strict=True):
            if is_missing:
                value = ""
            elif not isinstance(value, (str, bool, int, float, np.number)):
                problem = f"has a {type(value).__name__} in column {str(name)[:80]!r}"
                raise DataError(FIELD, source, problem, "Store numbers, booleans or texts.")
            texts.append(_text(value))
        columns[str(name)] = np.array(texts, dtype=object)
    return Sheet(source, columns)


def _in_parquet(file: Path) -> Sheet:
    if importlib.util.find_spec("pyarrow") is None:
        remedy = "Install it with `pip install pyarrow`, or store the table as .csv or .npz."
        raise DataError(FIELD, str(file), "needs pyarrow, which is not installed, to be read", remedy)
    import pandas as pd
    import pyarrow
    import pyarrow.parquet as pq

    try:
        with open_file(file, DATA_BYTES) as stream:
            contents = pq.ParquetFile(stream).metadata
            _refuse_size(contents.num_columns, contents.num_rows, str(file))
            unpacked = sum(contents.row_group(k).total_byte_size for k in range(contents.num_row_groups))
            if unpacked > DATA_BYTES.most:
                problem = f"unpacks to {DATA_BYTES.refusal(unpacked)}"
                raise DataError(FIELD, str(file), problem, "Give fewer rows.")
            stream.seek(0)
            frame = pd.read_parquet(stream, engine="pyarrow")
    except FileNotFoundError:
        raise absent(file) from None
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        problem = f"is no readable Parquet file ({reason_of(error)})"
        raise DataError(FIELD, str(file), problem, "Write it again.") from None
    return sheet_of_frame(frame, str(file))


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return numbers as float64 and everything else as texts."""
    if array.dtype.kind in "iuf":
        return array.astype(np.float64)
    return np.array([_text(value) for value in array.tolist()], dtype=object)


def _text(value: object) -> str:
    """Return a cell as text: whole numbers without a point, at most as long as a name, printable."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    return printable(str(value)[:_LONGEST_NAME])


def _refuse_names(names: Sequence[str], source: str) -> None:
    """Refuse columns without a name, of one name, or with a long one."""
    if len(names) > MOST_COLUMNS:
        problem = f"has {len(names):,} columns, more than {MOST_COLUMNS:,}"
        raise DataError(FIELD, source, problem, "Give fewer columns.")
    seen = set[str]()
    for number, name in enumerate(names, start=1):
        if not name:
            problem, remedy = f"has no name for column {number}", "Name it, or leave the column out."
            raise DataError(FIELD, source, problem, remedy)
        if len(name) > _LONGEST_NAME:
            problem = f"has a column name of {len(name):,} characters, more than {_LONGEST_NAME}"
            raise DataError(FIELD, source, problem, "Shorten it.")
        if name in seen:
            raise DataError(FIELD, source, f"has two columns {name[:80]!r}", "Rename one of them.")
        seen.add(name)


def _refuse_size(columns: int, rows: int, source: str) -> None:
    if columns * rows > MOST_CELLS or columns > MOST_COLUMNS:
        problem = f"has {rows:,} rows or more of {columns:,} columns, more than {MOST_CELLS:,} cells"
        raise DataError(FIELD, source, problem, "Give fewer rows or columns.")

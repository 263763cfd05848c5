"""Texts with one class each: AG News, SST-2, and a user's own table, `text:FILE`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fdaudit.data.raw import RawData, class_total, text_origins
from fdaudit.data.texts.wordpieces import PieceNumbering, Pieces
from fdaudit.data.texts.words import Numbering, words_of
from fdaudit.errors import DataError
from fdaudit.limits import DATA_BYTES, TABLE_BYTES, read_file

__all__ = ["TEXTS", "read_named_texts", "read_texts"]

_FIELD = "dataset.name"
_LONGEST = 100_000
"""Most characters of one field."""
_MOST_CLASSES = 10_000
_AG_NEWS = ("World", "Sports", "Business", "Sci/Tech")
TEXTS = ("ag_news", "sst2")
"""Known datasets of texts."""


class _Tabs(csv.excel_tab):
    """Tabs between fields; quotes are plain characters."""

    quoting = csv.QUOTE_NONE


class _Row(NamedTuple):
    """A row of a table with the number of its first line, for errors."""

    line: int
    fields: list[str]


def read_texts(file: Path, length: int, pieces: Pieces | None = None) -> RawData:
    """Read a user's table with the columns `text` and `label`: comma-separated, or tab-separated if it ends in .tsv.

    An optional column `group` names the records that belong together, by any text: those of one person, for example.
    Labels are whole numbers from 0. Fields of a comma-separated file may be quoted; those of a tab-separated one are
    read as they are.

    Args:
        file: the file, UTF-8.
        length: number of tokens of a record.
        pieces: the word pieces that texts are cut into; None numbers the file's own words.

    Raises:
        DataError: the file is absent or too large, or a row is damaged; the error names the row.
    """
    rows = _rows(file, "\t" if file.suffix.lower() == ".tsv" else ",")
    header = next(rows, _Row(1, [])).fields
    if missing := [name for name in ("text", "label") if header.count(name) != 1]:
        problem = f"has no column {missing[0]}, or several" if header else "is empty"
        raise DataError(_FIELD, str(file), problem, "Begin it with the names of its columns: text,label.")
    text, label = header.index("text"), header.index("label")
    group = header.index("group") if header.count("group") == 1 else None
    numbering = _numbering(length, pieces)
    x, y, origins, groups = _records(file, rows, len(header), (text,), label, 0, numbering, group)
    least = int(y.min())
    if least:
        problem = f"numbers its classes from {least}: class 0 never occurs"
        raise DataError(_FIELD, str(file), problem, "Number them from 0.")
    return RawData(
        x=x,
        y=y,
        classes=class_total([y], _FIELD, str(file)),
        provenance=f"The user's file {file.name}; licence not stated in it.",
        words=numbering.words,
        origins=origins,
        groups=groups,
    )


def read_named_texts(name: str, root: Path, length: int, pieces: Pieces | None = None) -> RawData:
    """Read `ag_news` or `sst2` from the folder of datasets.

    Args:
        name: one of `TEXTS`.
        root: the folder of datasets.
        length: number of tokens of a record.
        pieces: the word pieces that texts are cut into; None numbers the files' own words.

    Raises:
        DataError: a file is absent or damaged.
    """
    numbering = _numbering(length, pieces)
    if name == "ag_news":
        file = root / "ag_news.csv"
        x, y, origins, _ = _records(file, _rows(file, ","), 3, (1, 2), 0, 1, numbering)
        return RawData(
            x=x,
            y=y,
            classes=len(_AG_NEWS),
            class_names=_AG_NEWS,
            provenance="AG News (Zhang, Zhao & LeCun 2015), title and description; for research and other "
            "non-commercial use.",
            words=numbering.words,
            origins=origins,
        )
    parts = {}
    for part in ("train", "dev"):
        file = root / f"sst2_{part}.tsv"
        rows = _rows(file, "\t")
        next(rows, None)
        parts[part] = _records(file, rows, 2, (0,), 1, 0, numbering)
    (x, y, origins, _), (test_x, test_y, *_) = parts["train"], parts["dev"]
    return RawData(
        x=x,
        y=y,
        test_x=test_x,
        test_y=test_y,
        classes=2,
        class_names=("negative", "positive"),
        provenance="SST-2 (Socher et al. 2013) as in GLUE, test on its development split; licence not stated.",
        words=numbering.words,
        origins=origins,
    )


def _numbering(length: int, pieces: Pieces | None) -> Numbering:
    return Numbering(length) if pieces is None else PieceNumbering(length, pieces)


def _rows(file: Path, delimiter: str) -> Iterator[_Row]:
    """Yield the rows of a table that hold anything.

    Raises:
        DataError: the file is absent, too large, no UTF-8, or no such table.
    """
    try:
        content = read_file(file, TABLE_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        remedy = "Give a path below `dataset.root`, or an absolute path."
        raise DataError(_FIELD, str(file), "names no file", remedy) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        remedy = "Store a table in UTF-8, with fields separated by commas or tabs."
        raise DataError(_FIELD, str(file), f"cannot be read ({reason})", remedy) from None
    dialect: type[csv.Dialect] = _Tabs if delimiter == "	" else csv.excel
    reader = csv.reader(io.StringIO(content, newline=""), dialect, strict=True)
    line = 1
    try:
        for fields in reader:
            if fields:
                yield _Row(line, fields)
            line = reader.line_num + 1
    except csv.Error as error:
        raise _damaged(file, line, f"is no row of a table ({error})") from None


def _records(
    file: Path,
    rows: Iterator[_Row],
    width: int,
    texts: Sequence[int],
    label: int,
    first: int,
    numbering: Numbering,
    group: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return token numbers (n, L), classes (n,), origins (n, 2) and groups (n,), if there are any, of a table's rows.

    Args:
        file: for errors.
        rows: all but the names of the columns.
        width: number of columns.
        texts: the columns of the text, in order.
        label: the column of the class.
        first: the number of the first class.
        numbering: numbers the words.
        group: the column of the group, if there is one.
    """
    read, labels, names = list[str](), list[int](), dict[str, int]()
    groups = list[int]()
    for line, fields in rows:
        if len(fields) != width:
            raise _damaged(file, line, f"has {len(fields)} fields, not {width}")
        text = " ".join(fields[n] for n in texts)
        if not text.strip():
            raise _damaged(file, line, "has no text")
        if len(text) > _LONGEST:
            raise _damaged(file, line, f"has a text of {len(text):,} characters, more than {_LONGEST:,}")
        read.append(text)
        labels.append(_class(fields[label].strip(), first, file, line))
        if group is not None:
            groups.append(names.setdefault(fields[group].strip(), len(names)))
    if not read:
        raise DataError(_FIELD, str(file), "holds no record", "Give one with records.")
    if (size := 8 * len(read) * numbering.length) > DATA_BYTES.most:
        remedy = "Give fewer records, or a smaller `dataset.length`."
        raise DataError(_FIELD, str(file), f"makes {DATA_BYTES.refusal(size)}", remedy)
    alike = None if group is None else torch.tensor(groups)
    return numbering.rows(read), torch.tensor(labels), text_origins(map(words_of, read)), alike


def _class(text: str, first: int, file: Path, line: int) -> int:
    """Return a class, counted from 0."""
    plain = text.isascii() and text.isdigit() and len(text) < 10
    if not plain or not first <= int(text) < first + _MOST_CLASSES:
        raise _damaged(
            file, line, f"has the label {text[:40]!r}", f"Number the classes {first}, {first + 1}, …."
        )
    return int(text) - first


def _damaged(file: Path, line: int, problem: str, remedy: str = "Correct or remove that row.") -> DataError:
    return DataError(_FIELD, str(file), f"row at line {line} {problem}", remedy)

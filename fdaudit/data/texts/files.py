"""Texts with one class each: AG News, SST-2, and a user's own table, `text:FILE`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fdaudit.data.raw import RawData, class_total, text_origins
from fdaudit.data.tables.delimited import FIELD, DelimitedRow, damaged, read_rows
from fdaudit.data.texts.words import Numbering, words_of
from fdaudit.errors import DataError
from fdaudit.limits import DATA_BYTES

__all__ = ["TEXTS", "read_named_texts", "read_texts"]

_LONGEST = 100_000
"""Most characters of one field."""
_MOST_CLASSES = 10_000
_AG_NEWS = ("World", "Sports", "Business", "Sci/Tech")
TEXTS = ("ag_news", "sst2")
"""Known datasets of texts."""


def read_texts(file: Path, numbering: Numbering) -> RawData:
    """Read a user's table with the columns `text` and `label`: comma-separated, or tab-separated if it ends in .tsv.

    An optional column `group` names the records that belong together, by any text: those of one person, for example.
    Labels are whole numbers from 0. Fields of a comma-separated file may be quoted; those of a tab-separated one are
    read as they are.

    Args:
        file: the file, UTF-8.
        numbering: a new one, which cuts texts into words or pieces and numbers them.

    Raises:
        DataError: the file is absent or too large, or a row is damaged; the error names the row.
    """
    rows = read_rows(file, "\t" if file.suffix.lower() == ".tsv" else ",")
    header = next(rows, DelimitedRow(1, [])).fields
    for name in ("text", "label"):
        if header.count(name) != 1:
            problem = f"has no column {name}, or several" if header else "is empty"
            raise DataError(FIELD, str(file), problem, "Begin it with the names of its columns: text,label.")
    text, label = header.index("text"), header.index("label")
    group = header.index("group") if header.count("group") == 1 else None
    x, y, origins, groups = _records(file, rows, len(header), (text,), label, 0, numbering, group)
    least = int(y.min())
    if least:
        problem = f"numbers its classes from {least}: class 0 never occurs"
        raise DataError(FIELD, str(file), problem, "Number them from 0.")
    return RawData(
        x=x,
        y=y,
        classes=class_total([y], FIELD, str(file)),
        provenance=f"The user's file {file.name}; licence not stated in it.",
        words=numbering.words,
        origins=origins,
        groups=groups,
    )


def read_named_texts(name: str, root: Path, numbering: Numbering) -> RawData:
    """Read `ag_news` or `sst2` from the folder of datasets.

    Args:
        name: one of `TEXTS`.
        root: the folder of datasets.
        numbering: a new one, which cuts texts into words or pieces and numbers them.

    Raises:
        DataError: a file is absent or damaged.
    """
    if name == "ag_news":
        file = root / "ag_news.csv"
        x, y, origins, _ = _records(file, read_rows(file, ","), 3, (1, 2), 0, 1, numbering)
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
        rows = read_rows(file, "\t")
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


def _records(
    file: Path,
    rows: Iterator[DelimitedRow],
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
    records, labels, groups = list[str](), list[int](), list[int]()
    group_numbers = dict[str, int]()
    for line, fields in rows:
        if len(fields) != width:
            raise damaged(file, line, f"has {len(fields)} fields, not {width}")
        text = " ".join(fields[n] for n in texts)
        if not text.strip():
            raise damaged(file, line, "has no text")
        if len(text) > _LONGEST:
            raise damaged(file, line, f"has a text of {len(text):,} characters, more than {_LONGEST:,}")
        number = fields[label].strip()
        plain = number.isascii() and number.isdigit() and len(number) < 10
        if not plain or not first <= int(number) < first + _MOST_CLASSES:
            remedy = f"Number the classes {first}, {first + 1}, …."
            raise damaged(file, line, f"has the label {number[:40]!r}", remedy)
        records.append(text)
        labels.append(int(number) - first)
        if group is not None:
            groups.append(group_numbers.setdefault(fields[group].strip(), len(group_numbers)))
    if not records:
        raise DataError(FIELD, str(file), "holds no record", "Give one with records.")
    size = 8 * len(records) * numbering.length
    if size > DATA_BYTES.most:
        remedy = "Give fewer records, or a smaller `dataset.length`."
        raise DataError(FIELD, str(file), f"makes {DATA_BYTES.refusal(size)}", remedy)
    origins = text_origins(map(words_of, records))
    record_groups = None if group is None else torch.tensor(groups)
    return numbering.rows(records), torch.tensor(labels), origins, record_groups

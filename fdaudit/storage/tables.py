"""Tables as CSV, in one format.

Guarantee:
  * a spreadsheet reads every cell and heading as a number or text, never as a formula.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["csv_text"]

_FORMULA = re.compile(r"[\s\x00]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\n]")
"""Start of a cell that a spreadsheet may compute, full-width signs included."""
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|inf|nan)")


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    r"""Return rows as CSV with `\n` line ends. Text that could be a formula gets a leading apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow(list(map(_plain, row)))
    return text.getvalue()


def _plain(cell: object) -> object:
    if not isinstance(cell, str) or _NUMBER.fullmatch(cell):
        return cell
    text = cell.replace("\r", " ")  # it would end a line that no quotes protect
    return f"'{text}" if _FORMULA.match(text) else text

"""Tables as CSV, LaTeX and HTML, each in one format.

Guarantees:
  * a spreadsheet reads every cell and heading as a number or text, never as a formula;
  * LaTeX reads every cell, heading and caption as text, never as a command;
  * HTML shows every cell, heading and caption as text, with invisible characters written out.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fdaudit.names import visible

__all__ = ["csv_text", "html_table", "latex_escaped", "latex_table"]

_FORMULA = re.compile(r"[\s\x00]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\n]")
"""Start of a cell that a spreadsheet may compute, full-width signs included."""
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|inf|nan)")
_LATEX: Mapping[str, str] = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"{\char34}",
    "\N{NO-BREAK SPACE}": "~",
    "\N{MINUS SIGN}": "$-$",
    "\N{EN DASH}": "{--}",
    "\N{EM DASH}": "{---}",
    "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{GREEK SMALL LETTER EPSILON}": r"$\varepsilon$",
    "\N{GREEK SMALL LETTER DELTA}": r"$\delta$",
    "\N{GREEK SMALL LETTER SIGMA}": r"$\sigma$",
    "\N{INFINITY}": r"$\infty$",
}
_PAIRS = ("--", ",,", "''", "``", "!`", "?`")
"""Characters that fonts of LaTeX join to another one."""
_LAST_LATIN = 0xFF
"""The last character that every LaTeX sets without another package."""


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
    if _FORMULA.match(text):
        text = f"'{text}"
    return text


def latex_table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str, numbers: str) -> str:
    """Return a floating table with the rules of the package `booktabs`.

    Args:
        head: the columns' headings.
        rows: the cells as text.
        caption: what the table shows.
        numbers: a letter a column: `l` for text, `r` for numbers.
    """
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex_escaped(caption)}}}"]
    lines += [rf"\begin{{tabular}}{{{numbers}}}", r"\toprule", _latex_row(head), r"\midrule"]
    lines += map(_latex_row, rows)
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _latex_row(cells: Sequence[str]) -> str:
    row = " & ".join(map(latex_escaped, cells)) + r" \\"
    if row.startswith(("[", "*")):  # after the end of a row, these would be its options
        row = "{}" + row
    return row


def latex_escaped(text: str) -> str:
    """Return text in which LaTeX finds no command; a character that it may not know becomes its code point."""
    parts = []
    for before, character in zip(["", *text], text, strict=False):
        if before + character in _PAIRS:
            parts.append("{}")
        if character in _LATEX:
            parts.append(_LATEX[character])
        elif character.isprintable() and ord(character) <= _LAST_LATIN:
            parts.append(character)
        else:
            parts.append(f"[U+{ord(character):04X}]")
    return "".join(parts)


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str) -> str:
    """Return a table for a notebook; numbers have four significant digits, and None is an empty cell."""
    body = "".join(_html_row("td", row) for row in rows)
    top = f"<caption>{_html_cell(caption)}</caption><thead>{_html_row('th', head)}</thead>"
    return f"<table>{top}<tbody>{body}</tbody></table>"


def _html_row(tag: str, cells: Iterable[object]) -> str:
    row = "".join(f"<{tag}>{_html_cell(cell)}</{tag}>" for cell in cells)
    return f"<tr>{row}</tr>"


def _html_cell(cell: object) -> str:
    if cell is None:
        return ""
    text = f"{cell:.4g}" if isinstance(cell, float) else str(cell)
    return html.escape(visible(text))

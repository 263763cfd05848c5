"""The curves of a sweep: CSV files, figures for papers and one page to explore, all from the same rows.

Guarantees:
  * every cell of the grid is in `curves.csv` and on the page, those that failed or do not apply with their reason;
  * each file is written whole or not at all, and the same sweep gives the same bytes;
  * a cell of a CSV file that came from the grid is text to a spreadsheet, never a formula.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdaudit.storage import write_atomically

from .curve_figures import FORMATS, WIDTHS, Curve, files, on_page
from .curve_words import caption, conclusions, title
from .page import render
from .sweep_rows import MEASURES, Measure, Point, Row, SweepCell, points, row_of
from .text import visible

__all__ = ["Sweep", "curves_csv", "render_curves", "summary_csv", "write_curves"]

_ACROSS = ("membership_auc", "membership_tpr_at_1fpr", "psnr_gain", "fid", "bytes")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep as it is drawn.

    Attributes:
        name: the grid's.
        rows: one a cell, in the order of the grid.
        left_out: cells of earlier grids, which are not drawn.
    """

    name: str
    rows: tuple[Row, ...]
    left_out: int = 0

    @property
    def points(self) -> tuple[Point, ...]:
        """The rows put together over seeds."""
        return points(self.rows)

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds."""
        return tuple(sorted({r.cell.seed for r in self.rows}))

    @property
    def measured_by(self) -> str:
        """What utility is measured by."""
        found = dict.fromkeys(r.measured_by for r in self.rows if r.values)
        return " or ".join(found) or "accuracy"

    @property
    def references(self) -> tuple[tuple[str, float], ...]:
        """Each reference line's mean over the cells that trained it."""
        lines = sorted({line for r in self.rows for line in r.references}, reverse=True)
        held = {line: [r.references[line] for r in self.rows if line in r.references] for line in lines}
        return tuple((line, math.fsum(values) / len(values)) for line, values in held.items())

    def curve(self, across: Measure | None) -> Curve | None:
        """Utility against a measure, or against ε; None where nothing was measured."""
        needed = {"utility"} | ({across.name} if across else set())
        drawn = tuple(p for p in self.points if needed <= p.spreads.keys())
        if not drawn:
            return None
        return Curve(
            name=f"utility-{'epsilon' if across is None else across.name.replace('_', '-')}",
            points=drawn,
            across=across,
            utility=self.measured_by,
            references=self.references,
            protocols=tuple(dict.fromkeys(r.cell.protocol for r in self.rows)),
        )

    @property
    def curves(self) -> tuple[tuple[Measure | None, Curve | None], ...]:
        """Every figure, with None in the place of those for which nothing was measured."""
        wanted = (None, *(m for name in _ACROSS for m in MEASURES if m.name == name))
        return tuple((m, self.curve(m)) for m in wanted)


def write_curves(name: str, cells: Iterable[SweepCell], left_out: int, out: Path, width: str) -> list[Path]:
    """Writes `curves.csv`, `summary.csv`, the figures and `index.html` into a directory.

    Args:
        name: the grid's.
        cells: all cells of the grid, in its order.
        left_out: how many cells of earlier grids are not among them.
        out: the directory, which exists.
        width: a name of `WIDTHS`.

    Returns:
        What was written, the page last.
    """
    sweep = Sweep(name=name, rows=tuple(row_of(c) for c in cells), left_out=left_out)
    made: dict[str, bytes] = {
        "curves.csv": curves_csv(sweep).encode("utf-8"),
        "summary.csv": summary_csv(sweep).encode("utf-8"),
    }
    for _, curve in sweep.curves:
        for suffix, data in files(curve, WIDTHS[width]).items() if curve is not None else ():
            made[f"{curve.name if curve else ''}.{suffix}"] = data
    made["index.html"] = render_curves(sweep).encode("utf-8")
    for file, data in made.items():
        write_atomically(out / file, data)
    return [out / file for file in made]


# -- CSV -------------------------------------------------------------------------------------------------------


def curves_csv(sweep: Sweep) -> str:
    """One row a cell: axes, status, ε by the ledger for each adversary (`inf`: none can be claimed), every measure."""
    adversaries = list(dict.fromkeys(a for r in sweep.rows for a in r.ledger))
    lines = list(dict.fromkeys(line for r in sweep.rows for line in r.references))
    head = ["protocol", "defence", "epsilon", "seed", "status", "reason", "key"]
    head += [*(m.name for m in MEASURES), *(f"epsilon_{a}" for a in adversaries), *lines]
    body = [
        [
            *(_text(v) for v in (r.cell.protocol, r.cell.defence)),
            _number(r.cell.epsilon),
            r.cell.seed,
            r.cell.status,
            _text(r.cell.reason),
            r.cell.key,
            *(_number(r.values.get(m.name)) for m in MEASURES),
            *(_number(r.ledger.get(a)) for a in adversaries),
            *(_number(r.references.get(line)) for line in lines),
        ]
        for r in sweep.rows
    ]
    return _csv([head, *body])


def summary_csv(sweep: Sweep) -> str:
    """One row a protocol, defence and ε, and measure: mean, sd and 95 % t-interval over n seeds."""
    body: list[list[Any]] = [
        [
            "protocol", "defence", "epsilon", "measure", "unit", "mean", "sd", "low", "high", "n", "cells", "failed",
            "not_applicable",
        ]
    ]  # fmt: skip
    for point in sweep.points:
        count = Counter(r.cell.status for r in point.rows)
        axes = [_text(point.protocol), _text(point.defence), _number(point.epsilon)]
        tail = [len(point.rows), count["failed"], count["not-applicable"]]
        for measure in MEASURES:
            if (s := point.spreads.get(measure.name)) is not None:
                figures = [_number(v) for v in (s.mean, s.sd, s.low, s.high)]
                body.append([*axes, measure.name, measure.unit, *figures, s.n, *tail])
        if not point.spreads:
            body.append([*axes, "", "", "", "", "", "", 0, *tail])
    return _csv(body)


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _text(value: str) -> str:
    shown = visible(value)
    return f"'{shown}" if shown[:1] in ("=", "+", "-", "@", "\t") else shown


def _number(value: float | None) -> str:
    return "" if value is None else repr(float(value))


# -- the page --------------------------------------------------------------------------------------------------


def render_curves(sweep: Sweep) -> str:
    """The page as HTML text."""
    drawn = []
    for measure, curve in sweep.curves:
        drawn.append(
            {
                "title": title(measure, sweep.measured_by),
                "chart": None if curve is None else on_page(curve, title(measure, sweep.measured_by)),
                "caption": caption(measure, curve, sweep.seeds),
                "files": [] if curve is None else [f"{curve.name}.{suffix}" for suffix in FORMATS],
            }
        )
    shown = [m for m in MEASURES if any(m.name in p.spreads for p in sweep.points)]
    return render(
        "curves.html.j2",
        {
            "sweep": sweep,
            "figures": drawn,
            "conclusions": conclusions(sweep.points, sweep.rows),
            "counts": Counter(r.cell.status for r in sweep.rows),
            "measures": [m for m in shown if m.name not in ("server", "psnr")],
            "adversaries": list(dict.fromkeys(a for r in sweep.rows for a in r.ledger)),
            "infinite": math.inf,
        },
    )

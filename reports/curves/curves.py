"""The curves of a sweep: CSV files, figures for papers and one page to explore, all from the same rows.

Guarantees:
  * an ε on an axis is the ledger's, for one adversary; the requested ε has a separate axis;
  * every run of the grid is in `curves.csv` and on the page, with the reason if it failed or does not apply;
  * `table.csv`, the LaTeX table and the page's table over seeds say where an attack was inconclusive;
  * each file is written completely or not at all, and the same sweep gives the same bytes;
  * a cell or heading of a CSV file that came from the grid is text to a spreadsheet, never a formula.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from fdaudit.storage.files import write_atomically
from fdaudit.storage.tables import csv_text, latex_table

from ..drawings.paper import FORMATS
from ..page import render
from ..text import amount, bracketed, clip, visible
from .curve_axis import by_ledger, view_of
from .curve_figures import WIDTHS, Curve, files, on_page
from .curve_words import caption, conclusions, title
from .sweep_rows import MEASURES, Point, SweepColumn, SweepRow, points

__all__ = [
    "Sweep",
    "curves_csv",
    "render_curves",
    "summary_csv",
    "summary_latex",
    "table_csv",
    "write_curves",
]

_RUN = (
    "protocol", "defence", "level", "epsilon_asked", "seed", "status", "reason", "key", "result_sha256",
)  # fmt: skip
"""Columns of a run in `curves.csv`."""
_LEDGER = ("epsilon", "delta", "unit", "relation", "cause")
"""Columns of a ledger's entry in `curves.csv`."""
_ACROSS = ("membership_auc", "membership_tpr_at_1fpr", "psnr_gain", "fid", "bytes")


Wanted = tuple[SweepColumn | None, bool]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep, ready to draw.

    Attributes:
        name: the grid's.
        rows: one a run, in the order of the grid.
        adversary: the adversary of the ledger's ε, on the axis and in the table over seeds.
        left_out: runs of earlier grids, which are not drawn.
    """

    name: str
    rows: tuple[SweepRow, ...]
    adversary: str = "server"
    left_out: int = 0

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Return the rows grouped over seeds."""
        return points(self.rows)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return all seeds."""
        return tuple(sorted({r.run.seed for r in self.rows}))

    @property
    def measured_by(self) -> str:
        """Return the measure of utility."""
        measures = dict[str, None]()
        for row in self.rows:
            if row.values:
                measures[row.measured_by] = None
        return " or ".join(measures) or "accuracy"

    @property
    def adversaries(self) -> tuple[str, ...]:
        """Return the adversaries of all ledgers."""
        return tuple(dict.fromkeys(chain.from_iterable(row.ledger for row in self.rows)))

    @property
    def references(self) -> tuple[tuple[str, float], ...]:
        """Return each reference line's mean over the runs that trained it."""
        values: dict[str, list[float]] = {}
        for row in self.rows:
            for line, value in row.references.items():
                values.setdefault(line, []).append(value)
        means = list[tuple[str, float]]()
        for line, own in values.items():
            means.append((line, math.fsum(own) / len(own)))
        return tuple(sorted(means, reverse=True))

    def curve(self, across: SweepColumn | None, *, asked: bool = False) -> Curve | None:
        """Return utility against a measure, against the ledger's ε, or against the requested ε.

        Returns:
            The figure, or None if there is nothing to draw.
        """
        usable, name = list[Point](), "epsilon"
        if asked:
            name = "epsilon-asked"
        elif across is not None:
            name = across.name.replace("_", "-")
        for point in self.points:
            if "utility" not in point.spreads:
                continue
            if asked:
                has_place = point.epsilon_asked is not None
            elif across is None:
                has_place = by_ledger(point, self.adversary) is not None
            else:
                has_place = across.name in point.spreads
            if has_place:
                usable.append(point)
        if not usable or (asked and not any(point.defended for point in usable)):
            return None
        return Curve(
            name=f"utility-{name}",
            points=tuple(usable),
            across=across,
            asked=asked,
            adversary=self.adversary,
            utility=self.measured_by,
            references=self.references,
            protocols=tuple(dict.fromkeys(r.run.protocol for r in self.rows)),
        )

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        """Return every figure that a sweep may have: the measure on the axis, and whether it is the requested ε."""
        measures = {measure.name: measure for measure in MEASURES}
        return ((None, False), *((measures[name], False) for name in _ACROSS), (None, True))

    @property
    def curves(self) -> tuple[Curve, ...]:
        """Return every figure with measurements."""
        curves = [self.curve(measure, asked=requested) for measure, requested in self.wanted]
        return tuple(filter(None, curves))


def write_curves(sweep: Sweep, out: Path, width: str) -> list[Path]:
    """Write `curves.csv`, `summary.csv`, `table.csv`, the figures and `index.html` into a directory.

    Args:
        sweep: all runs of the grid.
        out: the directory, which exists.
        width: a name of `WIDTHS`.

    Returns:
        The files, the page last.
    """
    contents: dict[str, bytes] = {
        "curves.csv": curves_csv(sweep).encode("utf-8"),
        "summary.csv": summary_csv(sweep).encode("utf-8"),
        "table.csv": table_csv(sweep).encode("utf-8"),
    }
    for curve in sweep.curves:
        for suffix, data in files(curve, WIDTHS[width]).items():
            contents[f"{curve.name}.{suffix}"] = data
    contents["index.html"] = render_curves(sweep).encode("utf-8")
    for file, data in contents.items():
        write_atomically(out / file, data)
    return [out / file for file in contents]


# -- CSV -------------------------------------------------------------------------------------------------------


def curves_csv(sweep: Sweep) -> str:
    """Return one row a run: axes, status, digests, every measure, and each adversary's ledger.

    `key` is a digest of the run's spec, `result_sha256` that of its `result.json`. `epsilon_asked` is empty if the
    level is no ε. `epsilon_SERVER` and the like are the ledger's ε, `inf` if none can be claimed, with δ, unit,
    relation and cause beside it.
    """
    lines = list(dict.fromkeys(chain.from_iterable(row.references for row in sweep.rows)))
    head = [*_RUN, *(measure.name for measure in MEASURES)]
    for adversary in sweep.adversaries:
        head += [f"{column}_{adversary}" for column in _LEDGER]
    body: list[list[Any]] = [[*head, *lines]]
    for row in sweep.rows:
        run = row.run
        values: list[Any] = [visible(run.protocol), visible(run.defence), run.level, run.epsilon_asked]
        values += [run.seed, run.status, visible(run.reason), run.key, run.result_sha256]
        values += [row.values.get(measure.name) for measure in MEASURES]
        for adversary in sweep.adversaries:
            entry = row.ledger.get(adversary)
            if entry is None:
                values += [""] * len(_LEDGER)
            else:
                values += [row.epsilon(adversary), entry.delta]
                values += map(visible, (entry.unit, entry.relation, entry.cause))
        values += map(row.references.get, lines)
        body.append(values)
    return csv_text(body)


def summary_csv(sweep: Sweep) -> str:
    """Return one row a protocol, defence, level and measure: mean, sd and 95 % interval over n seeds.

    `epsilon_ledger` is the largest ε over the seeds' ledgers, for the adversary of the axis; `cause` says why it is
    infinite.
    """
    body: list[list[Any]] = [
        [
            "protocol", "defence", "level", "epsilon_asked", "adversary", "epsilon_ledger", "epsilon_ledger_least",
            "delta", "cause", "measure", "unit", "mean", "sd", "low", "high", "n", "runs", "failed", "not_applicable",
        ]
    ]  # fmt: skip
    for point in sweep.points:
        count = Counter(row.run.status for row in point.rows)
        axes: list[Any] = [visible(point.protocol), visible(point.defence), point.level, point.epsilon_asked]
        axes.append(visible(sweep.adversary))
        bill = point.bill(sweep.adversary)
        if bill is None:
            axes += [""] * 4
        else:
            delta = bill.deltas[0] if len(bill.deltas) == 1 else None
            axes += [bill.epsilon, bill.least, delta, visible("; ".join(bill.causes))]
        tail = [len(point.rows), count["failed"], count["not-applicable"]]
        for measure in MEASURES:
            spread = point.spreads.get(measure.name)
            if spread is not None:
                figures = [spread.mean, spread.sd, spread.low, spread.high, spread.n]
                body.append([*axes, measure.name, measure.unit, *figures, *tail])
        if not point.spreads:
            body.append([*axes, "", "", "", "", "", "", 0, *tail])
    return csv_text(body)


def table_csv(sweep: Sweep) -> str:
    """Return the table over seeds as people read it: one row a protocol, defence and level.

    A cell is a mean with its 95 % interval unless all seeds agree, and n where fewer seeds than the row's have a
    figure; or why there is none: see `Point.absence`.
    """
    return csv_text(_over_seeds(sweep))


def summary_latex(sweep: Sweep) -> str:
    """Return the table over seeds as LaTeX, for the package `booktabs`: a row a protocol, defence and level."""
    head, *rows = _over_seeds(sweep)
    caption = (
        f"Means over n seeds with 95 % intervals. ε by the ledger is of {view_of(sweep.adversary)}, "
        "the largest over the seeds; ∞ where none can be claimed."
    )
    table = latex_table(head, rows, caption, "ll" + "r" * (len(head) - 2))
    return f"% Needs \\usepackage{{booktabs}}.\n{table}"


def _over_seeds(sweep: Sweep) -> list[list[str]]:
    """Return the head and the rows of the table over seeds."""
    measures = _tabulated(sweep)
    rows = [["Protocol", "Defence", "ε asked", "ε, ledger", "n", *(m.short for m in measures)]]
    for point in sweep.points:
        row = [clip(point.protocol, 60), clip(point.defence, 60), _rounded(point.epsilon_asked)]
        row += [_rounded(by_ledger(point, sweep.adversary)), str(point.seeds)]
        for measure in measures:
            spread = point.spreads.get(measure.name)
            if spread is None:
                row.append(point.absence(measure))
                continue
            text = amount(spread.mean, measure.unit)
            if spread.sd:
                text = bracketed(spread.mean, spread.low, spread.high, measure.unit)
            if spread.n < point.seeds:
                text += f" (n = {spread.n})"
            row.append(text)
        rows.append(row)
    return rows


def _tabulated(sweep: Sweep) -> list[SweepColumn]:
    """Return the measures of the table over seeds: those of which some run has a figure."""
    names = set[str]().union(*(p.spreads for p in sweep.points))
    measures = list[SweepColumn]()
    for measure in MEASURES:
        if measure.name in names and measure.name not in ("server", "psnr"):
            measures.append(measure)
    return measures


def _rounded(epsilon: float | None) -> str:
    if epsilon is None:
        return "–"
    return "∞" if math.isinf(epsilon) else f"{epsilon:.3g}"


# -- the page --------------------------------------------------------------------------------------------------


def render_curves(sweep: Sweep) -> str:
    """Return the page as HTML text."""
    figures = []
    for measure, requested in sweep.wanted:
        curve = sweep.curve(measure, asked=requested)
        heading = title(measure, sweep.measured_by, asked=requested, adversary=sweep.adversary)
        figure: dict[str, Any] = {"title": heading, "chart": None, "files": []}
        figure["caption"] = caption(measure, curve, sweep.seeds, asked=requested, points=sweep.points)
        if curve is not None:
            figure["chart"] = on_page(curve, heading)
            figure["files"] = [f"{curve.name}.{suffix}" for suffix in FORMATS]
        figures.append(figure)
    return render(
        "curves.html.j2",
        {
            "sweep": sweep,
            "figures": figures,
            "conclusions": conclusions(sweep.points, sweep.rows, sweep.adversary),
            "view": view_of(sweep.adversary),
            "counts": Counter(row.run.status for row in sweep.rows),
            "measures": _tabulated(sweep),
            "adversaries": sweep.adversaries,
            "infinite": math.inf,
        },
    )

"""The comparison as `index.html`, `comparison.json` and `comparison.csv`, and as LaTeX: all from the same object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..page import render, write
from .comparison import SHOWN, ComparedRun, Comparison, ComparisonRow, GoalOutcome, compare
from .comparison_tables import comparison_csv, comparison_latex
from .trade import TradePoint, key_line, key_mark, panels

__all__ = ["SCHEMA", "render_comparison", "render_latex", "to_json", "write_comparison"]

SCHEMA = "fdaudit-comparison/1"


def render_comparison(entries: Sequence[ComparedRun]) -> str:
    """Return the page of a comparison as HTML text.

    Args:
        entries: the runs, in the order of their rows.
    """
    comparison = compare(entries)
    views, outcomes, points, marks = [], [], [], []
    roles: dict[str, int] = {}
    for number, row in enumerate(comparison.rows):
        size = float(row.size)
        points.append(TradePoint(name=row.entry.name, bytes=size, utility=row.learnt, leakage=row.leaked))
        views.append({s.position: s for s in row.seen})
        outcomes.append({o.goal: o for o in row.outcomes})
        marks.append(key_mark(number))
        roles |= row.bytes
    levels = _levels(comparison)
    lines = []
    for number, (name, value) in enumerate(levels):
        lines.append((name, value, key_line(number)))
    glyphs: dict[str, str] = {}
    for level, (glyph, _) in SHOWN.items():
        glyphs[level] = glyph
    goals = []
    for goal in comparison.goals:
        if goal not in comparison.untried:
            goals.append(goal)
    return render(
        "comparison.html.j2",
        {
            "comparison": comparison,
            "glyphs": glyphs,
            "panels": panels(points, levels, comparison.measure),
            "marks": marks,
            "levels": lines,
            "most_seeds": max(row.seeds for row in comparison.rows),
            "auditor_only": any(entry.auditor_only for entry in entries),
            "seen": views,
            "outcomes": outcomes,
            "goals": goals or comparison.goals,
            "roles": list(roles),
            "first": entries[0].result.run,
        },
    )


def render_latex(entries: Sequence[ComparedRun]) -> str:
    """Return the tables of a comparison as LaTeX, for the package `booktabs`."""
    return comparison_latex(compare(entries))


def write_comparison(entries: Sequence[ComparedRun], directory: Path) -> Path:
    """Write `index.html`, `comparison.json` and `comparison.csv` into a directory; return the page's path.

    Each file is written completely or not at all.
    """
    page = render_comparison(entries)
    value = json.dumps(to_json(entries), indent=1, sort_keys=True, allow_nan=False)
    write(value + "\n", directory / "comparison.json")
    write(comparison_csv(compare(entries)), directory / "comparison.csv")
    write(page, directory / "index.html")
    return directory / "index.html"


def to_json(entries: Sequence[ComparedRun]) -> dict[str, Any]:
    """Return the comparison as a JSON object, schema `fdaudit-comparison/1`."""
    comparison = compare(entries)
    references = []
    for name, line in comparison.references:
        references.append({"run": name, **asdict(line)})
    return {
        "schema": SCHEMA,
        "auditor_only": any(entry.auditor_only for entry in entries),
        "measure": comparison.measure,
        "runs": list(map(_row, comparison.rows)),
        "references": references,
        "differences": list(comparison.differences),
        "headlines": list(comparison.headlines),
    }


def _row(row: ComparisonRow) -> dict[str, Any]:
    run = row.entry.result.run
    leakage: dict[str, Any] | None = None
    if row.leakage is not None:
        leakage = {
            "adversary": row.leakage.cell.adversary,
            "attack": row.leakage.cell.attack,
            "among": row.leakage.among,
            "figure": asdict(row.leakage.figure),
        }
    views, ledger = [], []
    for view in row.seen:
        views.append({**asdict(view), "bytes": view.bytes})
    for entry in row.ledger:
        ledger.append({"adversary": entry.adversary, "epsilon": entry.epsilon, "delta": entry.delta})
    spreads: dict[str, Any] = {}
    for name, spread in row.spreads.items():
        spreads[name] = asdict(spread)
    return {
        "name": row.entry.name,
        "report": row.entry.report,
        "seconds": row.entry.seconds,
        "protocol": run.protocol,
        "dataset": run.dataset,
        "task": run.task,
        "clients": run.clients,
        "rounds": run.rounds,
        "messages": run.messages,
        "head": run.head,
        "seed_commitment": run.seed_commitment,
        "spec_sha256": run.spec_sha256,
        "silences": [s.model_dump(mode="json") for s in run.silences],
        "accuracy": asdict(row.utility),
        "bytes": {**dict(row.bytes), "total": row.total},
        "seen": views,
        "outcomes": list(map(_outcome, row.outcomes)),
        "leakage": leakage,
        "ledger": ledger,
        "seeds": row.seeds,
        "over_seeds": spreads,
    }


def _outcome(outcome: GoalOutcome) -> dict[str, Any]:
    finding = outcome.finding
    entry: dict[str, Any] = dict.fromkeys(
        ("goal", "level", "adversary", "attack", "because", "worst_victim", "figure")
    )
    if finding is not None:
        key = finding.worst_key or finding.key
        entry["adversary"] = outcome.adversary
        entry["attack"] = finding.cell.attack
        entry["because"] = finding.because
        if finding.worst is not None:
            entry["worst_victim"] = finding.worst.target
        if key is not None:
            entry["figure"] = asdict(key)
    entry["goal"] = outcome.goal
    entry["level"] = outcome.level
    entry["cells"] = outcome.cells
    entry["tried"] = outcome.tried
    entry["conclusive"] = outcome.conclusive
    entry["holders"] = list(outcome.holders)
    entry["seeds_at_level"] = outcome.agreeing
    return entry


def _levels(comparison: Comparison) -> list[tuple[str, float]]:
    """Return the reference lines that have a utility; where runs differ in it, each names its run."""
    drawable = []
    values: dict[str, set[float]] = {}
    for run, line in comparison.references:
        if line.best is not None:
            drawable.append((run, line.line, line.best))
            values.setdefault(line.line, set()).add(line.best)
    levels: dict[str, float] = {}
    for run, name, best in drawable:
        if len(values[name]) > 1:
            name = f"{name} in {run}"
        levels.setdefault(name, best)
    return list(levels.items())

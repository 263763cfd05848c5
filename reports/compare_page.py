"""The comparison as a page and as JSON: `index.html` and `comparison.json`, from the same object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from .comparison import ComparedRun, Comparison, ComparisonRow, GoalOutcome, LineUtility, PartyView, compare
from .page import render, write
from .text import clip
from .trade import TradePoint, trade_chart

__all__ = ["SCHEMA", "render_comparison", "to_json", "write_comparison"]

SCHEMA = "fdaudit-comparison/1"


def render_comparison(entries: Sequence[ComparedRun]) -> str:
    """Return the page of a comparison as HTML text.

    Args:
        entries: the runs, in the order of their rows.
    """
    comparison = compare(entries)
    views, outcomes = [], []
    for row in comparison.rows:
        views.append({s.position: s for s in row.seen})
        outcomes.append({o.goal: o for o in row.outcomes})
    return render(
        "comparison.html.j2",
        {
            "comparison": comparison,
            "chart": _chart(comparison),
            "auditor_only": any(e.result.auditor_only for e in entries),
            "seen": views,
            "outcomes": outcomes,
            "goals": list(dict.fromkeys(o.goal for row in comparison.rows for o in row.outcomes)),
            "roles": list(dict.fromkeys(role for row in comparison.rows for role, _ in row.bytes)),
            "first": entries[0].result.run,
        },
    )


def write_comparison(entries: Sequence[ComparedRun], directory: Path) -> Path:
    """Write `index.html` and `comparison.json` into a directory, completely or not at all; return the page's path."""
    page = render_comparison(entries)
    value = json.dumps(to_json(entries), indent=1, sort_keys=True, allow_nan=False)
    write(value + "\n", directory / "comparison.json")
    write(page, directory / "index.html")
    return directory / "index.html"


def to_json(entries: Sequence[ComparedRun]) -> dict[str, Any]:
    """Return the comparison as a JSON object, schema `fdaudit-comparison/1`."""
    comparison = compare(entries)
    return {
        "schema": SCHEMA,
        "auditor_only": any(e.result.auditor_only for e in entries),
        "measure": comparison.measure,
        "runs": list(map(_row, comparison.rows)),
        "references": [{"run": name, **_utility(line)} for name, line in comparison.references],
        "differences": list(comparison.differences),
        "headlines": list(comparison.headlines),
    }


def _row(row: ComparisonRow) -> dict[str, Any]:
    run = row.entry.result.run
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
        "accuracy": _utility(row.utility),
        "bytes": {**dict(row.bytes), "total": row.total},
        "seen": list(map(_seen, row.seen)),
        "outcomes": list(map(_outcome, row.outcomes)),
    }


def _utility(line: LineUtility) -> dict[str, Any]:
    return asdict(line)


def _seen(seen: PartyView) -> dict[str, Any]:
    return {**asdict(seen), "bytes": seen.bytes}


def _outcome(outcome: GoalOutcome) -> dict[str, Any]:
    finding = outcome.finding
    entry: dict[str, Any] = dict.fromkeys(
        ("goal", "level", "adversary", "attack", "because", "worst_victim", "figure")
    )
    if finding is not None:
        key = finding.worst_key or finding.key
        entry["level"] = finding.level
        entry["adversary"] = finding.cell.adversary
        entry["attack"] = finding.cell.attack
        entry["because"] = finding.because
        if finding.worst is not None:
            entry["worst_victim"] = finding.worst.target
        if key is not None:
            entry["figure"] = asdict(key)
    entry["goal"] = outcome.goal
    entry["cells"] = outcome.cells
    entry["tried"] = outcome.tried
    entry["conclusive"] = outcome.conclusive
    return entry


def _chart(made: Comparison) -> Markup:
    points = [p for p in map(_point, made.rows) if p is not None]
    if not points:
        return Markup("")
    levels = [(line.line, line.best) for _, line in made.references if line.best is not None]
    says = "; ".join(f"{clip(p.name, 40)}: {p.bytes:,} bytes, {p.accuracy:.1%}" for p in points)
    title = f"Test {made.measure} against bytes on the wire. {says}"
    return trade_chart(points, levels, made.measure, "trade", title)


def _point(row: ComparisonRow) -> TradePoint | None:
    value, server = row.utility.best, row.utility.server
    if value is None:
        return None
    point = TradePoint(name=row.entry.name, bytes=row.total, accuracy=value, low=None, high=None)
    if server is None or server.value is None:
        return point
    return replace(point, low=server.low, high=server.high)

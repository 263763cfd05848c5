"""The comparison as a page and as JSON: `index.html` and `comparison.json`, from the same object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fdaudit.types import Figure

from .comparison import Compared, Comparison, Entry, Outcome, Seen, Utility, compare
from .page import render, write
from .text import clip
from .trade import TradePoint, trade_chart

__all__ = ["SCHEMA", "render_comparison", "to_json", "write_comparison"]

SCHEMA = "fdaudit-comparison/1"


def render_comparison(entries: Sequence[Entry]) -> str:
    """Return the page of a comparison as HTML text.

    Args:
        entries: the runs, in the order of their rows.
    """
    made = compare(entries)
    return render(
        "comparison.html.j2",
        {
            "comparison": made,
            "chart": _chart(made),
            "auditor_only": any(e.result.auditor_only for e in entries),
            "seen": [{s.position: s for s in row.seen} for row in made.rows],
            "outcomes": [{o.goal: o for o in row.outcomes} for row in made.rows],
            "goals": list(dict.fromkeys(o.goal for row in made.rows for o in row.outcomes)),
            "roles": list(dict.fromkeys(role for row in made.rows for role, _ in row.bytes)),
            "first": entries[0].result.run,
        },
    )


def write_comparison(entries: Sequence[Entry], directory: Path) -> Path:
    """Write `index.html` and `comparison.json` into a directory, completely or not at all; return the page's path."""
    page = render_comparison(entries)
    value = json.dumps(to_json(entries), indent=1, sort_keys=True, allow_nan=False)
    write(value + "\n", directory / "comparison.json")
    write(page, directory / "index.html")
    return directory / "index.html"


def to_json(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the comparison as a JSON object, schema `fdaudit-comparison/1`."""
    made = compare(entries)
    return {
        "schema": SCHEMA,
        "auditor_only": any(e.result.auditor_only for e in entries),
        "measure": made.measure,
        "runs": [_row(row) for row in made.rows],
        "references": [{"run": name, **_utility(line)} for name, line in made.references],
        "differences": list(made.differences),
        "headlines": list(made.headlines),
    }


def _row(row: Compared) -> dict[str, Any]:
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
        "seen": [_seen(s) for s in row.seen],
        "outcomes": [_outcome(o) for o in row.outcomes],
    }


def _utility(line: Utility) -> dict[str, Any]:
    return asdict(line)


def _seen(seen: Seen) -> dict[str, Any]:
    return {**asdict(seen), "bytes": seen.bytes}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    finding = outcome.finding
    key = None if finding is None else finding.worst_key or finding.key
    return {
        "goal": outcome.goal,
        "level": None if finding is None else finding.level,
        "adversary": None if finding is None else finding.cell.adversary,
        "attack": None if finding is None else finding.cell.attack,
        "because": None if finding is None else finding.because,
        "worst_victim": None if finding is None or finding.worst is None else finding.worst.target,
        "figure": None if key is None else asdict(key),
        "cells": outcome.cells,
        "tried": outcome.tried,
        "conclusive": outcome.conclusive,
    }


def _chart(made: Comparison) -> Markup:
    points = [p for p in map(_point, made.rows) if p is not None]
    if not points:
        return Markup("")
    levels = [(line.line, line.best) for _, line in made.references if line.best is not None]
    says = "; ".join(f"{clip(p.name, 40)}: {p.bytes:,} bytes, {p.accuracy:.1%}" for p in points)
    title = f"Test {made.measure} against bytes on the wire. {says}"
    return trade_chart(points, levels, made.measure, "trade", title)


def _point(row: Compared) -> TradePoint | None:
    value, server = row.utility.best, row.utility.server
    if value is None:
        return None
    interval: Figure | None = server if server is not None and server.value is not None else None
    return TradePoint(
        name=row.entry.name,
        bytes=row.total,
        accuracy=value,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
    )

"""What the curves say in words: conclusions, titles, captions. Computed from the same points as the figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from .curve_figures import Curve
from .sweep_rows import MEASURES, Measure, Point, Row
from .text import MINUS, amount, clip, joined

__all__ = ["called", "caption", "conclusions", "title"]


def called(point: Point) -> str:
    """A point in words."""
    if math.isinf(point.epsilon):
        return f"{clip(point.protocol, 40)} without a defence"
    return f"{clip(point.protocol, 40)} under {clip(point.defence, 40)} at ε = {point.epsilon:g}"


def _said(point: Point, measure: str) -> str:
    spread, unit = point.spreads[measure], next(m.unit for m in MEASURES if m.name == measure)
    text = amount(spread.mean, unit)
    if spread.low is None or spread.high is None:
        return text
    return f"{text} [{amount(spread.low, unit)}, {amount(spread.high, unit)}]"


def conclusions(points: Sequence[Point], rows: Sequence[Row]) -> list[str]:
    """What may be said of the whole sweep, one sentence each."""
    found = []
    for epsilon in sorted({p.epsilon for p in points}):
        at = [p for p in points if p.epsilon == epsilon and "utility" in p.spreads]
        if at:
            best = max(at, key=lambda p: p.spreads["utility"].mean)
            where = "Without a defence" if math.isinf(epsilon) else f"At ε = {epsilon:g}"
            how = "" if math.isinf(epsilon) else f" under {clip(best.defence, 40)}"
            found.append(f"{where} {clip(best.protocol, 40)}{how} learns most: {_said(best, 'utility')}.")
    for measure in MEASURES:
        held = [p for p in points if measure.goal and measure.name in p.spreads]
        if held and measure.name in ("membership_auc", "psnr_gain"):
            pick = min if measure.least else max
            worst = pick(held, key=lambda p: p.spreads[measure.name].mean)
            found.append(f"{measure.label} is largest of {called(worst)}: {_said(worst, measure.name)}.")
    counts = Counter(r.cell.status for r in rows)
    parts = ((counts["failed"], "failed"), (counts["pending"], "not run yet"))
    missing = [f"{count} {word}" for count, word in parts if count]
    if missing:
        found.append(
            f"Of {len(rows)} cells {joined(missing)}: what they would have shown is not in the figures."
        )
    return found


def title(measure: Measure | None, utility: str) -> str:
    """The heading of a figure."""
    return f"{utility[:1].upper()}{utility[1:]} against {'ε' if measure is None else _lower(measure.label)}"


def _lower(label: str) -> str:
    keep = label.split(" ")[0].rstrip(":").isupper()
    return label if keep else label[:1].lower() + label[1:]


def caption(measure: Measure | None, curve: Curve | None, seeds: Sequence[int]) -> str:
    """What a figure shows, what to conclude, and what it rests on."""
    if curve is None:
        label = "" if measure is None else measure.label
        what = _lower(label) or "utility"
        return f"Nothing was measured: no cell has a value of {what}. That is no evidence of safety."
    n = sorted({s.n for p in curve.points for m, s in p.spreads.items() if m == "utility"})
    counted = f"n = {n[0]}" if len(n) == 1 else f"n = {n[0]} to {n[-1]}"
    bars = "" if n[-1] == 1 else " Bars are 95 % intervals of Student's t over seeds"
    rest = (
        f"{bars}; {counted} seeds a mark ({joined(map(str, seeds))})."
        if bars
        else f" One seed a mark ({seeds[0]})."
    )
    lines = [name for name, _ in curve.references]
    level = (
        f" Level lines: {joined(lines)}, without any defence, mean over the runs that trained them."
        if lines
        else ""
    )
    if measure is None:
        return (
            f"{_fall(curve)} A panel a defence, a line a protocol; hollow marks at ∞ are the runs without a defence, "
            f"the same in every panel. ε is what was asked of the defence, not what the ledger found.{rest}{level}"
        )
    side = "right" if measure.least else "left"
    strongest = (
        " The strongest of the attacks counts, so that without any leak it still lies somewhat above the grey line."
        if measure.goal and measure.level is not None
        else ""
    )
    reading = f"Up and to the {side} is better; larger marks stand for larger ε, hollow ones for no defence."
    return f"{_front_said(curve)} {reading}{strongest}{rest}{level}"


def _fall(curve: Curve) -> str:
    """What the smallest ε leaves of what is learnt without a defence."""
    finite = [p.epsilon for p in curve.points if math.isfinite(p.epsilon)]
    if not finite:
        return "No defence is in this sweep."
    least, parts = min(finite), []
    for defence in curve.defences:
        moved = []
        for p in curve.points:
            free = [q for q in curve.points if q.protocol == p.protocol and math.isinf(q.epsilon)]
            if p.defence == defence and p.epsilon == least and free:
                moved.append(round(100 * (p.spreads["utility"].mean - free[0].spreads["utility"].mean)))
        if moved:
            ends = dict.fromkeys(_signed(v) for v in (min(moved), max(moved)))
            parts.append(f"{clip(defence, 40)} {' to '.join(ends)} points")
    if not parts:
        return "No defence has a run without it to compare with."
    return f"At ε = {least:g}, against no defence: {joined(parts)}."


def _signed(points: int) -> str:
    return f"{points:+d}".replace("-", MINUS) if points else "0"


def _front_said(curve: Curve) -> str:
    best = curve.front
    named = joined(called(p) for p in best[:4])
    more = f" and {len(best) - 4} more" if len(best) > 4 else ""
    return f"No other point betters {named}{more} in both."

"""The report's charts as inline SVG, written here.

Guarantees:
  * the same data give the same bytes: no date, no random identifiers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fdaudit.result import CurvePoint, Roc

from .svg import (
    BLUE,
    COLOURS,
    INK,
    MARKERS,
    MUTED,
    RULE,
    VERMILLION,
    Axes,
    inline,
    plain,
    svg_curve,
    svg_line,
    svg_text,
    ticks,
)

__all__ = ["ForestRow", "forest_chart", "roc_chart", "shares_chart", "utility_chart"]


@dataclass(frozen=True, kw_only=True)
class ForestRow:
    """One interval of a forest chart; `role` is `mean`, `victim` or `control`."""

    name: str
    value: float
    low: float | None
    high: float | None
    role: str


def utility_chart(curve: Sequence[CurvePoint], name: str, title: str) -> Markup:
    """Draw the utility in per cent by round: one line a party; a line with a single round is a dashed level.

    Args:
        curve: points of every line and party.
        name: prefix of the drawing's identifiers, unique on the page.
        title: description of the drawing, for readers who can't see it.
    """
    by_line: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for p in curve:
        by_line.setdefault(p.line, {}).setdefault(p.party, []).append((p.round, 100 * p.value))
    measured = "accuracy"
    if any(p.mean_auc is not None for p in curve):
        measured = "mAUC"
    elif any(p.dice is not None for p in curve):
        measured = "Dice"

    last = max(1, *(p.round for p in curve))  # a single round still needs an axis
    frame = Axes(width=352.8, height=198.0, left=40.6, right=241.7, top=7.9, bottom=164.3)
    x, y = frame.across(0, last), frame.up(0, 101)
    parts = []
    for tick, text in ticks(0, 101):
        parts.append(svg_line(frame.left, y(tick), frame.right, y(tick), RULE, 0.5))
        parts.append(frame.tick_left(y(tick), text))
    for tick, text in ticks(0, last):
        if tick == int(tick):
            parts.append(frame.tick_below(x(tick), text.partition(".")[0]))
    ends: list[tuple[float, str, str]] = []
    for i, (line, by_party) in enumerate(by_line.items()):
        colour = COLOURS[i % 5]
        width = 1.7 if len(by_party) == 1 else 0.8
        final: list[float] = []
        for points in map(sorted, by_party.values()):
            final.append(points[-1][1])
            if len(points) == 1:
                points = [(0, final[-1]), (last, final[-1])]
            elif len(final) == 1:  # the first party's line has marks
                for at, value in points[:: max(1, len(points) // 8)]:
                    parts.append(_symbol(MARKERS[i % 5], x(at), y(value), colour))
            parts.append(svg_curve([(x(at), y(value)) for at, value in points], colour, width, i))
        count = f" ({len(by_party)} parties)" if len(by_party) > 1 else ""
        ends.append((sum(final) / len(final), f"{plain(line, 14)}{count}", colour))
    for value, text, colour in spread(ends, 7.5):
        parts.append(svg_text(frame.right + 4, y(value) + 3, text, "start", 8.5, colour))
    return inline(frame.drawn(parts, "Round", f"Test {measured} (%)"), name, title)


def forest_chart(rows: Sequence[ForestRow], chance: float | None, axis: str, name: str, title: str) -> Markup:
    """Draw values with their intervals, one row each, beside the line of chance.

    Args:
        rows: from top to bottom.
        chance: place of the vertical reference line, if any.
        axis: label of the horizontal axis with its unit.
        name: prefix of the drawing's identifiers, unique on the page.
        title: description of the drawing, for readers who can't see it.
    """
    width, height = 309.6, 44.64 + 16.56 * len(rows)  # in points, as Matplotlib's drawings
    left, right, top, bottom = 0.31 * width, 0.97 * width, 4.32, height - 34.56
    ends = list[float]()
    for row in rows:
        for end in (row.value, row.low, row.high, chance):
            if end is not None:
                ends.append(end)
    margin = 0.06 * (max(ends) - min(ends)) or 0.05 * (abs(ends[0]) or 1)
    low, high = min(ends) - margin, max(ends) + margin

    def x(value: float) -> float:
        return left + (right - left) * (value - low) / (high - low)

    parts = []
    for tick, text in ticks(low, high):
        parts.append(svg_line(x(tick), top, x(tick), bottom, RULE, 0.5))
        parts.append(svg_line(x(tick), bottom, x(tick), bottom + 3.5, MUTED, 0.6))
        parts.append(svg_text(x(tick), bottom + 13, text, "middle", 8.5, MUTED))
    parts.append(svg_line(left, bottom, right, bottom, MUTED, 0.6))
    if chance is not None:
        parts.append(svg_line(x(chance), top, x(chance), bottom, VERMILLION, 0.9, "3.6 1.8"))
    for place, row in enumerate(rows):
        y = top + (bottom - top) * (place + 0.6) / (len(rows) + 0.2)
        colour = {"mean": INK, "victim": BLUE}.get(row.role, MUTED)
        parts.append(svg_text(left - 0.02 * (right - left), y + 3, plain(row.name, 19), "end", 8.5, INK))
        if row.low is not None and row.high is not None:
            parts.append(svg_line(x(row.low), y, x(row.high), y, colour, 1.6))
        parts.append(_mark(row.role, x(row.value), y, colour))
    parts.append(svg_text((left + right) / 2, bottom + 27, axis, "middle", 9, INK))
    return inline(f'<svg viewBox="0 0 {width:.2f} {height:.2f}">{"".join(parts)}</svg>', name, title)


def _symbol(marker: str, x: float, y: float, colour: str) -> str:
    """Return one of `MARKERS`."""
    shapes = {"s": "h 3 v 3 h -3 z", "^": "l 1.5 -3 l 1.5 3 z", "v": "l 1.5 3 l 1.5 -3 z"}
    if marker == "o":
        return f'<circle cx="{x:.2f}" cy="{y:.2f}" r="1.5" fill="{colour}"/>'
    if marker == "D":
        return f'<path d="M {x - 2:.2f} {y:.2f} l 2 -2 l 2 2 l -2 2 z" fill="{colour}"/>'
    start = y + 1.5 if marker == "^" else y - 1.5
    return f'<path d="M {x - 1.5:.2f} {start:.2f} {shapes[marker]}" fill="{colour}"/>'


def _mark(role: str, x: float, y: float, colour: str) -> str:
    """Return the mark of a row: a diamond for the mean, a disc for a victim, an open square for a control."""
    if role == "victim":
        return f'<circle cx="{x:.2f}" cy="{y:.2f}" r="3" fill="{colour}"/>'
    if role == "mean":
        return f'<path d="M {x:.2f} {y - 4:.2f} l 4 4 l -4 4 l -4 -4 z" fill="{colour}"/>'
    return f'<path d="M {x - 2.5:.2f} {y - 2.5:.2f} h 5 v 5 h -5 z" fill="white" stroke="{colour}"/>'


def roc_chart(curves: Sequence[tuple[str, Roc]], worst: str, name: str, title: str) -> Markup:
    """Draw ROC curves on logarithmic axes with the line of chance; the worst victim is bold.

    Rates too small for the axes (zero has no logarithm) are drawn at the left or lower edge.

    Args:
        curves: victims and their curves.
        worst: the victim drawn bold.
        name: prefix of the drawing's identifiers, unique on the page.
        title: description of the drawing, for readers who can't see it.
    """
    rates: list[float] = []
    for _, roc in curves:
        rates += filter(None, (*roc.fpr, *roc.tpr))
    floor = 10.0 ** (_floor_decade(min(rates, default=0.01)))
    frame = Axes(width=259.2, height=244.8, left=50.0, right=246.0, top=12.0, bottom=208.0)
    decades = math.log10(floor)

    def place(fpr: float, tpr: float) -> tuple[float, float]:
        across = 1 - math.log10(max(fpr, floor)) / decades
        up = 1 - math.log10(max(tpr, floor)) / decades
        x = frame.left + across * (frame.right - frame.left)
        return x, frame.bottom - up * (frame.bottom - frame.top)

    parts = []
    for decade in range(_floor_decade(floor), 1):
        rate = 10.0**decade
        x, y = place(rate, rate)
        parts.append(svg_line(x, frame.top, x, frame.bottom, RULE, 0.5))
        parts.append(svg_line(frame.left, y, frame.right, y, RULE, 0.5))
        parts += [frame.tick_below(x, _percent(rate)), frame.tick_left(y, _percent(rate))]
    (x1, y1), (x2, y2) = place(floor, floor), place(1, 1)
    parts.append(svg_line(x1, y1, x2, y2, MUTED, 0.9, "3.6 1.8"))
    middle = f"{0.55 * x1 + 0.45 * x2:.2f} {0.55 * y1 + 0.45 * y2:.2f}"
    chance = svg_text(0, 10, "chance", "middle", 8, MUTED)
    parts.append(f'<g transform="translate({middle}) rotate(-45)">{chance}</g>')
    legend = []
    for i, (who, roc) in enumerate(sorted(curves, key=lambda c: c[0] == worst)):
        colour, width, style = (VERMILLION, 1.8, 0) if who == worst else (BLUE, 1.0, 1 + i % 4)
        corners = [place(roc.fpr[0], roc.tpr[0])]
        for fpr, tpr in zip(roc.fpr[1:], roc.tpr[1:], strict=True):
            to = place(fpr, tpr)
            corners += [(to[0], corners[-1][1]), to]
        parts.append(svg_curve(corners, colour, width, style))
        legend.append((plain(who, 19), colour, width, style))
    parts += _legend(legend, frame.right, frame.bottom)
    return inline(frame.drawn(parts, "False-positive rate", "True-positive rate"), name, title)


def _legend(entries: Sequence[tuple[str, str, float, int]], right: float, bottom: float) -> list[str]:
    """Return names, each beside its line (colour, width, number of the style), in a corner."""
    wide = 40 + 5 * max(len(name) for name, *_ in entries)
    left, top = right - 4 - wide, bottom - 6 - 12 * len(entries)
    box = f'width="{wide:.2f}" height="{12 * len(entries) + 2:.2f}" fill="white" fill-opacity="0.9"'
    parts = [f'<rect x="{left:.2f}" y="{top:.2f}" {box}/>']
    for row, (name, colour, width, style) in enumerate(entries):
        y = top + 8 + 12 * row
        parts.append(svg_curve([(left + 4, y), (left + 26, y)], colour, width, style))
        parts.append(svg_text(left + 32, y + 3, name, "start", 8, INK))
    return parts


def _floor_decade(value: float) -> int:
    """Return the decade at or below `value`, at most -1."""
    return min(-1, math.floor(math.log10(value) + 1e-9))


def _percent(rate: float) -> str:
    return f"{100 * rate:g} %"


def shares_chart(
    truth: Sequence[float], guess: Sequence[float], prior: Sequence[float], name: str, title: str
) -> Markup:
    """Draw class shares of one victim in per cent: its own as bars, the guess as dots, the prior as dashes.

    Args:
        truth: (C,) true shares.
        guess: (C,) guessed shares.
        prior: (C,) shares guessed without the view.
        name: prefix of the drawing's identifiers, unique on the page.
        title: description of the drawing, for readers who can't see it.
    """
    frame = Axes(width=208.8, height=136.8, left=35.5, right=204.6, top=5.5, bottom=104.0)
    most = 100 * max(*truth, *guess, *prior, 0.01)
    room = (frame.right - frame.left) / len(truth)
    disc, dash, bar = min(4.5, 0.75 * room) / 2, min(9.0, 0.9 * room) / 2, 0.35 * room
    y = frame.up(0, 1.05 * most)
    parts = list[str]()
    for tick, text in ticks(0, 1.05 * most, 5):
        parts.append(frame.tick_left(y(tick), text))
    every = max(1, -(-len(truth) // 12))
    for label, shares in enumerate(zip(truth, guess, prior, strict=True)):
        x = frame.left + (label + 0.5) * room
        own, guessed, blind = (y(100 * share) for share in shares)
        area = f'x="{x - bar:.2f}" y="{own:.2f}" width="{2 * bar:.2f}" height="{frame.bottom - own:.2f}"'
        parts.append(f'<rect {area} fill="{RULE}" stroke="{MUTED}" stroke-width="0.6"/>')
        parts.append(f'<circle cx="{x:.2f}" cy="{guessed:.2f}" r="{disc:.2f}" fill="{BLUE}"/>')
        parts.append(svg_line(x - dash, blind, x + dash, blind, VERMILLION, 1.2))
        if label % every == 0:
            parts.append(frame.tick_below(x, str(label)))
    return inline(frame.drawn(parts, "Class", "Share (%)"), name, title)


def spread(ends: Sequence[tuple[float, str, str]], gap: float) -> list[tuple[float, str, str]]:
    """Return places for labels with at least `gap` between neighbours."""
    placed: list[tuple[float, str, str]] = []
    bottom = -math.inf
    for y, text, colour in sorted(ends):
        bottom = max(y, bottom + gap)
        placed.append((bottom, text, colour))
    lowered: list[tuple[float, str, str]] = []
    top = math.inf
    for y, text, colour in reversed(placed):
        top = min(y, top - gap, 100.0)
        lowered.append((top, text, colour))
    return lowered

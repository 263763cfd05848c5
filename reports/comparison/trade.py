"""The charts of a comparison: utility, leakage and traffic of each run against each other, as inline SVG.

Guarantees:
  * no label is on a mark or on another label; a label without room is left out, and named;
  * a run's bytes are printed at its mark wherever there is room, and the axis of bytes has all the ticks of a
    logarithmic one;
  * a run without a figure is in no chart that needs it, and is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from markupsafe import Markup

from ..drawings.labels import Box, Line, place_labels, text_width
from ..drawings.svg import (
    COLOURS,
    MARKERS,
    MUTED,
    RULE,
    Axes,
    inline,
    plain,
    svg_curve,
    svg_line,
    svg_text,
    ticks,
)
from ..text import NBSP, kilobytes

__all__ = ["Panel", "Reach", "TradePoint", "key_line", "key_mark", "panels"]

_FRAME = Axes(width=270, height=204, left=42, right=254, top=8, bottom=162)
_HALF = 4.0
"""Half the width of a mark, in points."""
_SIZE = 9.0
"""Size of a label's font, in points."""
_LINE = _SIZE + 1
"""Height of a label's line, in points."""
_LONGEST = 16
"""Most letters of a label that is a run's name."""
_LABELS = ("name and bytes", "name", "number")
"""What labels say, from most to least: the first that has room at every mark, else the last."""
_SHAPES = {
    "o": "M -3.4 0 a 3.4 3.4 0 1 0 6.8 0 a 3.4 3.4 0 1 0 -6.8 0 z",
    "s": "M -3.1 -3.1 h 6.2 v 6.2 h -6.2 z",
    "^": "M -3.6 3.2 l 3.6 -6.6 l 3.6 6.6 z",
    "D": "M 0 -4 l 4 4 l -4 4 l -4 -4 z",
    "v": "M -3.6 -3.2 l 3.6 6.6 l 3.6 -6.6 z",
}


class Reach(NamedTuple):
    """A figure with its interval; a fraction, or bytes."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class TradePoint:
    """One run: its name, and its figures; None where it has none."""

    name: str
    bytes: float
    utility: Reach | None
    leakage: Reach | None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart.

    Attributes:
        title: what it shows, for people.
        chart: the drawing.
        absent: names of the runs without the figures that it needs.
        unnamed: names of the runs for whose label there was no room.
    """

    title: str
    chart: Markup
    absent: tuple[str, ...]
    unnamed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """An axis: its label, the figure of a run on it, and whether it is logarithmic, in bytes."""

    label: str
    of: Callable[[TradePoint], Reach | None]
    scale: float = 1.0
    bytes: bool = False
    levels: tuple[float, ...] = ()

    def ends(self, points: Sequence[TradePoint]) -> tuple[float, float]:
        """Return both ends of the axis, in its own unit, with room beside the outermost marks."""
        values: list[float] = []
        for reach in filter(None, map(self.of, points)):
            for value in (reach.value, reach.low, reach.high):
                if value is not None:
                    values.append(self.unit(value))
        values += map(self.unit, self.levels)
        low, high = min(values), max(values)
        room = 0.12 * (high - low) or (0.5 if self.bytes else 0.05 * self.scale)
        return low - room, high + room

    def unit(self, value: float) -> float:
        """Return a value in the axis's unit; of bytes the logarithm, where none counts as one byte."""
        return math.log10(max(value, 1.0)) if self.bytes else self.scale * value


def panels(
    points: Sequence[TradePoint], levels: Sequence[tuple[str, float]], measure: str
) -> tuple[Panel, ...]:
    """Draw utility against bytes, leakage against utility, and leakage against bytes: a mark a run.

    Args:
        points: the runs, in the order of their marks.
        levels: reference lines with their utility; dashed where utility is the height.
        measure: the measure of utility.
    """
    traffic = _Axis(label="Bytes on the wire, all roles", of=lambda p: Reach(value=p.bytes), bytes=True)
    learnt = _Axis(label=f"Test {measure} (%)", of=lambda p: p.utility, scale=100.0)
    above = _Axis(label=learnt.label, of=learnt.of, scale=100.0, levels=tuple(v for _, v in levels))
    leaked = _Axis(label="Membership AUC", of=lambda p: p.leakage, levels=(0.5,))
    axes = (
        (f"{measure} against traffic", traffic, above),
        (f"leakage against {measure}", learnt, leaked),
        ("leakage against traffic", traffic, leaked),
    )
    for says in _LABELS:
        drawings = [_drawing(points, x, y, says) for _, x, y in axes]
        if not any(drawing.unnamed for drawing in drawings):
            break
    charts = []
    for number, ((title, x, y), drawing) in enumerate(zip(axes, drawings, strict=True), 1):
        if not drawing.shown:
            continue
        words = "; ".join(f"{p.name[:40]}: {_said(x, p)}, {_said(y, p)}" for p in drawing.shown)
        description = f"{y.label} by {x.label.lower()}. {words}"
        chart = inline(drawing.document, f"trade-{number}", description)
        absent = []
        for point in points:
            if point not in drawing.shown:
                absent.append(point.name)
        charts.append(Panel(title=title, chart=chart, absent=tuple(absent), unnamed=drawing.unnamed))
    return tuple(charts)


def _label(says: str, number: int, point: TradePoint, across: _Axis) -> tuple[str, ...]:
    """Return the lines of a run's label.

    Args:
        says: one of `_LABELS`.
        number: the run's place from 0.
        point: the run.
        across: the lower axis; a label has the bytes only if it is theirs.
    """
    if says == "number":
        return (str(number + 1),)
    name = plain(point.name, _LONGEST)
    if says == "name" or not across.bytes:
        return (name,)
    return name, _size(point.bytes)


def _size(size: float) -> str:
    """Return a number of bytes, without decimals where it is a round one."""
    text = kilobytes(size).replace(NBSP, " ")
    return text.replace(".0 ", " ")


def _said(axis: _Axis, point: TradePoint) -> str:
    reach = axis.of(point)
    if reach is None:
        return "no figure"
    if axis.bytes:
        return kilobytes(reach.value)
    return f"{axis.scale * reach.value:.3g}"


def key_mark(number: int) -> Markup:
    """Return the mark of a run, by its place from 0, as a small drawing beside its name."""
    body = f'<svg viewBox="0 0 12 12">{_symbol(number, 6, 6)}</svg>'
    return _small(body, 12)


def key_line(number: int) -> Markup:
    """Return the dashes of a reference line, by its place from 0, as a small drawing beside its name."""
    body = f'<svg viewBox="0 0 26 12">{svg_curve([(1, 6), (25, 6)], MUTED, 1.0, 1 + number % 4)}</svg>'
    return _small(body, 26)


def _small(body: str, width: int) -> Markup:
    head = f'<svg class="key-mark" aria-hidden="true" width="{width}" height="12"'
    return Markup(body.replace("<svg", head, 1))  # noqa: S704 - numbers and our own constants


# -- one drawing ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Drawing:
    document: str
    shown: tuple[TradePoint, ...]
    unnamed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Mark:
    """A run's mark: the run with its number from 0, its place, the bars of its intervals, and its label's lines."""

    point: TradePoint
    number: int
    place: tuple[float, float]
    bars: tuple[Line, ...]
    lines: tuple[str, ...]

    @property
    def colour(self) -> str:
        return COLOURS[self.number % len(COLOURS)]

    @property
    def box(self) -> Box:
        x, y = self.place
        return Box(left=x - _HALF, top=y - _HALF, right=x + _HALF, bottom=y + _HALF)

    @property
    def label_size(self) -> tuple[float, float]:
        width = max(text_width(line, _SIZE) for line in self.lines)
        return width, _LINE * len(self.lines)


def _drawing(points: Sequence[TradePoint], across: _Axis, up: _Axis, says: str) -> _Drawing:
    """Draw one chart, with the labels that have room."""
    shown = [p for p in points if across.of(p) is not None and up.of(p) is not None]
    if not shown:
        return _Drawing(document="", shown=(), unnamed=())
    x = _placed(across, shown, _FRAME.across)
    y = _placed(up, shown, _FRAME.up)
    marks = []
    for point in shown:
        number = points.index(point)
        first, second = _reach(across, point), _reach(up, point)
        place = (x(first.value), y(second.value))
        bars = tuple(_bars(first, second, place, x, y))
        label_lines = _label(says, number, point, across)
        marks.append(_Mark(point=point, number=number, place=place, bars=bars, lines=label_lines))
    levels: list[Line] = [((_FRAME.left, y(v)), (_FRAME.right, y(v))) for v in up.levels]
    inside = Box(left=_FRAME.left + 2, top=_FRAME.top, right=_FRAME.width, bottom=_FRAME.bottom - 2)
    lines = [*chain.from_iterable(mark.bars for mark in marks), *levels]
    labels = place_labels([m.box for m in marks], [m.label_size for m in marks], inside, lines)

    parts = [*_lower_axis(across, shown, x), *_left_axis(up, shown, y)]
    for number, line in enumerate(levels):
        parts.append(svg_curve(line, MUTED, 0.9, 1 + number % 4))
    for mark in marks:
        for (x1, y1), (x2, y2) in mark.bars:
            parts.append(svg_line(x1, y1, x2, y2, mark.colour, 1.2))
    for label in labels:
        if label is not None and label.leader is not None:
            (x1, y1), (x2, y2) = label.leader
            parts.append(svg_line(x1, y1, x2, y2, MUTED, 0.6))
    parts += [_symbol(mark.number, *mark.place) for mark in marks]
    unnamed = []
    for mark, label in zip(marks, labels, strict=True):
        if label is None:
            unnamed.append(mark.point.name)
            continue
        middle = (label.box.left + label.box.right) / 2
        for row, text in enumerate(mark.lines, 1):
            baseline = label.box.top + _LINE * row - 2.5
            parts.append(svg_text(middle, baseline, text, "middle", _SIZE, mark.colour))
    document = _FRAME.drawn(parts, across.label, up.label)
    return _Drawing(document=document, shown=tuple(shown), unnamed=tuple(unnamed))


def _reach(axis: _Axis, point: TradePoint) -> Reach:
    reach = axis.of(point)
    if reach is None:
        raise ValueError(f"{point.name}: has no figure on the axis {axis.label!r}")
    return reach


def _placed(
    axis: _Axis, points: Sequence[TradePoint], scale: Callable[[float, float], Callable[[float], float]]
) -> Callable[[float], float]:
    """Return the map of a figure's values to places on an axis."""
    place = scale(*axis.ends(points))
    return lambda value: place(axis.unit(value))


def _bars(
    across: Reach,
    up: Reach,
    place: tuple[float, float],
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> Iterator[Line]:
    """Yield the bars of a mark's intervals."""
    if up.low is not None and up.high is not None:
        yield (place[0], y(up.low)), (place[0], y(up.high))
    if across.low is not None and across.high is not None:
        yield (x(across.low), place[1]), (x(across.high), place[1])


def _symbol(number: int, x: float, y: float) -> str:
    """Return the mark of the run with this place: hollow, so that one under another is seen."""
    colour, shape = COLOURS[number % 5], MARKERS[(number + number // 5) % 5]
    style = f'fill="white" fill-opacity="0.55" stroke="{colour}" stroke-width="1.5"'
    return f'<g class="mark" transform="translate({x:.2f} {y:.2f})"><path d="{_SHAPES[shape]}" {style}/></g>'


def _left_axis(axis: _Axis, points: Sequence[TradePoint], y: Callable[[float], float]) -> Iterator[str]:
    low, high = axis.ends(points)
    for tick, text in ticks(low, high):
        if 0 <= tick <= axis.scale:
            at = y(tick / axis.scale)
            yield svg_line(_FRAME.left, at, _FRAME.right, at, RULE, 0.5)
            yield _FRAME.tick_left(at, text)


def _lower_axis(axis: _Axis, points: Sequence[TradePoint], x: Callable[[float], float]) -> Iterator[str]:
    """Yield ticks; of bytes at the powers of ten with their numbers, and at their multiples without."""
    low, high = axis.ends(points)
    if not axis.bytes:
        for tick, text in ticks(low, high):
            if 0 <= tick <= axis.scale:
                yield _FRAME.tick_below(x(tick / axis.scale), text)
        return
    right = -math.inf
    for decade in range(max(0, math.floor(low)), math.floor(high) + 1):
        for multiple in range(1, 10):
            size = multiple * 10.0**decade
            if low <= math.log10(size) <= high:
                yield svg_line(x(size), _FRAME.bottom, x(size), _FRAME.bottom + 2, MUTED, 0.5)
        size, text = 10.0**decade, _size(10.0**decade)
        half = text_width(text, 8.5) / 2
        if low <= decade and right < x(size) - half and x(size) + half <= _FRAME.width:
            right = x(size) + half + 4
            yield _FRAME.tick_below(x(size), text)

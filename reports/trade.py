"""The chart of a comparison: utility against traffic, as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from markupsafe import Markup

from .figures import COLOURS, MARKERS, MUTED, STYLES, inline_svg, plain, spread
from .text import NBSP, kilobytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["TradePoint", "ticks_at_decades", "trade_chart"]

_CLEAR = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
"""Background of a label, so that no line runs through it."""

_WIDE, _HIGH, _LETTER = 233.0, 156.0, 5.0
"""The drawing's axes and a letter of its labels, in points."""


@dataclass(frozen=True, kw_only=True)
class TradePoint:
    """One run in a chart of accuracy against traffic; accuracy a fraction, `low` and `high` its interval."""

    name: str
    bytes: int
    accuracy: float
    low: float | None = None
    high: float | None = None


def trade_chart(
    points: Sequence[TradePoint], levels: Sequence[tuple[str, float]], measure: str, name: str, title: str
) -> Markup:
    """Draw accuracy, or mAUC, against bytes on the wire (logarithmic): a mark a run, a dashed level a reference line.

    Args:
        points: the runs; one that sent nothing is at the left edge.
        levels: reference lines with their values.
        measure: the measure of utility.
        name: prefix of the drawing's identifiers, unique on the page.
        title: description of the drawing, for readers who can't see it.
    """
    sizes = [p.bytes for p in points if p.bytes > 0] or [1]
    left, right = min(sizes) / 3, max(sizes) * 3

    def draw(axes: Axes) -> None:
        _draw_levels(axes, levels)
        _draw_points(axes, points, left, right)
        axes.set(xscale="log", xlim=(left, right), ylim=(0, 100), xlabel="Bytes on the wire, all roles",
                 ylabel=f"Test {measure} (%)")  # fmt: skip
        axes.minorticks_off()
        ticks_at_decades(axes, left, right)
        axes.grid(axis="y")

    return inline_svg(draw, (4.9, 2.75), (0.115, 0.17, 0.66, 0.79), name, title)


def ticks_at_decades(axes: Axes, left: float, right: float) -> None:
    """Put ticks with sizes in bytes at the powers of ten between two ends."""
    decades = range(math.floor(math.log10(left)), math.ceil(math.log10(right)) + 1)
    ticks = [10.0**d for d in decades if left <= 10.0**d <= right]
    axes.set_xticks(ticks, [kilobytes(t).replace(NBSP, " ").replace(".0", "") for t in ticks])


def _draw_levels(axes: Axes, levels: Sequence[tuple[str, float]]) -> None:
    for i, (_, level) in enumerate(levels):
        axes.axhline(100 * level, color=MUTED, linestyle=STYLES[1 + i % 4], linewidth=0.9)
    labels = [(100 * level, plain(text, 14), MUTED) for text, level in levels]
    for y, text, colour in spread(labels, 7.5):
        axes.annotate(
            text, (1.02, y), xycoords=("axes fraction", "data"), color=colour, va="center", fontsize=8.5
        )


def _draw_points(axes: Axes, points: Sequence[TradePoint], left: float, right: float) -> None:
    def place(point: TradePoint) -> tuple[float, float]:
        across = math.log(max(point.bytes, left) / left) / math.log(right / left)
        return _WIDE * across, _HIGH * 100 * point.accuracy

    # No label overlaps a mark or another label.
    boxes = [(x - 5, x + 5, y - 3) for x, y in map(place, points)]
    for i, point in enumerate(points):
        x, y, colour = max(point.bytes, left), 100 * point.accuracy, COLOURS[i % 5]
        if point.low is not None and point.high is not None:
            axes.plot([x, x], [100 * point.low, 100 * point.high], color=colour, linewidth=1.4, clip_on=False)
        axes.plot(
            [x], [y], color=colour, marker=MARKERS[i % 5], markersize=6, linestyle="none", clip_on=False
        )
        text = plain(point.name, 20)
        side, rise = _free_side(place(point), _LETTER * len(text), boxes)
        end = "left" if side > 0 else "right"
        axes.annotate(text, (x, y), xytext=(7 * side, rise), textcoords="offset points", color=colour,
                      ha=end, fontsize=8.5, bbox=_CLEAR)  # fmt: skip


def _free_side(
    place: tuple[float, float], width: float, taken: list[tuple[float, float, float]]
) -> tuple[int, float]:
    """Return a free side of a mark (1 right, -1 left) and height for its label, clear of those in `taken`.

    Args:
        place: the mark, in points of the drawing.
        width: of the label, in points.
        taken: left end, right end and height of marks and of the labels so far; the chosen place is added.
    """

    def box(rise: float, side: int) -> tuple[float, float, float]:
        start = place[0] + 7
        if side < 0:
            start = place[0] - 7 - width
        return start, start + width, place[1] + rise

    def clear(low: float, high: float, y: float) -> bool:
        inside = low > 0 and high < _WIDE
        return inside and all(high < a or low > b or abs(y - height) > 8 for a, b, height in taken)

    choices = list(product((-3.0, -12.0, 7.0, -22.0, 17.0), (1, -1)))
    rise, side = next((c for c in choices if clear(*box(*c))), choices[0])
    taken.append(box(rise, side))
    return side, rise

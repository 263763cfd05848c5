"""The figures of a sweep, for papers and for the page: a panel a defence, a line a protocol, error bars over seeds.

Guarantees:
  * every finite ε is the ledger's, except on the axis of the requested ε;
  * an axis of a bounded measure ends at its bounds, and so do its error bars;
  * a figure states the number of seeds, the adversary of its ε and those of its attacks;
  * protocols differ in marker and line style as well as in colour (Okabe and Ito's palette).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from ..drawings.paper import FORMATS, PAPER, file_bytes
from ..drawings.svg import COLOURS, MARKERS, MUTED, STYLES, inline, plain
from ..text import NBSP, joined, kilobytes
from .curve_axis import AxisScale, by_ledger, ledger_label, scale_of, view_of
from .sweep_rows import Point, Spread, SweepColumn, front

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["WIDTHS", "Curve", "files", "on_page"]

WIDTHS = {"column": 3.5, "text": 7.0}
"""Widths of figures in inches: a column of a two-column paper, and its whole text."""
_NAMED = 6
"""Most seeds that a figure names one by one."""
_WIDE = 5.0
"""From this width on, panels are side by side."""
_STYLES: tuple[Any, ...] = STYLES
_MARKERS = (*MARKERS, "P", "X", "<", ">", "*")
_FRONT = "#c9c4b7"
"""Colour of the Pareto front."""
_SMALL = {"font.size": 7.5, "axes.labelsize": 7.5, "xtick.labelsize": 7, "ytick.labelsize": 7}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One figure.

    Attributes:
        name: of its files.
        points: the drawn points, all with a spread of utility (and of `across`, if given).
        across: the measure on the horizontal axis; None draws against an ε.
        asked: whether that is the requested ε, not the ledger's.
        adversary: the adversary of the ledger's ε.
        utility: the measure of utility, for the axis.
        references: reference lines with their means.
        protocols: all protocols of the sweep in their order, so that each has the same style in every figure.
    """

    name: str
    points: tuple[Point, ...]
    across: SweepColumn | None
    asked: bool = False
    adversary: str
    utility: str
    references: tuple[tuple[str, float], ...]
    protocols: tuple[str, ...]

    @property
    def basis(self) -> str:
        """Return seeds, intervals and adversaries in one line."""
        seeds = set[int]()
        for point in self.points:
            for row in point.rows:
                if "utility" in row.values:
                    seeds.add(row.run.seed)
        first, *others = map(str, sorted(seeds))
        line = f"n = {self.seeds_a_mark} "
        if not others:
            line += f"(seed {first})"
        elif len(seeds) <= _NAMED:
            line += f"(seeds {joined([first, *others])})"
        else:
            line += f"(seeds {first} … {others[-1]})"
        if self.has_bars:
            line += "; bars: 95 % intervals"
        line += f"; ε of {view_of(self.adversary)}"
        if self.attackers:
            line += f"; attacks from {joined(self.attackers)}"
        return line

    @property
    def seeds_a_mark(self) -> str:
        """Return the number of seeds behind a mark, or its range."""
        counts = [point.spreads["utility"].n for point in self.points]
        return " to ".join(map(str, dict.fromkeys((min(counts), max(counts)))))

    @property
    def has_bars(self) -> bool:
        """Return whether some mark stands for several seeds."""
        return any(point.spreads["utility"].n > 1 for point in self.points)

    @property
    def attackers(self) -> tuple[str, ...]:
        """Return the adversaries whose attacks the measure on the axis takes the strongest of."""
        if self.across is None or not self.across.goal:
            return ()
        names = dict[str, None]()
        for row in chain.from_iterable(point.rows for point in self.points):
            if row.run.result is not None:
                for cell in row.run.result.tests:
                    if cell.goal == self.across.goal:
                        names[cell.adversary] = None
        return tuple(names)

    @property
    def defences(self) -> tuple[str, ...]:
        """Return the defences, one panel each; if nothing is defended, one panel for all."""
        names = dict[str, None]()
        for point in self.points:
            if point.defended:
                names[point.defence] = None
        return tuple(names) or ("",)

    @property
    def front(self) -> tuple[Point, ...]:
        """Return the points that no other point dominates, by rising leakage or cost."""
        if self.across is None:
            return ()
        places = []
        for point in self.points:
            cost = point.spreads[self.across.name].mean
            if self.across.least:
                cost = -cost
            places.append((cost, point.spreads["utility"].mean))
        return tuple(self.points[i] for i in front(places))

    def epsilon(self, point: Point) -> float:
        """Return ε of a point by the ledger; infinite if its ledgers do not mention the adversary."""
        epsilon = by_ledger(point, self.adversary)
        return math.inf if epsilon is None else epsilon

    @property
    def scale(self) -> AxisScale | None:
        """Return the ε axis; None if a measure is on the axis."""
        if self.across is not None:
            return None
        if self.asked:
            levels, values = set[float](), list[float]()
            for point in self.points:
                if point.defended:
                    levels.add(point.level)
                if point.epsilon_asked is not None:
                    values.append(point.level)
            return scale_of(values, levels=sorted(levels), beyond="none")
        tested = list(map(self.epsilon, self.points))
        return scale_of(tested, marked=tested)

    @property
    def unclaimed(self) -> tuple[Point, ...]:
        """Return the defended points for which the ledger has no finite ε."""
        points = list[Point]()
        for point in self.points:
            if point.defended and math.isinf(self.epsilon(point)):
                points.append(point)
        return tuple(points)


def files(curve: Curve, width: float) -> dict[str, bytes]:
    """Return a figure as SVG, PDF and PNG (300 dots an inch), by suffix."""
    return {suffix: _drawn(curve, width, {**PAPER, **_SMALL}, suffix) for suffix in FORMATS}


def on_page(curve: Curve, title: str) -> Markup:
    """Return the same figure as an inline `svg` element; `title` describes it to readers who can't see it."""
    document = _drawn(curve, WIDTHS["text"], {}, "svg").decode("utf-8")
    return inline(document, curve.name, title)


def _drawn(curve: Curve, width: float, settings: dict[str, Any], suffix: str) -> bytes:
    """Return the bytes of a figure's file."""
    defences, wide = curve.defences, width > _WIDE
    rows, columns, height = len(defences), 1, len(defences) * 1.9 + 0.6
    if wide:
        rows, columns, height = 1, len(defences), 2.75

    if curve.across is not None:
        across = curve.across.label + {"fraction": " (%)", "dB": " (dB)"}.get(curve.across.unit, "")
    elif curve.asked:
        across = "ε asked"
    else:
        across = ledger_label(curve.points, curve.adversary)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(rows, columns, sharey=True, sharex=True, squeeze=False)
        for axes, defence in zip(grid.flat, defences, strict=True):
            _panel(axes, curve, defence)
        for axes in grid[:, 0]:
            axes.set_ylabel(f"Test {curve.utility} (%)")
        for axes in grid[-1, :]:
            axes.set_xlabel(across)
        _legend(figure, curve, wide)
        basis = textwrap.fill(curve.basis, round(24 * width))
        figure.supxlabel(basis, fontsize=6.5 if wide else 5.5, color=MUTED)

    return file_bytes(draw, (width, height), settings, suffix)


def _panel(axes: Axes, curve: Curve, defence: str) -> None:
    for number, (_, level) in enumerate(curve.references):
        axes.axhline(100 * level, color=MUTED, linestyle=_STYLES[1 + number % 4], linewidth=0.9, zorder=1)
    if curve.across is not None and curve.across.level is not None:
        axes.axvline(_scaled(curve.across, curve.across.level), color=MUTED, linewidth=0.6, zorder=1)
    if len(curve.front) > 1:
        x, y = list[float](), list[float]()
        for point in curve.front:
            x.append(_value(curve, point))
            y.append(100 * point.spreads["utility"].mean)
        axes.step(x, y, where="post", color=_FRONT, linewidth=3.2, solid_joinstyle="miter", zorder=0.5)
    for protocol in curve.protocols:
        own = list[Point]()
        for point in curve.points:
            if point.protocol == protocol and (point.defence == defence or not point.defended):
                own.append(point)
        _line(axes, curve, protocol, sorted(own, key=lambda p: (curve.epsilon(p), p.level)), defence)
    axes.set_ylim(0, 100)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    if defence:
        axes.set_title(plain(defence, 40), fontsize=axes.yaxis.label.get_fontsize(), loc="left")
    scale = curve.scale
    if scale is None:
        _ticks(axes, curve)
    else:
        scale.draw(axes)


def _value(curve: Curve, point: Point) -> float:
    """Return the number that a point is drawn at: the measure's mean, or its ε."""
    if curve.across is not None:
        return _scaled(curve.across, point.spreads[curve.across.name].mean)
    return point.level if curve.asked else curve.epsilon(point)


def _place(curve: Curve, scale: AxisScale | None, point: Point) -> float:
    """Return a point's place on the axis; marks are beside each other in the bands of 0 and infinity.

    Finite values of the ledger are never moved: the place is the claim.
    """
    value = _value(curve, point)
    if scale is None:
        return value
    number, count = curve.protocols.index(point.protocol), len(curve.protocols)
    beside = (number + 0.5) / count - 0.5
    if math.isfinite(value) and value > 0:
        shift = 0.05 * beside * count if curve.asked else 0.0
    elif curve.unclaimed and not curve.asked:  # runs without a defence stand on the right then
        side = -0.22 if point.defended else 0.22
        shift = scale.band * (side + beside * 0.36)
    else:
        shift = scale.band * (beside * 0.72)
    return scale.place(value) + shift


def _scaled(measure: SweepColumn, value: float) -> float:
    return 100 * value if measure.unit == "fraction" else value


def _line(axes: Axes, curve: Curve, protocol: str, own: Sequence[Point], defence: str) -> None:
    if not own:
        return
    number, scale = curve.protocols.index(protocol), curve.scale
    colour, marker = COLOURS[number % 5], _MARKERS[number % len(_MARKERS)]
    x, y, line_x, line_y = list[float](), list[float](), list[float](), list[float]()
    for point in own:
        x.append(_place(curve, scale, point))
        y.append(100 * point.spreads["utility"].mean)
        if scale is None or 0 < _value(curve, point) < math.inf:  # no line crosses an axis break
            line_x.append(x[-1])
            line_y.append(y[-1])
    axes.plot(line_x, line_y, color=colour, linestyle=_STYLES[number % 5], linewidth=1.0, zorder=2)
    fine = 0.55
    if scale is not None and curve.asked:
        fine = 0.8
    elif scale is not None:
        fine = 1.5 - 0.9 * number / len(curve.protocols)
    bars: dict[str, Any] = {
        "ecolor": colour,
        "elinewidth": fine,
        "capsize": 1.6,
        "capthick": fine,
        "zorder": 3,
    }
    panel = curve.defences.index(defence)
    for place, high, point, size in zip(x, y, own, _sizes(curve, own), strict=True):
        mark = axes.errorbar([place], [high], yerr=_bar(point.spreads["utility"], 100), color=colour, fmt=marker,
                              xerr=_across_bar(curve, point), markersize=size, markeredgewidth=0.9,
                              **bars, **_fill(curve, point, colour))  # fmt: skip
        for artist in mark.get_children():
            artist.set_clip_on(False)  # marks at an end of an axis are whole
        mark.lines[0].set_gid(f"mark-{panel}-{curve.points.index(point)}")


def _fill(curve: Curve, point: Point, colour: str) -> dict[str, Any]:
    """Return how a mark is filled.

    Full marks have a finite ε by the ledger. Half-filled ones have a defence without one. Hollow ones have no defence.
    """
    if not point.defended:
        return {"markerfacecolor": "white"}
    if math.isinf(curve.epsilon(point)):
        return {"fillstyle": "bottom", "markerfacecolor": colour, "markerfacecoloralt": "white"}
    return {"markerfacecolor": colour}


def _sizes(curve: Curve, own: Sequence[Point]) -> list[float]:
    """Return the marks' sizes; if ε is not on an axis, a larger mark has a larger ε by the ledger."""
    if curve.asked:
        return [3.6] * len(own)
    sizes = list[float]()
    levels = sorted(set(map(curve.epsilon, curve.points)))
    for point in own:
        if curve.across is None:
            # Marks at one ε are not moved apart: a later protocol's is smaller, and both are seen.
            sizes.append(5.0 - 2.2 * curve.protocols.index(point.protocol) / len(curve.protocols))
        else:
            sizes.append(2.4 + 2.8 * levels.index(curve.epsilon(point)) / max(len(levels) - 1, 1))
    return sizes


def _bar(spread: Spread, scale: float) -> list[list[float]] | None:
    if spread.low is None or spread.high is None:
        return None
    return [[scale * (spread.mean - spread.low)], [scale * (spread.high - spread.mean)]]


def _across_bar(curve: Curve, point: Point) -> list[list[float]] | None:
    if curve.asked or (curve.across is not None and curve.across.unit == "bytes"):
        return None
    if curve.across is not None:
        return _bar(point.spreads[curve.across.name], _scaled(curve.across, 1.0))
    # From the largest ε of the point's runs down to the least, if they differ.
    bill, scale = point.bill(curve.adversary), curve.scale
    if bill is None or scale is None or not 0 < bill.least < bill.epsilon < math.inf:
        return None
    return [[scale.place(bill.epsilon) - scale.place(bill.least)], [0.0]]


def _ticks(axes: Axes, curve: Curve) -> None:
    """Keep the axis of a measure within its bounds; that of bytes is logarithmic."""
    if curve.across is None or curve.across.ceiling is None:
        return
    left, right = axes.get_xlim()
    axes.set_xlim(max(left, 0.0), min(right, _scaled(curve.across, curve.across.ceiling)))
    if curve.across.unit != "bytes":
        return
    values = [p.spreads["bytes"].mean for p in curve.points]
    low, high = min(values), max(values)
    if low <= 0:
        return
    left, right = low / 2, high * 2
    axes.set_xscale("log")
    axes.set_xlim(left, right)
    places, sizes = [], []
    for decade in range(math.floor(math.log10(left)), math.ceil(math.log10(right)) + 1):
        if left <= 10.0**decade <= right:
            places.append(10.0**decade)
            sizes.append(kilobytes(10.0**decade).replace(NBSP, " ").replace(".0", ""))
    axes.set_xticks(places, sizes)
    axes.minorticks_off()


def _legend(figure: Figure, curve: Curve, wide: bool) -> None:
    from matplotlib.lines import Line2D

    protocols = {point.protocol for point in curve.points}
    entries: list[dict[str, Any]] = []
    for n, protocol in enumerate(curve.protocols):
        if protocol in protocols:
            mark = {"marker": _MARKERS[n % len(_MARKERS)], "markersize": 3.6}
            line = {"color": COLOURS[n % 5], "linestyle": _STYLES[n % 5], "linewidth": 1.0}
            entries.append({**mark, **line, "label": plain(protocol, 24)})
    for n, (name, _) in enumerate(curve.references):
        line = {"color": MUTED, "linestyle": _STYLES[1 + n % 4], "linewidth": 0.9}
        entries.append({**line, "label": plain(name, 24)})
    if len(curve.front) > 1:
        entries.append({"color": _FRONT, "linewidth": 3.2, "label": "Pareto front"})
    mark = {"color": MUTED, "marker": "o", "linestyle": "none", "markersize": 3.6}
    if not all(point.defended for point in curve.points):
        entries.append({**mark, "markerfacecolor": "white", "label": "no defence"})
    if curve.unclaimed:
        half = {"fillstyle": "bottom", "markerfacecoloralt": "white"}
        entries.append({**mark, **half, "label": "ledger: ε = ∞"})
    columns, size = (6, 7.5) if wide else (3, 6.5)
    rows = math.ceil(len(entries) / columns)
    figure.legend(
        handles=[Line2D([], [], **entry) for entry in entries],
        loc="outside upper center",
        ncols=math.ceil(len(entries) / rows),
        frameon=False,
        fontsize=size,
        handlelength=2.6,
        columnspacing=1.4,
        borderaxespad=0.1,
    )

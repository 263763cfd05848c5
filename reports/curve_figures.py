"""The figures of a sweep, for papers and for the page: a panel a defence, a line a protocol, error bars over seeds.

Guarantees:
  * the same rows give the same bytes in SVG, PDF and PNG: no date, no random identifiers;
  * vectors stay vectors: PDF embeds TrueType, SVG files carry glyphs as paths and need no font;
  * every finite ε is the ledger's, except on the axis of the requested ε;
  * an axis of a bounded measure ends at its bounds, and so do its error bars;
  * a figure states the number of seeds, the adversary of its ε and those of its attacks;
  * protocols differ in marker and line style as well as in colour (Okabe and Ito's palette).
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from .curve_axis import AxisScale, by_ledger, ledger_label, scale_of, view_of
from .figures import COLOURS, MARKERS, MUTED, SETTINGS, STYLES, inline, plain
from .sweep_rows import Point, Spread, SweepColumn, front
from .text import NBSP, joined, kilobytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = ["FORMATS", "WIDTHS", "Curve", "files", "on_page"]

WIDTHS = {"column": 3.5, "text": 7.0}
"""Widths of figures in inches: a column of a two-column paper, and its whole text."""
FORMATS = ("svg", "pdf", "png")
_NAMED = 6
"""Most seeds that a figure names one by one."""
_WIDE = 5.0
"""From this width on, panels are side by side."""
_STYLES: tuple[Any, ...] = STYLES
_MARKERS = (*MARKERS, "P", "X", "<", ">", "*")
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": None},
    "png": {"Software": None},
}
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
        seeds = sorted({r.run.seed for p in self.points for r in p.rows if "utility" in r.values})
        n = sorted({p.spreads["utility"].n for p in self.points})
        count = str(n[0]) if len(n) == 1 else f"{n[0]} to {n[-1]}"
        bars = "; bars: 95 % intervals" if n[-1] > 1 else ""
        seed_list = joined(map(str, seeds)) if len(seeds) <= _NAMED else f"{seeds[0]} … {seeds[-1]}"
        line = f"n = {count} (seed{'s' * (len(seeds) > 1)} {seed_list}){bars}; ε of {view_of(self.adversary)}"
        if self.attackers:
            line += f"; attacks from {joined(self.attackers)}"
        return line

    @property
    def attackers(self) -> tuple[str, ...]:
        """Return the adversaries whose attacks the measure on the axis takes the strongest of."""
        if self.across is None or not self.across.goal:
            return ()
        names: dict[str, None] = {}
        for result in (row.run.result for point in self.points for row in point.rows):
            if result is not None:
                names |= dict.fromkeys(c.adversary for c in result.tests if c.goal == self.across.goal)
        return tuple(names)

    @property
    def defences(self) -> tuple[str, ...]:
        """Return the defences, one panel each; if nothing is defended, one panel for all."""
        names = tuple(dict.fromkeys(p.defence for p in self.points if p.defended))
        return names or ("",)

    @property
    def front(self) -> tuple[Point, ...]:
        """Return the points that no other point dominates, by rising leakage or cost."""
        if self.across is None:
            return ()
        sign = -1.0 if self.across.least else 1.0
        places = [(sign * p.spreads[self.across.name].mean, p.spreads["utility"].mean) for p in self.points]
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
            levels = sorted({p.level for p in self.points if p.defended})
            values = [p.level for p in self.points if p.epsilon_asked is not None]
            return scale_of(values, levels=levels, beyond="none")
        tested = [self.epsilon(p) for p in self.points]
        return scale_of(tested, marked=tested)

    @property
    def unclaimed(self) -> tuple[Point, ...]:
        """Return the defended points for which the ledger has no finite ε."""
        return tuple(p for p in self.points if p.defended and math.isinf(self.epsilon(p)))


def files(curve: Curve, width: float) -> dict[str, bytes]:
    """Return a figure as SVG, PDF and PNG (300 dots an inch), by suffix."""
    settings = {"svg.fonttype": "path", "pdf.fonttype": 42, **_SMALL}
    return {suffix: _drawn(curve, width, settings, suffix) for suffix in FORMATS}


def on_page(curve: Curve, title: str) -> Markup:
    """Return the same figure as an inline `svg` element; `title` describes it to readers who can't see it."""
    document = _drawn(curve, WIDTHS["text"], {}, "svg").decode("utf-8")
    return inline(document, curve.name, title)


def _drawn(curve: Curve, width: float, settings: dict[str, Any], suffix: str) -> bytes:
    """Draw on a new figure and return the file's bytes; the settings hold inside this call."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    defences, wide = curve.defences, width > _WIDE
    if wide:
        rows, columns, height = 1, len(defences), 2.75
    else:
        rows, columns, height = len(defences), 1, len(defences) * 1.9 + 0.6
    settings = {**SETTINGS, **settings}
    buffer = io.BytesIO()
    with matplotlib.rc_context(settings):  # type: ignore[arg-type]  # names of settings are plain text here
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, columns, sharey=True, sharex=True, squeeze=False)
        for axes, defence in zip(grid.flat, defences, strict=True):
            _panel(axes, curve, defence)
        for axes in grid[:, 0]:
            axes.set_ylabel(f"Test {curve.utility} (%)")
        for axes in grid[-1, :]:
            axes.set_xlabel(_across(curve))
        _legend(figure, curve, wide)
        basis = textwrap.fill(curve.basis, round(24 * width))
        figure.supxlabel(basis, fontsize=6.5 if wide else 5.5, color=MUTED)
        figure.savefig(buffer, format=suffix, dpi=300, metadata=_METADATA[suffix])
    return buffer.getvalue()


def _across(curve: Curve) -> str:
    if curve.across is not None:
        unit = {"fraction": " (%)", "dB": " (dB)"}.get(curve.across.unit, "")
        return curve.across.label + unit
    if curve.asked:
        return "ε asked"
    return ledger_label(curve.points, curve.adversary)


def _panel(axes: Axes, curve: Curve, defence: str) -> None:
    for number, (_, level) in enumerate(curve.references):
        axes.axhline(100 * level, color=MUTED, linestyle=_STYLES[1 + number % 4], linewidth=0.9, zorder=1)
    if curve.across is not None and curve.across.level is not None:
        axes.axvline(_scaled(curve.across, curve.across.level), color=MUTED, linewidth=0.6, zorder=1)
    _front(axes, curve)
    for protocol in curve.protocols:
        own = [p for p in curve.points if p.protocol == protocol and (p.defence == defence or not p.defended)]
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
    y = [100 * p.spreads["utility"].mean for p in own]
    x = [_place(curve, scale, p) for p in own]
    line: dict[str, Any] = {"color": colour, "linestyle": _STYLES[number % 5], "linewidth": 1.0, "zorder": 2}
    joint = [scale is None or 0 < _value(curve, p) < math.inf for p in own]  # no line crosses an axis break
    axes.plot(list(compress(x, joint)), list(compress(y, joint)), **line)
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
    if (
        curve.across is None
    ):  # marks at one ε are not moved apart: a later protocol's is smaller, and both are seen
        return [5.0 - 2.2 * curve.protocols.index(p.protocol) / len(curve.protocols) for p in own]
    levels = sorted({curve.epsilon(p) for p in curve.points})
    return [2.4 + 2.8 * levels.index(curve.epsilon(p)) / max(len(levels) - 1, 1) for p in own]


def _bar(spread: Spread, scale: float) -> list[list[float]] | None:
    if spread.low is None or spread.high is None:
        return None
    return [[scale * (spread.mean - spread.low)], [scale * (spread.high - spread.mean)]]


def _across_bar(curve: Curve, point: Point) -> list[list[float]] | None:
    if curve.across is None:
        return None if curve.asked else _epsilon_bar(curve, point)
    if curve.across.unit == "bytes":
        return None
    return _bar(point.spreads[curve.across.name], _scaled(curve.across, 1.0))


def _epsilon_bar(curve: Curve, point: Point) -> list[list[float]] | None:
    """Return a bar from the largest ε of a point's runs down to the least, if they differ."""
    bill, scale = point.bill(curve.adversary), curve.scale
    if bill is None or scale is None or not 0 < bill.least < bill.epsilon < math.inf:
        return None
    return [[scale.place(bill.epsilon) - scale.place(bill.least)], [0.0]]


def _front(axes: Axes, curve: Curve) -> None:
    best = curve.front
    if len(best) < 2:
        return
    x = [_value(curve, p) for p in best]
    y = [100 * p.spreads["utility"].mean for p in best]
    axes.step(x, y, where="post", color="#c9c4b7", linewidth=3.2, solid_joinstyle="miter", zorder=0.5)


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
    if low > 0:
        axes.set_xscale("log")
        axes.set_xlim(low / 2, high * 2)
        _ticks_at_decades(axes, low / 2, high * 2)
        axes.minorticks_off()


def _ticks_at_decades(axes: Axes, left: float, right: float) -> None:
    """Put ticks with sizes in bytes at the powers of ten between two ends."""
    decades = range(math.floor(math.log10(left)), math.ceil(math.log10(right)) + 1)
    places = [10.0**d for d in decades if left <= 10.0**d <= right]
    axes.set_xticks(places, [kilobytes(place).replace(NBSP, " ").replace(".0", "") for place in places])


def _legend(figure: Figure, curve: Curve, wide: bool) -> None:
    from matplotlib.lines import Line2D

    protocols = {p.protocol for p in curve.points}
    handles = [
        Line2D([], [], color=COLOURS[n % 5], marker=_MARKERS[n % len(_MARKERS)], linestyle=_STYLES[n % 5],
               linewidth=1.0, markersize=3.6, label=plain(protocol, 24))
        for n, protocol in enumerate(curve.protocols)
        if protocol in protocols
    ]  # fmt: skip
    handles += [
        Line2D([], [], color=MUTED, linestyle=_STYLES[1 + n % 4], linewidth=0.9, label=plain(line, 24))
        for n, (line, _) in enumerate(curve.references)
    ]
    if len(curve.front) > 1:
        handles.append(Line2D([], [], color="#c9c4b7", linewidth=3.2, label="Pareto front"))
    handles += _fills(curve)
    rows = math.ceil(len(handles) / (6 if wide else 3))
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=math.ceil(len(handles) / rows),
        frameon=False,
        fontsize=7.5 if wide else 6.5,
        handlelength=2.6,
        columnspacing=1.4,
        borderaxespad=0.1,
    )


def _fills(curve: Curve) -> list[Line2D]:
    """Return the legend's entries for hollow and half-filled marks, if there are any."""
    from matplotlib.lines import Line2D

    plain_mark: dict[str, Any] = {"color": MUTED, "marker": "o", "linestyle": "none", "markersize": 3.6}
    handles = []
    if any(not p.defended for p in curve.points):
        handles.append(Line2D([], [], markerfacecolor="white", label="no defence", **plain_mark))
    if curve.unclaimed:
        handles.append(
            Line2D(
                [], [], fillstyle="bottom", markerfacecoloralt="white", label="ledger: ε = ∞", **plain_mark
            )
        )
    return handles

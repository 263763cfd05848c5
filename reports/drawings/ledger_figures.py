"""The figures of a privacy profile, for papers: ε against δ, and the trade-off function.

Guarantees:
  * the same profiles give the same bytes in SVG, PDF and PNG: no date, no random identifiers;
  * views differ in line style as well as in colour (Okabe and Ito's palette);
  * a view with an infinite ε has no line in ε against δ, and its name says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

from .paper import FORMATS, PAPER, file_bytes
from .svg import COLOURS, MUTED, STYLES, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Line", "epsilon_figure", "trade_off_figure"]

_WIDTH, _HEIGHT = 4.6, 3.4
"""Inches of a figure without its legend."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One view in a figure.

    Attributes:
        name: in the legend.
        x: ascending.
        y: one value each; infinite ones are not drawn.
        infinite: whether no ε can be claimed for the view.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    infinite: bool = False

    @property
    def label(self) -> str:
        """Return the name in the legend."""
        name = plain(self.name, 40)
        return f"{name}: ε = ∞" if self.infinite else name


def epsilon_figure(lines: Sequence[Line], delta: float) -> dict[str, bytes]:
    """Return ε against δ as SVG, PDF and PNG, by suffix, with a vertical line at the ledger's δ."""

    least = min(min(line.x) for line in lines)

    def draw(axes: Axes) -> None:
        axes.set_xscale("log")
        axes.set_xlim(least, 1)
        for number, line in enumerate(lines):
            finite = list(map(math.isfinite, line.y))
            x, y = list(compress(line.x, finite)), list(compress(line.y, finite))
            axes.plot(x, y, label=line.label, **_style(number))
        axes.axvline(delta, color=MUTED, linewidth=0.6, linestyle=(0, (2, 2)), zorder=1)
        powers, labels = list[float](), list[str]()
        for exponent in range(-3 * math.floor(1e-9 - math.log10(least) / 3), 1, 3):
            powers.append(10.0**exponent)
            labels.append(f"{10.0**exponent:g}")
        axes.set_xticks(powers, labels)
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set(xlabel="δ", ylabel="ε (upper bound)")
        axes.grid(axis="both")

    return _files(draw, len(lines) + 1)


def trade_off_figure(lines: Sequence[Line]) -> dict[str, bytes]:
    """Return type II against type I errors as SVG, PDF and PNG, by suffix, beside the line of guessing."""

    def draw(axes: Axes) -> None:
        axes.plot(
            [0, 1], [1, 0], color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)), label="guessing", zorder=1
        )
        for number, line in enumerate(lines):
            axes.plot(line.x, line.y, label=line.label, clip_on=False, **_style(number))
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.set(xlabel="Type I error α", ylabel="Type II error β (lower bound)")
        axes.grid(axis="both")

    return _files(draw, len(lines) + 1)


def _style(number: int) -> dict[str, Any]:
    """Return a line's style; later lines are thinner, so that an equal line below stays visible."""
    width = max(1.0, 2.0 - 0.3 * number)
    return {"color": COLOURS[number % 5], "linestyle": STYLES[number % 5], "linewidth": width}


def _files(draw: Callable[[Axes], None], entries: int) -> dict[str, bytes]:
    """Return one figure's files by suffix; its height grows with the entries of its legend."""

    def on_figure(figure: Figure) -> None:
        axes = figure.add_subplot()
        draw(axes)
        axes.set_axisbelow(True)
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=7.5, handlelength=2.8)

    size = (_WIDTH, _HEIGHT + 0.09 * entries)
    return {suffix: file_bytes(on_figure, size, PAPER, suffix) for suffix in FORMATS}

"""Parts of charts as SVG text: lines, texts, axes and ticks, and a chart as an element of a page.

Guarantees:
  * text from a result is never read as mathematics and never leaves its element;
  * series differ in line style and marker as well as in colour (Okabe and Ito's palette).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from ..text import visible

__all__ = [
    "BLUE",
    "COLOURS",
    "INK",
    "MARKERS",
    "MUTED",
    "RULE",
    "STYLES",
    "VERMILLION",
    "Axes",
    "inline",
    "plain",
    "svg_curve",
    "svg_line",
    "svg_text",
    "ticks",
]

BLUE, VERMILLION, GREEN, ORANGE, PURPLE = "#0072B2", "#D55E00", "#00795A", "#B77A00", "#A34E7E"
INK, MUTED, RULE = "#1f2a37", "#56626f", "#d9d5cb"
COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE)
STYLES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 1.5, 1.2, 1.5)), (0, (8, 2, 2, 2)))
MARKERS = ("o", "s", "^", "D", "v")

_DECIMALS = re.compile(r"(?<![\w#.])([1-9]\d*\.\d\d)\d+")
"""A coordinate's first two decimals, which are a thousandth of a drawing, and the rest."""

_TAG = re.compile(r'(\bid="|\bhref="#|url\(#)')


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The axes of a chart, in points from the top left corner of a drawing."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float

    def across(self, low: float, high: float) -> Callable[[float], float]:
        """Return the map of values to horizontal places."""
        return lambda value: self.left + (self.right - self.left) * (value - low) / (high - low)

    def up(self, low: float, high: float) -> Callable[[float], float]:
        """Return the map of values to vertical places."""
        return lambda value: self.bottom - (self.bottom - self.top) * (value - low) / (high - low)

    def tick_below(self, x: float, text: str) -> str:
        """Return a tick of the lower axis with its text."""
        mark = svg_line(x, self.bottom, x, self.bottom + 3.5, MUTED, 0.6)
        return mark + svg_text(x, self.bottom + 13, text, "middle", 8.5, INK)

    def tick_left(self, y: float, text: str) -> str:
        """Return a tick of the left axis with its text."""
        mark = svg_line(self.left - 3.5, y, self.left, y, MUTED, 0.6)
        return mark + svg_text(self.left - 6, y + 3, text, "end", 8.5, INK)

    def drawn(self, parts: Sequence[str], below: str, beside: str) -> str:
        """Return the chart as an SVG document, with both axes and their labels.

        Args:
            parts: what lies between the axes.
            below: label of the lower axis.
            beside: label of the left axis.
        """
        axes = svg_line(self.left, self.bottom, self.right, self.bottom, MUTED, 0.6)
        axes += svg_line(self.left, self.top, self.left, self.bottom, MUTED, 0.6)
        axes += svg_text((self.left + self.right) / 2, self.bottom + 28, below, "middle", 9, INK)
        upright = svg_text(0, 0, beside, "middle", 9, INK)
        axes += f'<g transform="translate(9 {(self.top + self.bottom) / 2:.2f}) rotate(-90)">{upright}</g>'
        return f'<svg viewBox="0 0 {self.width:.2f} {self.height:.2f}">{axes}{"".join(parts)}</svg>'


def ticks(low: float, high: float, parts: int = 6) -> list[tuple[float, str]]:
    """Return the places of ticks between two values, one more than `parts` at most, with their texts."""
    least = (high - low) / parts
    power = math.floor(math.log10(least))
    for factor in (1, 2, 2.5, 5, 10):
        step = factor * 10.0**power
        if step >= least * (1 - 1e-9):
            break
    decimals = 0
    while decimals < 12 and not math.isclose(step, round(step, decimals), rel_tol=1e-6):
        decimals += 1
    marks = []
    for n in range(math.ceil(low / step), math.floor(high / step) + 1):
        place = n * step
        marks.append((place, f"{place + 0.0:.{decimals}f}".replace("-", "\N{MINUS SIGN}")))
    return marks


def svg_line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float, dashes: str = "") -> str:
    """Return a straight line."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    place = f'd="M {x1:.2f} {y1:.2f} L {x2:.2f} {y2:.2f}"'
    return f'<path {place} stroke="{colour}" stroke-width="{width}"{dashed}/>'


def svg_curve(points: Sequence[tuple[float, float]], colour: str, width: float, style: int) -> str:
    """Return a line through points, dashed as the style with this number."""
    dashes = STYLES[style % len(STYLES)]
    dashed = ""
    if not isinstance(dashes, str):
        dashed = f' stroke-dasharray="{" ".join(f"{width * length:g}" for length in dashes[1])}"'
    place = " L ".join(f"{x:.2f} {y:.2f}" for x, y in points)
    return f'<path d="M {place}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>'


def svg_text(x: float, y: float, text: str, anchor: str, size: float, colour: str) -> str:
    """Return a text, escaped, whose baseline is at `y`."""
    style = f'style="font-size: {size}px; text-anchor: {anchor}; fill: {colour}"'
    return f'<text x="{x:.2f}" y="{y:.2f}" {style}>{escape(text)}</text>'


def plain(text: str, limit: int = 24) -> str:
    """Return a short label of characters that the drawing's font has; others become a replacement mark."""
    label = ""
    for character in text[:limit]:
        drawable = character.isprintable() and ord(character) < 0x250
        label += character if drawable else "\N{REPLACEMENT CHARACTER}"
    return label + "…" if len(text) > limit else label


def inline(document: str, name: str, title: str) -> Markup:
    """Return an SVG document as an HTML element: unique identifiers, no prologue, no metadata."""
    body = document[document.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    # Only inside tags: a label may contain the same characters.
    body = re.sub(r"<[^>]*>", lambda tag: _DECIMALS.sub(r"\1", _TAG.sub(rf"\1{name}-", tag[0])), body)
    body = re.sub(r"\n\s*", "\n", body)
    _, box, rest = re.split(r'viewBox="([^"]*)"[^>]*>', body, maxsplit=1)
    head = (
        f'<svg class="chart" viewBox="{box}" role="img" aria-labelledby="{name}-title" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
        f'<title id="{name}-title">{escape(visible(title))}</title>'
    )
    return Markup(head + rest.strip())  # noqa: S704 - matplotlib escapes its text, the title is escaped here

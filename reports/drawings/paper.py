"""Figures for papers, drawn by Matplotlib as SVG, PDF and PNG.

Guarantees:
  * the same data give the same bytes: no date, no random identifiers;
  * vectors stay vectors: PDF embeds TrueType, SVG files for papers carry glyphs as paths and need no font.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .svg import INK, MUTED, RULE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "PAPER", "file_bytes"]

FORMATS = ("svg", "pdf", "png")
_SETTINGS: dict[str, Any] = {
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "fdaudit",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 8.5,
}
PAPER: Mapping[str, Any] = {"svg.fonttype": "path", "pdf.fonttype": 42}
"""Settings of files for papers."""
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": None},
    "png": {"Software": None},
}
"""What a file of each format says of its making: no date and no program."""


def file_bytes(
    draw: Callable[[Figure], None], size: tuple[float, float], settings: Mapping[str, Any], suffix: str
) -> bytes:
    """Draw on a new figure and return the bytes of its file.

    Args:
        draw: draws on the empty figure.
        size: width and height in inches.
        settings: of Matplotlib, in addition to those of every figure; they hold inside this call.
        suffix: one of `FORMATS`; PNG has 300 dots an inch.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    every: Any = {**_SETTINGS, **settings}
    buffer = io.BytesIO()
    with matplotlib.rc_context(every):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        figure.savefig(buffer, format=suffix, dpi=300, metadata=_METADATA[suffix])
    return buffer.getvalue()

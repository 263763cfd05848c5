"""Formulas as outlines: TeX between dollars becomes one SVG path at build time, by matplotlib's mathtext.

The built pages need neither a network nor a script to show mathematics.

Guarantees:
  * a formula that mathtext cannot set is a warning, which ends a build that treats warnings as errors;
  * the TeX stays in the page, as what a screen reader says;
  * outlines have the colour of the text around them, on a light ground or a dark one.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

__all__ = ["lines_of", "setup", "svg"]

_SIZE = 100.0
"""Units of the outline to one em."""
_FONT = FontProperties(math_fontfamily="stix")
_COMMANDS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", Path.CLOSEPOLY: "Z"}


def lines_of(tex: str) -> list[str]:
    r"""The lines of a displayed formula, which `\\` ends; their fractions are as tall as TeX sets them there."""
    lines = (line.strip().replace("\n", " ") for line in tex.split(r"\\"))
    return [line.replace(r"\frac", r"\dfrac") for line in lines if line]


def svg(tex: str) -> str:
    """One line of TeX as an SVG element, its baseline on that of the text.

    Raises:
        ValueError: mathtext cannot set it.
    """
    outline = TextPath((0, 0), f"${tex}$", size=_SIZE, prop=_FONT)
    box = outline.get_extents()
    left, right, low, high = box.x0 - 2, box.x1 + 2, min(box.y0, 0.0) - 2, box.y1 + 2
    drawn = " ".join(
        _COMMANDS[code] + ",".join(f"{x:.0f} {-y:.0f}" for x, y in points.reshape(-1, 2))
        if code != Path.CLOSEPOLY
        else "Z"
        for points, code in outline.iter_segments(simplify=False, curves=True)
    )
    style = f"width:{(right - left) / _SIZE:.2f}em;vertical-align:{low / _SIZE:.2f}em"
    view = f"{left:.0f} {-high:.0f} {right - left:.0f} {high - low:.0f}"
    return (
        f'<svg class="tex" role="img" aria-label="{escape(tex)}" viewBox="{view}" style="{style}">'
        f'<path fill="currentColor" d="{drawn}"/></svg>'
    )


def _made(writer: HTML5Translator, node: nodes.Element, tex: str) -> str:
    try:
        return svg(tex)
    except ValueError as error:
        said = str(error).strip().rpartition("\n")[2]
        _warn(f"mathtext cannot set {tex!r}: {said}", node)
        return f"<code>{escape(tex)}</code>"


def _warn(message: str, node: nodes.Element) -> None:
    from sphinx.util import logging

    logging.getLogger(__name__).warning(message, location=node)


def _inline(writer: HTML5Translator, node: nodes.Element) -> None:
    from docutils.nodes import SkipNode

    writer.body.append(_made(writer, node, node.astext()))
    raise SkipNode


def _display(writer: HTML5Translator, node: nodes.Element) -> None:
    from docutils.nodes import SkipNode

    rows = "".join(f"<div>{_made(writer, node, line)}</div>" for line in lines_of(node.astext()))
    writer.body.append(f'<div class="tex-display" tabindex="0">{rows}</div>')
    raise SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the renderer `mathpaths`."""
    app.add_html_math_renderer(
        "mathpaths", inline_renderers=(_inline, None), block_renderers=(_display, None)
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}

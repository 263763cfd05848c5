"""The security report: one self-contained HTML page made from a finished run's result.

Guarantees:
  * the page fetches nothing and runs nothing: its own content security policy forbids both;
  * the same result, images and timings give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .context import build
from .page import render, write
from .schema import read

__all__ = ["render_report", "write_report"]


def render_report(result: Mapping[str, Any], directory: Path, timings: Mapping[str, float]) -> str:
    """The report as HTML text.

    Args:
        result: the parsed `result.json` (schema `fdaudit-result/1`).
        directory: the run directory; image paths in the result are read below it.
        timings: seconds by cell id or by stage; shown where a name matches a cell, else listed by name.

    Raises:
        UsageError: the result does not follow its schema, or an image path leaves `directory`.
    """
    return render("report.html.j2", build(read(result), directory, timings))


def write_report(
    result: Mapping[str, Any], directory: Path, path: Path, timings: Mapping[str, float]
) -> None:
    """Writes the report to `path`, whole or not at all.

    Raises:
        UsageError: as `render_report`; nothing is written then.
    """
    write(render_report(result, directory, timings), path)

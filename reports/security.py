"""The security report: one self-contained HTML page made from a finished run's result, and the same as JSON.

Guarantees:
  * the page fetches nothing, and its own content security policy lets it run nothing but the script it carries;
  * the same result, images and timings give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .context import build
from .document import document, to_json
from .page import render, write
from .public import public
from .schema import Result, read

__all__ = ["render_report", "report_json", "write_report"]


def render_report(
    result: Mapping[str, Any], directory: Path, timings: Mapping[str, float], *, public: bool = False
) -> str:
    """The report as HTML text.

    Args:
        result: the parsed `result.json` (schema `fdaudit-result/1`).
        directory: the run directory; image paths in the result are read below it.
        timings: seconds by cell id or by stage; shown where a name matches a cell, else listed by name.
        public: leave out what itself leaks: images, class counts and class shares.

    Raises:
        UsageError: the result does not follow its schema, or an image path leaves `directory`.
    """
    return render("report.html.j2", build(_read(result, public), directory, timings))


def report_json(result: Mapping[str, Any], timings: Mapping[str, float], *, public: bool = False) -> str:
    """The report as JSON text, schema `fdaudit-report/1`.

    Raises:
        UsageError: the result does not follow its schema.
    """
    return to_json(document(_read(result, public), timings))


def write_report(
    result: Mapping[str, Any],
    directory: Path,
    path: Path,
    timings: Mapping[str, float],
    *,
    public: bool = False,
) -> None:
    """Writes the report to `path` and, beside it with the ending `.json`, the same as JSON; each whole or not at all.

    Raises:
        UsageError: as `render_report`; nothing is written then.
    """
    page = render_report(result, directory, timings, public=public)
    write(report_json(result, timings, public=public), path.with_suffix(".json"))
    write(page, path)


def _read(result: Mapping[str, Any], as_public: bool) -> Result:
    checked = read(result)
    return public(checked) if as_public else checked

"""The security report: one self-contained HTML page made from a finished run's result, and the same as JSON.

Guarantees:
  * the page fetches nothing, and its content security policy allows only its own script;
  * the same result, images and timings give the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fdaudit.result import Result
from fdaudit.storage.digests import canonical

from ..judgement.judgement import findings_of, judged
from ..page import render, write
from ..public import public
from .context import build
from .document import document, to_json
from .dpia import render_dpia
from .sign_off import Provenance

__all__ = ["public_outcomes", "render_appendix", "render_report", "report_json", "write_dpia", "write_report"]

_UNKNOWN = Provenance()


def render_report(
    result: Result,
    directory: Path,
    timings: Mapping[str, float],
    *,
    public: bool = False,
    provenance: Provenance = _UNKNOWN,
) -> str:
    """Return the report as HTML text.

    Args:
        result: the result of the run.
        directory: the run directory; image paths in the result are read below it.
        timings: seconds by cell id or by stage; shown beside the cell of that name, else listed by name.
        public: leave out parts that leak: images, class counts, exact scores, and everything about single victims.
        provenance: the day of the result, and the signer of a page that is passed on.

    Raises:
        UsageError: an image path leaves `directory`.
    """
    page_result, timings = _shown(result, timings, public)
    return _page(build(page_result, directory, timings, provenance), public)


def render_appendix(
    result: Result,
    directory: Path,
    timings: Mapping[str, float],
    *,
    public: bool = False,
    provenance: Provenance = _UNKNOWN,
) -> str:
    """Return the appendix as a page of its own, for print; arguments and errors are those of `render_report`."""
    page_result, timings = _shown(result, timings, public)
    return _appendix(build(page_result, directory, timings, provenance), public)


def report_json(
    result: Result,
    timings: Mapping[str, float],
    *,
    public: bool = False,
    provenance: Provenance = _UNKNOWN,
) -> str:
    """Return the report as JSON text, schema `fdaudit-report/1`."""
    return to_json(document(*_shown(result, timings, public), provenance))


def public_outcomes(result: Result) -> str:
    """Return the SHA-256 of a public report's attacks, gates and claims, independent of a version's wording."""
    public_result = public(result)
    cells = []
    for finding in findings_of(public_result):
        figures = [[g.name, g.value] for g in finding.cell.figures]
        cells.append([finding.cell.id, finding.level, figures])
    gates, checks = list[list[object]](), list[list[object]]()
    for gate in public_result.gates:
        gates.append([gate.name, gate.threshold, gate.passed])
    for check in public_result.checks:
        checks.append([check.adversary, check.verdict])
    outcomes = {"cells": cells, "gates": gates, "checks": checks}
    return hashlib.sha256(canonical(outcomes)).hexdigest()


def write_report(
    result: Result,
    directory: Path,
    path: Path,
    timings: Mapping[str, float],
    *,
    public: bool = False,
    provenance: Provenance = _UNKNOWN,
) -> None:
    """Write the report to `path`, the same as JSON beside it, and the appendix; each completely or not at all.

    Raises:
        UsageError: as `render_report`; nothing is written then.
    """
    page_result, timings = _shown(result, timings, public)
    context = build(page_result, directory, timings, provenance)
    page = _page(context, public)
    write(_appendix(context, public), _appendix_of(path))
    write(to_json(document(page_result, timings, provenance)), path.with_suffix(".json"))
    write(page, path)


def write_dpia(result: Result, path: Path, provenance: Provenance = _UNKNOWN) -> None:
    """Write the assessment of `render_dpia` to `path`, completely or not at all."""
    write(render_dpia(result, provenance), path)


def _page(context: Mapping[str, Any], public: bool) -> str:
    file = _appendix_of(Path("public.html" if public else "index.html")).name
    return render("report.html.j2", {**context, "appendix_file": file})


def _appendix(context: Mapping[str, Any], public: bool) -> str:
    file = "public.html" if public else "index.html"
    return render("report.html.j2", {**context, "only_appendix": True, "main_file": file})


def _appendix_of(path: Path) -> Path:
    """Return the file of the appendix of a report's page."""
    return path.with_name("appendix.html" if path.stem == "index" else f"{path.stem}-appendix.html")


def _shown(
    result: Result, timings: Mapping[str, float], as_public: bool
) -> tuple[Result, Mapping[str, float]]:
    """Return the result to show with its judgement, and its times; a public variant has no times."""
    if as_public:
        return public(result), {}
    return judged(result), timings

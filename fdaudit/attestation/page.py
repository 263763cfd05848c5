"""The report in a bundle: made from the bundled result, and made again for comparison.

Guarantee:
  * the fdaudit and the libraries that wrote a page detect every difference between it and its result.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fdaudit.errors import FdauditError
from fdaudit.storage.files import load_json
from fdaudit.storage.timings import read_ended, read_timings

from .environment import environment

__all__ = ["REPORT", "REPORTS", "check_reports", "reports"]

REPORT = "report"
"""The folder of reports in a run directory."""
REPORTS = (f"{REPORT}/index.html", f"{REPORT}/index.json", f"{REPORT}/appendix.html")
"""The reports of a bundled run."""

_WRITERS = ("jinja2", "markupsafe", "matplotlib", "numpy", "pillow", "pydantic", "pyyaml")
"""Libraries on which a page's bytes depend."""


def reports(run: Path) -> dict[str, bytes]:
    """Return the reports of a run's result by path.

    Raises:
        FdauditError: the result or a picture is malformed.
    """
    from fdaudit.reports.judgement.judgement import read_judged
    from fdaudit.reports.run.security import render_appendix, render_report, report_json
    from fdaudit.reports.run.sign_off import Provenance

    result, timings = read_judged(load_json(run / "result.json")), read_timings(run)
    provenance = Provenance(ended=read_ended(run))
    page = render_report(result, run, timings, provenance=provenance)
    data = report_json(result, timings, provenance=provenance)
    appendix = render_appendix(result, run, timings, provenance=provenance)
    texts = (page.encode("utf-8"), data.encode("utf-8"), appendix.encode("utf-8"))
    return dict(zip(REPORTS, texts, strict=True))


def check_reports(bundle: Path, run: str, environment_file: str) -> tuple[list[str], list[str]]:
    """Compare a bundle's reports with the reports that its result gives now.

    Args:
        bundle: the directory, with its files already checked against the listing.
        run: name of the run's folder in it.
        environment_file: name of the file with the environment.

    Returns:
        Findings and notes, one sentence each.
    """
    there = [name for name in REPORTS if (bundle / run / name).is_file()]
    if not there:
        return [], []
    try:
        if _writer(load_json(bundle / environment_file)) != _writer(environment()):
            return [], ["The report was not made again: another fdaudit, or other libraries, wrote it."]
        due = reports(bundle / run)
    except (FdauditError, OSError, ValueError, TypeError, LookupError, ArithmeticError) as error:
        return [f"{run}/{REPORT} cannot be made again: {str(error)[:300]}"], []
    findings = list[str]()
    for name in there:
        if (bundle / run / name).read_bytes() != due[name]:
            findings.append(f"{run}/{name} is not the report of the result beside it")
    return findings, []


def _writer(stated: Any) -> tuple[Any, ...]:
    """Return everything that a page's bytes depend on: fdaudit, Python, and the libraries that draw and write."""
    if not isinstance(stated, Mapping):
        stated = {}
    packages: dict[str, Any] = {}
    if isinstance(stated.get("packages"), Mapping):
        packages = {str(name).lower(): version for name, version in stated["packages"].items()}
    return (stated.get("tool"), stated.get("python"), *map(packages.get, _WRITERS))

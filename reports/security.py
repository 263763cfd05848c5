"""The security report: one self-contained HTML page made from a finished run's result.

Guarantees:
  * everything that comes from a result is escaped, and invisible characters are written out;
  * the page fetches nothing and runs nothing: its own content security policy forbids both;
  * a name that a template misspells is an error, never a blank;
  * the same result, images and timings give the same bytes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from fdaudit.types import Figure

from . import text, verdict
from .context import build
from .schema import read

__all__ = ["render_report", "write_report"]

_TEMPLATES = Path(__file__).parent / "templates"


def render_report(result: Mapping[str, Any], directory: Path, timings: Mapping[str, float]) -> str:
    """The report as HTML text.

    Args:
        result: the parsed `result.json` (schema `fdaudit-result/1`).
        directory: the run directory; image paths in the result are read below it.
        timings: seconds by cell id or by stage; shown where a name matches a cell, else listed by name.

    Raises:
        UsageError: the result does not follow its schema, or an image path leaves `directory`.
    """
    return _environment().get_template("report.html.j2").render(build(read(result), directory, timings))


def write_report(
    result: Mapping[str, Any], directory: Path, path: Path, timings: Mapping[str, float]
) -> None:
    """Writes the report to `path`, whole or not at all: under a temporary name beside it, then renamed.

    Raises:
        UsageError: as `render_report`; nothing is written then.
    """
    page = render_report(result, directory, timings).encode("utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        amount=text.amount,
        clip=text.clip,
        duration=text.duration,
        exact=_exact,
        joined=text.joined,
        kilobytes=text.kilobytes,
        label=text.label,
        level=_level_text,
        measure=text.measure,
        sentence=text.sentence,
    )
    environment.globals.update(
        LEVELS=verdict.LEVELS,
        css=Markup((_TEMPLATES / "style.css").read_text("utf-8")),  # noqa: S704 - our own file
        party=text.party,
    )
    return environment


def _finalize(value: Any) -> Any:
    """What every printed expression passes through before it is escaped."""
    if isinstance(value, Markup | int | float):
        return value
    return text.visible(str(value))


def _exact(value: float) -> str:
    """A number so that reading it back gives the same number."""
    return repr(value)


def _level_text(figure: Figure) -> str:
    """How an interval was made: its level and method."""
    level = "" if figure.confidence is None else text.amount(figure.confidence, "fraction").replace(".0", "")
    return " ".join(part for part in (level, text.clip(figure.method, 40)) if part)

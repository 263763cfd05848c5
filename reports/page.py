"""Shared parts of every page: one strict template environment, and files written completely or not at all.

Guarantees:
  * everything that comes from a result is escaped, and invisible characters are written out;
  * the only script that a page can run is the one of this package, whose digest the page's own policy names;
  * a name that a template misspells is an error, never a blank.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from fdaudit.errors import IntegrityError

from . import text
from .judgement import verdict

__all__ = ["render", "write"]

_TEMPLATES = Path(__file__).parent / "templates"
_CODE = re.compile("`([^`]+)`")
_KEPT = re.compile("(<pre.*?</pre>|<style>.*?</style>|<script>.*?</script>)", re.DOTALL)
"""Elements in which the indentation of a line counts."""
_INDENTED = re.compile(r"\n[ \n]+")


def render(template: str, context: Mapping[str, Any]) -> str:
    """Return a page as HTML text."""
    page = _environment().get_template(template).render(context)
    parts = []
    for part in _KEPT.split(page):
        if not _KEPT.fullmatch(part):
            part = _INDENTED.sub("\n", part)
        parts.append(part)
    return "".join(parts)


def write(page: str, path: Path) -> None:
    """Write a text to `path`, completely or not at all: under a temporary name beside it, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(page.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except IsADirectoryError:
        Path(temporary).unlink(missing_ok=True)
        raise IntegrityError(
            [f"{path.name} is a folder, where a page is to be written. Take it away."]
        ) from None
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
        bare=text.bare,
        breakable=_breakable,
        clip=text.clip,
        duration=text.duration,
        exact=repr,  # reads back as the same number
        joined=text.joined,
        kilobytes=text.kilobytes,
        label=text.label,
        level=text.level_text,
        measure=text.measure,
        ranges=text.ranges,
        sentence=text.sentence,
        spans=text.spans,
        with_code=_with_code,
    )
    script = (_TEMPLATES / "report.js").read_text("utf-8")
    environment.globals.update(
        LEVELS=verdict.LEVELS,
        script=Markup(script),  # noqa: S704 - our own file
        script_source=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        css=Markup((_TEMPLATES / "style.css").read_text("utf-8")),  # noqa: S704 - our own file
        party=text.party,
    )
    return environment


def _finalize(value: Any) -> Any:
    """Convert a printed expression before it is escaped."""
    if isinstance(value, Markup | int | float):
        return value
    return text.visible(str(value))


def _breakable(value: str) -> Markup:
    """Return an escaped name that may be broken after its underscores only."""
    return escape(text.visible(value)).replace("_", Markup("_<wbr>"))


def _with_code(value: str) -> Markup:
    """Return an escaped text, with code between backticks marked up."""
    parts = _CODE.split(text.visible(value))
    for i in range(1, len(parts), 2):
        parts[i] = Markup("<code>{}</code>").format(parts[i])
    return Markup().join(parts)

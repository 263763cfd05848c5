"""A spec to begin with: every field with its default and what it means."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic_core import to_jsonable_python

from fdaudit.config import Config
from fdaudit.spec.schema import Spec

__all__ = ["draft"]

_SHOWN = ("name", "clients", "dataset", "partition", "model", "profile", "adversaries", "attacks")
"""Fields that a first spec decides, besides the protocol; the draft leaves all others as comments."""
_WIDTH = 100


def draft(protocol: str, settings: type[Config]) -> str:
    """Return a YAML spec with comments, which runs as it is.

    Args:
        protocol: the protocol's name.
        settings: its configuration.
    """
    lines = [
        "# A spec of fdaudit. `fdaudit schema spec` prints its JSON schema, from which editors complete."
    ]
    lines += _field(Spec, "fdaudit", Spec().fdaudit)
    for name in _SHOWN:
        lines += ["", *_field(Spec, name, getattr(Spec(), name))]
    lines += ["", *_comment(Spec.field_docs().get("protocol", "")), "protocol:"]
    lines += [f"  {line}" for line in _yaml("name", protocol)]
    lines += ["  params:" if settings.model_fields else "  params: {}"]
    for name, field in settings.model_fields.items():
        value = field.get_default(call_default_factory=True)
        before = "" if value is not None else "# "
        for line in _field(settings, name, value, before):
            lines.append(f"    {line}")
    lines += ["", "# Everything else, with its default. Remove the `# ` of what you change."]
    for name in Spec.model_fields:
        if name not in (*_SHOWN, "fdaudit", "protocol"):
            lines += ["", *_field(Spec, name, getattr(Spec(), name), "# ")]
    return "\n".join([*lines, ""])


def _field(config: type[Config], name: str, value: Any, before: str = "") -> Iterator[str]:
    """Yield a field's meaning as a comment, then the field itself, each line of it after a text."""
    yield from _comment(config.field_docs().get(name, ""))
    yield from (before + line for line in _yaml(name, value))


def _comment(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _yaml(name: str, value: Any) -> list[str]:
    plain = {name: to_jsonable_python(value, exclude_none=value is not None)}
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return text.splitlines()

"""What a report is signed for: who asked for the audit, of what, by whom, and when it is to be repeated."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fdaudit.config import Config

__all__ = ["AuditSpec"]

_Line = Annotated[str, Field(min_length=1, max_length=160)]


class AuditSpec(Config):
    """The audit itself, for the front page of its report. Nothing that is measured depends on it."""

    requested_by: _Line | None = None
    """Who asked for the audit."""
    system: _Line | None = None
    """The audited system, with its version."""
    scope: Annotated[str, Field(min_length=1, max_length=400)] | None = None
    """What was to be audited, and what was not."""
    authors: _Line | None = None
    """Who answers for the report."""
    owner: _Line | None = None
    """Who owns the risks and the remedies."""
    retest: _Line | None = None
    """When the audit is to be repeated."""

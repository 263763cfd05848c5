"""Reports: a finished run's results as pages for readers who must act on them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .comparison.compare_page import render_comparison, render_latex, write_comparison
    from .run.security import render_report, report_json, write_report

__all__ = [
    "render_comparison",
    "render_latex",
    "render_report",
    "report_json",
    "write_comparison",
    "write_report",
]

_PUBLIC: Mapping[str, str] = MappingProxyType(
    {
        "render_comparison": "comparison.compare_page",
        "render_latex": "comparison.compare_page",
        "render_report": "run.security",
        "report_json": "run.security",
        "write_comparison": "comparison.compare_page",
        "write_report": "run.security",
    }
)


def __getattr__(name: str) -> Any:
    """Resolve public names late, so that importing the package loads neither templates nor matplotlib."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)

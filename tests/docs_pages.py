"""The documentation as tests read it: pages, fenced blocks, tables, headings."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["PAGES", "ROOT", "blocks", "page", "slugs", "table"]

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")))

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    """A page's text, by its path from the root."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    """The fenced blocks of a language on a page, in order."""
    return [body for found, body in _FENCE.findall(page(name)) if found == language]


def table(name: str, heading: str) -> dict[str, list[str]]:
    """The first table below a heading: the other cells of each row by its first, without backticks."""
    below = page(name).split(f"\n{heading}\n", 1)[1]
    rows: dict[str, list[str]] = {}
    for line in below.split("\n"):
        if line.startswith("|"):
            first, *rest = [c.strip() for c in line.replace("\\|", "\0").strip("|").split("|")]
            rows[first.strip("`")] = [c.replace("\0", "|") for c in rest]
        elif rows:
            break
    return dict(list(rows.items())[2:])  # without the head and the rule below it


def slugs(name: str) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page(name)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}

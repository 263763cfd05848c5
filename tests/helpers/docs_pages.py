"""The documentation as tests read it: pages, also those made from the code; fenced blocks, tables, headings."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

__all__ = [
    "EXTRAS",
    "GENERATED",
    "GENERATOR",
    "PAGES",
    "ROOT",
    "blocks",
    "formulas",
    "module",
    "page",
    "slugs",
    "steps",
    "table",
]

ROOT = Path(__file__).parents[2]
EXTRAS = ROOT / "examples" / "extras"
"""The package of extensions that `docs/extending.md` speaks of."""
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def module(name: str) -> ModuleType:
    """A Python file of `docs`, which is no package, as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


GENERATOR = module("generate")
GENERATED = frozenset(f"docs/{name}" for name in GENERATOR.PAGES)
"""Files that are made from the code, by their paths from the root. They need not be on disk."""
_NO_PAGES = ("_build", "notes", "attacks", "defences", "protocols")
"""Folders of `docs` without hand-written pages of the site: notes are taken into generated pages."""
PAGES = (
    "README.md",
    *sorted(
        {
            p.relative_to(ROOT).as_posix()
            for p in (ROOT / "docs").rglob("*.md")
            if p.relative_to(ROOT / "docs").parts[0] not in _NO_PAGES
        }
        | {name for name in GENERATED if name.endswith(".md")}
    ),
)


def page(name: str) -> str:
    """A page's text, by its path from the root; a generated one is made, whatever is on disk."""
    return _made(name) if name in GENERATED else (ROOT / name).read_text(encoding="utf-8")


@cache
def _made(name: str) -> str:
    text: str = GENERATOR.PAGES[name.removeprefix("docs/")]()
    return text


def blocks(name: str, language: str) -> list[str]:
    """The fenced blocks of a language on a page, in order."""
    return [body for found, body in _FENCE.findall(page(name)) if found == language]


def steps(name: str) -> list[tuple[str, str]]:
    """Every fenced block of a page in order: its language and its text."""
    return _FENCE.findall(page(name))


def formulas(name: str) -> list[str]:
    """The formulas of a page, displayed ones and those between dollars."""
    text = page(name)
    inline = re.findall(r"\$([^$\n]+(?:\n[^$\n]+)?)\$", re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text)))
    return blocks(name, "math") + inline


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

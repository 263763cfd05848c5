"""The site's table of contents, read off the index pages: a page belongs to the site once an index lists it.

The Markdown stays what a reader of the repository sees. When Sphinx reads a page called `index`, a hidden `toctree` is
added for each section with a table of links. Links that leave the documentation, as to the README, become plain text.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["inside", "setup", "trees"]

_SECTION = re.compile(r"^## (.*)$", re.MULTILINE)
_ROW = re.compile(r"^\|[^|]*?\]\(([\w./-]+)\.(?:md|rst)\)", re.MULTILINE)
_OUTSIDE = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)\s]*)\)")


def trees(text: str) -> list[tuple[str, list[str]]]:
    """The sections of an index page with the documents that the rows of their tables begin with."""
    parts = _SECTION.split(text)
    sections = [("", parts[0]), *zip(parts[1::2], parts[2::2], strict=True)]
    found = [(title, _ROW.findall(body)) for title, body in sections]
    return [(title, pages) for title, pages in found if pages]


def inside(text: str, docname: str) -> str:
    """The page without links to files outside the documentation; their texts stay."""
    depth = len(PurePosixPath(docname).parts) - 1

    def kept(match: re.Match[str]) -> str:
        return match[1] if match[2].count("../") > depth else match[0]

    return _OUTSIDE.sub(kept, text)


def _on_read(app: Sphinx, docname: str, source: list[str]) -> None:
    text = inside(source[0], docname)
    if PurePosixPath(docname).name == "index" and not docname.startswith("api/"):
        for title, pages in trees(text):
            caption = f":caption: {title}\n" if title and docname == "index" else ""
            text += f"\n```{{toctree}}\n:hidden:\n{caption}\n" + "\n".join(pages) + "\n```\n"
    source[0] = text


def setup(app: Sphinx) -> dict[str, Any]:
    """Listens to every page that is read."""
    app.connect("source-read", _on_read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Settings of the documentation site: `make docs` builds it into `docs/_build`, with warnings as errors.

The pages that are made from the code are written into this folder first.
Nothing is fetched during building or reading: no fonts, no external scripts, mathematics as outlines.
"""

from __future__ import annotations

import sys
from importlib.metadata import version as _version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

project = "fdaudit"
author = "the fdaudit authors"
project_copyright = "the fdaudit authors; Apache License 2.0"
version = release = _version("fdaudit")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "contents", "mathpaths"]
exclude_patterns = ["_build", "notes"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
suppress_warnings: list[str] = []
nitpicky = True
# Annotations name classes of other libraries and of modules that are no part of the API; no docstring refers to one.
nitpick_ignore_regex = [(r"py:.*", r".*")]

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 4
html_math_renderer = "mathpaths"

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "fdaudit"
html_static_path = ["_static"]
html_css_files = ["fdaudit.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": False}


def _whole(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """An attribute's docstring is prose: after an empty line Napoleon takes nothing in it for a type."""
    if what in ("attribute", "data", "property"):
        lines.insert(0, "")


def setup(app: Any) -> None:
    """Write the generated pages, and change docstrings before Napoleon reads them."""
    from generate import write

    write(Path(__file__).parent)
    app.connect("autodoc-process-docstring", _whole, priority=400)

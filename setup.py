"""Set the description that a package index shows. Everything else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

# An index page has no repository around it, so relative links and pictures would break. The links' text stays.
RELATIVE = re.compile(r"\[([^\]]+)\]\((?!https?://)[^)\s]+\)")

PICTURE = re.compile(r"!\[[^\]]*\]\([^)\s]+\)\n\n")

readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
setup(
    long_description=RELATIVE.sub(r"\1", PICTURE.sub("", readme)),
    long_description_content_type="text/markdown",
)

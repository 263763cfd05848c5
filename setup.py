"""Set what pyproject.toml cannot: the description that a package index shows, and a check of a source distribution."""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
# An index page has no repository around it, so relative links and pictures would break. The links' text stays.
RELATIVE = re.compile(r"\[([^\]]+)\]\((?!https?://)[^)\s]+\)")
PICTURE = re.compile(r"!\[[^\]]*\]\([^)\s]+\)\n\n")


class SourceDistribution(sdist):
    """Refuse to build without the pages of the documentation that are made from the code, which Git does not hold."""

    def run(self) -> None:
        """Build the source distribution."""
        notes = ROOT / "docs" / "notes"
        pages = [ROOT / "docs" / path.relative_to(notes) for path in notes.glob("*/*.md")]
        if missing := [str(page) for page in pages if not page.is_file()]:
            raise SystemExit(f"error: {missing[0]} is missing: run `make docs` first")
        super().run()


readme = (ROOT / "README.md").read_text(encoding="utf-8")
setup(
    cmdclass={"sdist": SourceDistribution},
    long_description=RELATIVE.sub(r"\1", PICTURE.sub("", readme)),
    long_description_content_type="text/markdown",
)

"""The documentation site: contents and formulas by themselves, and the whole of it as a reader sees it in a browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ..helpers.browser import Browser
from ..helpers.docs_pages import PAGES, ROOT, formulas, module

CONTENTS, MATHPATHS = module("contents"), module("mathpaths")


def test_contents_are_read_off_tables_and_outside_links_become_text() -> None:
    text = "# A\n\n[x](x.md)\n\n## One\n\n| P | Q |\n| --- | --- |\n| [a](a.md) | see [b](b.md) |\n| [c](d/c.rst) | |\n"
    assert CONTENTS.trees(text + "\n## Two\n\nno table\n") == [("One", ["a", "d/c"])]
    text = "[README](../README.md), [spec](../spec.md), [here](x.md)"
    assert CONTENTS.inside(text, "index") == "README, spec, [here](x.md)"
    assert CONTENTS.inside(text, "protocols/index") == text
    assert CONTENTS.inside("[README](../../README.md)", "protocols/index") == "README"


@pytest.mark.thorough
def test_every_formula_of_the_documentation_can_be_set() -> None:
    found = [tex for name in PAGES for tex in formulas(name)]
    assert len(found) > 100
    for tex in found:
        for line in MATHPATHS.lines_of(tex):
            assert MATHPATHS.svg(line).count("<path ") == 1, tex


def test_a_formula_is_an_outline_that_says_what_it_is() -> None:
    made = MATHPATHS.svg(r"a < \frac{x}{2}")
    assert 'aria-label="a &lt; \\frac{x}{2}"' in made
    assert 'fill="currentColor"' in made
    assert "vertical-align:-" in made  # a fraction reaches below the baseline
    with pytest.raises(ValueError, match="unknown"):
        MATHPATHS.svg(r"\unknown{x}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", str(out / "doctrees"), str(ROOT / "docs"), str(out / "html")],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return out / "html"


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_has_every_page(site: Path) -> None:
    for name in set(PAGES) - {"README.md"}:
        assert (site / name.removeprefix("docs/")).with_suffix(".html").is_file(), name
    api = (site / "api" / "fdaudit.html").read_text(encoding="utf-8")
    for name in (
        "fdaudit.api.Run.ledger",
        "fdaudit.api.compare",
        "fdaudit.adversary.view.View",
        "fdaudit.errors.SpecError",
    ):
        assert f'id="{name}"' in api


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize(
    "name",
    ["index", "spec", "protocols/index", "protocols/fediod", "attacks/gmi", "defences/dp-sgd", "api/metrics"],
)
def test_a_page_fits_and_fetches_nothing(browser: Browser, site: Path, name: str, width: int) -> None:
    page = browser.open(site / f"{name}.html", width)
    assert page.errors == ()
    assert all(url.startswith("file://") for url in page.requests)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    drawn = "return [...document.querySelectorAll('svg.tex')].map(e => e.getBoundingClientRect().height)"
    heights = browser.run(drawn)
    assert all(5 < height < 120 for height in heights)
    assert len(heights) > 3 or "/" not in name or name.endswith(("index", "metrics"))


@pytest.mark.slow
@pytest.mark.browser
def test_the_search_answers_without_a_network(browser: Browser, site: Path) -> None:
    page = browser.open(site / "search.html")
    assert page.errors == ()
    assert all(url.startswith("file://") for url in page.requests)

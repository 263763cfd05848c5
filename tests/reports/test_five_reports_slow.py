"""Acceptance: the reports of five protocols, as `make audit` writes them, in a browser: whole, closed, usable by all.

FDAUDIT_AUDIT may name the directory of a finished quickstart, whose reports are then written anew; else it is run here.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fdaudit
from fdaudit.quickstart import suite

from ..helpers.browser import Browser, axe
from ..helpers.evidence_cases import keypair
from ..helpers.report_cases import SECTIONS

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("FDAUDIT_AUDIT")
    if not given:
        out = tmp_path_factory.mktemp("audit")
        suite.quickstart(out)
        return out
    for name in suite.PROTOCOLS:
        fdaudit.report(fdaudit.load(Path(given) / name))
    return Path(given)


@pytest.mark.parametrize("protocol", suite.PROTOCOLS)
def test_a_report_is_whole_and_usable(browser: Browser, audit: Path, protocol: str, tmp_path: Path) -> None:
    path = audit / protocol / "report" / "index.html"
    size = path.stat().st_size
    print(f"\n{protocol}: {size / 1e6:.2f} MB")
    assert size < 3_000_000
    for width in (360, 768, 1280):
        page = browser.open(path, width)
        assert page.errors == ()
        assert page.requests == (page.url,)
        assert browser.run("return document.documentElement.scrollWidth") <= width
        browser.unfold()
        assert browser.run("return document.documentElement.scrollWidth") <= width
    for section in SECTIONS:
        text = browser.run("return document.getElementById(arguments[0]).innerText", section)
        assert len(text) > 200, section
    rows = "return [...document.querySelectorAll('#attack-matrix tbody tr')].map(r => r.cells[1].textContent.trim())"
    before = browser.run(rows)
    browser.run("document.querySelector('#attack-matrix thead th:nth-child(2) button').click()")
    assert browser.run(rows) == sorted(before, key=str.lower)
    browser.run("document.querySelector('.enlarge').click()")
    assert browser.run("return document.querySelector('dialog.viewer').open")
    browser.open(path)
    pages = browser.pdf(tmp_path / "page.pdf")
    print(f"{protocol}: {pages} pages")
    assert pages <= 12
    assert browser.front_pages(tmp_path / "front.pdf") == 1
    browser.open(path.with_name("appendix.html"))
    pages = browser.pdf(tmp_path / "appendix.pdf")
    print(f"{protocol}: {pages} pages of appendix")
    assert pages <= 40


@pytest.mark.parametrize("protocol", suite.PROTOCOLS)
def test_evidence_to_pass_on_is_small(audit: Path, protocol: str, tmp_path: Path) -> None:
    private, _ = keypair(tmp_path)
    bundle = fdaudit.public_evidence(fdaudit.load(audit / protocol), tmp_path / "out", sign=private)
    size = sum(entry.stat().st_size for entry in bundle.iterdir())
    print(f"\n{protocol}: {size / 1e6:.2f} MB of evidence to pass on")
    assert size <= 2_000_000


@pytest.mark.parametrize("protocol", suite.PROTOCOLS)
def test_axe_finds_nothing_serious_in_a_report(browser: Browser, audit: Path, protocol: str) -> None:
    """Section by section; of the tests, which one template makes, the matrix and the first of each goal."""
    browser.open(audit / protocol / "report" / "index.html")
    browser.unfold()
    parts = [f"#{section}" for section in SECTIONS if section not in ("cells", "findings")] + [
        "#attack-matrix",
        "header",
    ]
    cells = browser.run(
        "const first = {}; for (const a of document.querySelectorAll('#cells article.cell')) {"
        "const goal = a.querySelector('dl dd').textContent.trim(); first[goal] ??= '#' + a.id; }"
        "return Object.values(first)"
    )
    assert cells
    for part in [*parts, *cells]:
        found = axe(browser, part)
        assert [v for v in found if v["impact"] in ("serious", "critical")] == [], part


def test_the_comparison_links_to_five_reports(browser: Browser, audit: Path) -> None:
    page = browser.open(audit / "index.html")
    assert page.errors == ()
    assert page.requests == (page.url,)
    links = browser.run("return [...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    assert {f"{name}/report/index.html" for name in suite.PROTOCOLS} <= set(links)
    assert [v for v in axe(browser, "main") if v["impact"] in ("serious", "critical")] == []

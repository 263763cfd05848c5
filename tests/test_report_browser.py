"""The security report as a reader sees it: in Chromium, from a file, on a phone and on a laptop."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fdaudit.reports import write_comparison, write_report

from .browser import Browser, chromium
from .report_cases import FIXTURES, SECTIONS, TIMINGS, load
from .test_comparison import distilled, entries
from .test_report import HOSTILE, poison

pytestmark = pytest.mark.browser

CONTRAST = """
const parse = c => c.match(/[\\d.]+/g).map(Number);
const over = (top, below) => { const a = top.length > 3 ? top[3] : 1;
  return [0, 1, 2].map(i => a * top[i] + (1 - a) * below[i]); };
const ground = e => { let stack = [];
  for (let n = e; n; n = n.parentElement) stack.push(parse(getComputedStyle(n).backgroundColor));
  return stack.reverse().reduce((below, top) => over(top, below), [255, 255, 255]); };
const light = rgb => rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const e = walker.currentNode.parentElement, style = getComputedStyle(e);
  if (!walker.currentNode.data.trim() || e.closest('svg') || style.opacity === '0') continue;
  const below = ground(e), a = light(over(parse(style.color), below)), b = light(below);
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  found.push([ratio, walker.currentNode.data.trim().slice(0, 40)]);
}
return found.sort((x, y) => x[0] - y[0]);
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "security.html"
    write_report(load(), FIXTURES, path, TIMINGS)
    return path


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_opens_from_a_file_without_errors_requests_or_overflow(
    browser: Browser, report: Path, width: int
) -> None:
    page = browser.open(report, width)
    assert page.errors == ()
    assert page.requests == (page.url,)
    found = browser.run("return [...document.querySelectorAll('main > section')].map(s => s.id)")
    assert tuple(found) == SECTIONS
    heights = browser.run("return [...document.querySelectorAll('section')].map(s => s.offsetHeight)")
    assert min(heights) > 100
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run("return document.scripts.length") == 0


def test_all_pictures_are_drawn(browser: Browser, report: Path) -> None:
    browser.open(report)
    sizes = browser.run("return [...document.images].map(i => [i.complete, i.naturalWidth, i.clientWidth])")
    assert len(sizes) == 48
    assert all(complete and natural == 8 and shown > 40 for complete, natural, shown in sizes)
    charts = browser.run(
        "return [...document.querySelectorAll('svg')].map(s => [s.clientWidth, s.getBBox().height])"
    )
    assert len(charts) == 10
    assert all(width > 200 and height > 50 for width, height in charts)


def test_text_stands_out_from_its_ground(browser: Browser, report: Path) -> None:
    browser.open(report)
    ratios = browser.run(CONTRAST)
    assert len(ratios) > 300
    assert ratios[0][0] >= 4.5, ratios[:5]


def test_the_keyboard_reaches_the_summary_first(browser: Browser, report: Path) -> None:
    browser.open(report)
    first = browser.run("return document.querySelector('a, button, input, [tabindex]').getAttribute('href')")
    assert first == "#summary"


@pytest.mark.parametrize("payload", HOSTILE)
def test_hostile_text_runs_nothing(browser: Browser, tmp_path: Path, payload: str) -> None:
    raw = poison(load(), lambda text: payload if text else text)
    path = tmp_path / "security.html"
    write_report(raw, FIXTURES, path, {payload: 1.0})
    page = browser.open(path, 390)
    assert page.errors == ()
    assert page.requests == (page.url,)
    assert browser.run("return document.title").startswith("Security report: ")
    assert browser.run("return document.scripts.length") == 0
    assert browser.run("return document.documentElement.scrollWidth") <= 390


def test_names_of_ten_thousand_characters_do_not_break_the_layout(browser: Browser, tmp_path: Path) -> None:
    raw = poison(load(), lambda text: text + "w" * 10_000 if text else text)
    path = tmp_path / "security.html"
    write_report(raw, FIXTURES, path, TIMINGS)
    for width in (390, 1280):
        assert browser.open(path, width).errors == ()
        assert browser.run("return document.documentElement.scrollWidth") <= width


def test_prints_on_a4_with_whole_figures(browser: Browser, report: Path) -> None:
    browser.open(report)
    made = browser.driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    content = base64.b64decode(made["data"])
    assert content.startswith(b"%PDF-")
    boxes = set(re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", content))
    assert len(boxes) == 1
    width, height = (float(v) for v in boxes.pop())
    assert (width, height) == pytest.approx((595, 842), abs=1.5)


# -- the comparison -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_comparison(entries(load(), distilled()), tmp_path_factory.mktemp("comparison"))


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_the_comparison_fits_every_width(browser: Browser, comparison: Path, width: int) -> None:
    page = browser.open(comparison, width)
    assert page.errors == ()
    assert page.requests == (page.url,)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    heights = browser.run("return [...document.querySelectorAll('section')].map(s => s.offsetHeight)")
    assert len(heights) == 5
    assert min(heights) > 100


def test_the_comparison_s_text_stands_out_from_its_ground(browser: Browser, comparison: Path) -> None:
    browser.open(comparison)
    ratios = browser.run(CONTRAST)
    assert len(ratios) > 100
    assert ratios[0][0] >= 4.5, ratios[:5]


def test_the_comparison_survives_names_of_ten_thousand_characters(browser: Browser, tmp_path: Path) -> None:
    raws = [poison(raw, lambda text: text + "w" * 10_000 if text else text) for raw in (load(), distilled())]
    path = write_comparison(entries(*raws), tmp_path)
    for width in (390, 1280):
        assert browser.open(path, width).errors == ()
        assert browser.run("return document.documentElement.scrollWidth") <= width


def test_the_comparison_prints(browser: Browser, comparison: Path) -> None:
    browser.open(comparison)
    made = browser.driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    assert base64.b64decode(made["data"]).startswith(b"%PDF-")

"""Reports of two and of forty classes, and of images that are no squares: whole on paper and on a phone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fdaudit.reports import write_report
from fdaudit.reports.drawings.class_bands import BAND, class_bands
from fdaudit.reports.run.security import render_report
from PIL import Image

from fdaudit.result import read

from ..helpers.browser import Browser, axe
from ..helpers.report_cases import FIXTURES, TIMINGS, Document, load

pytestmark = pytest.mark.thorough

CLIENTS = 5
SERIOUS = ("serious", "critical")


def of_classes(classes: int) -> dict[str, Any]:
    """Return the fixture with this number of classes, and an attack on their shares."""
    raw = load()
    raw["class_table"] = [[(7 * k + 3 * c) % 99 for c in range(classes)] for k in range(CLIENTS)]
    like = next(c for c in raw["cells"] if c["id"] == "world/gap")
    cell = json.loads(json.dumps(like)) | {
        "id": "server/label-updates",
        "adversary": "server",
        "attack": "label-updates",
        "goal": "label-distribution",
    }
    even = [1 / classes] * classes
    figure = {"name": "label_tv_mean", "value": 0.05, "low": 0.03, "high": 0.07, "unit": "", "n": 2}
    prior = {"name": "label_tv_prior_mean", "value": 0.4, "low": 0.3, "high": 0.5, "unit": "", "n": 2}
    cell["figures"] = [figure, prior]
    for target in cell["targets"]:
        one = [
            {"name": "label_tv", "value": 0.05, "unit": ""},
            {"name": "label_tv_prior", "value": 0.4, "unit": ""},
        ]
        target |= {"figures": one, "roc": None, "shares": {"truth": even, "guess": even, "prior": even}}
    return raw | {"cells": [*raw["cells"], cell]}


def with_portraits(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a result whose pictures are 92 wide and 112 high, below `folder`."""
    pixels = np.random.default_rng(0).integers(0, 255, (112, 92), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "portrait.png")
    for cell in raw["cells"]:
        for target in cell["targets"]:
            for image in target.get("images") or ():
                image |= {key: "portrait.png" for key in ("truth", "guess", "prior") if image.get(key)}
    return raw


@pytest.mark.parametrize(
    ("classes", "most", "tables"), [(2, 9, 1), (20, 9, 1), (21, 9, 2), (40, 9, 2), (40, 1000, 4)]
)
def test_class_counts_are_cut_into_tables_without_loss(classes: int, most: int, tables: int) -> None:
    counts = [[(k * c) % 10 for c in range(classes - 1)] + [most] for k in range(3)]
    bands = class_bands(counts)
    assert len(bands) == tables
    assert [[cell.records for b in bands for cell in b.rows[k]] for k in range(3)] == counts
    assert [b.first for b in bands] == [sum(len(a.rows[0]) for a in bands[:i]) for i in range(tables)]
    assert all(len(b.rows[0]) <= BAND for b in bands)
    assert all(0 <= cell.shade <= 6 for b in bands for row in b.rows for cell in row)


def test_no_records_give_no_table() -> None:
    assert class_bands(()) == ()
    assert [c.shade for c in class_bands([[0, 0]])[0].rows[0]] == [0, 0]


@pytest.mark.parametrize("name", ["adipose tissue", "<b>x</b>", "x" * 40])
def test_a_dataset_s_name_is_text(name: str) -> None:
    raw = load()
    raw["run"]["dataset"] = f"folder:{name}"
    page = render_report(read(raw), FIXTURES, {})
    assert f"folder:{name}" in Document(page).text
    assert "<b>x</b>" not in page


def test_no_caption_runs_into_the_next_sentence() -> None:
    raw = load()
    for cell in raw["cells"]:
        for target in cell["targets"]:
            for image in target.get("images") or ():
                image |= {"rank": 1, "gallery": 9}
    text = Document(render_report(read(raw), FIXTURES, {})).text
    assert "is picked out. " in text
    assert "is picked out.T" not in text
    assert "is picked out.A" not in text


# -- in a browser -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[2, 40])
def report(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp("shape")
    path = folder / "index.html"
    write_report(read(with_portraits(of_classes(request.param), folder)), folder, path, TIMINGS)
    return path


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_any_number_of_classes_fits_every_width(browser: Browser, report: Path, width: int) -> None:
    assert browser.open(report, width).errors == ()
    browser.unfold()
    assert browser.run("return document.documentElement.scrollWidth") <= width
    cut = (
        "return [...document.querySelectorAll('.caption, .classes td, .classes th')].filter(e => {"
        "const box = e.closest('.scroll') ?? document.documentElement;"
        "return e.getBoundingClientRect().left < box.getBoundingClientRect().left - 1; }).length"
    )
    assert browser.run(cut) == 0
    assert browser.run("return document.querySelector('.caption').clientWidth") > 300
    assert [v for v in axe(browser, "#utility") if v["impact"] in SERIOUS] == []


@pytest.mark.browser
def test_any_number_of_classes_fits_the_paper(browser: Browser, report: Path, tmp_path: Path) -> None:
    browser.open(report, 695)
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        wide = browser.run("return document.documentElement.scrollWidth")
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert wide <= 695  # a sheet of A4 without its margins; a wider page is shrunk
    assert browser.pdf(tmp_path / "main.pdf") <= 12
    assert browser.front_pages(tmp_path / "front.pdf") == 1


@pytest.mark.browser
def test_pictures_keep_their_shape(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.unfold()
    seen = browser.run(
        "return [...document.querySelectorAll('.trio img, .thumbs img')].map(i =>"
        "[i.naturalWidth, i.naturalHeight, getComputedStyle(i).objectFit])"
    )
    assert seen
    assert all(shape == [92, 112, "contain"] for shape in seen)


@pytest.mark.browser
def test_a_remedy_is_one_text_on_a_phone(browser: Browser, report: Path) -> None:
    browser.open(report, 390)
    parts = "return [...document.querySelectorAll('.findings td[data-label=Remedy]')].map(e => e.childNodes.length)"
    assert set(browser.run(parts)) == {1}


def test_class_names_stand_beside_their_numbers_and_in_no_public_page() -> None:
    raw = of_classes(3) | {"class_names": ["adipose tissue", "<b>x</b>", "y" * 80]}
    for cell in raw["cells"]:
        for target in cell["targets"]:
            for image in target.get("images") or ():
                image |= {"true_label": 1, "guessed_label": 0}
    page = render_report(read(raw), FIXTURES, {})
    assert "<li>0 <b>adipose tissue</b></li>" in page
    assert "<li>1 <b>&lt;b&gt;x&lt;/b&gt;</b></li>" in page
    assert f"<b>{'y' * 60}… (+20 characters)</b>" in page
    assert "1 (&lt;b&gt;x&lt;/b&gt;), guessed" in page
    assert "guessed 0 (adipose" in page
    public = render_report(read(raw), FIXTURES, {}, public=True)
    assert "adipose" not in public

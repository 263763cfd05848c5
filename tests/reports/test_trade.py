"""The charts of a comparison: no label covers a mark or another label, and the bytes of a run stand at its place."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest
from fdaudit.reports.comparison.trade import Panel, Reach, TradePoint, panels
from fdaudit.reports.drawings.labels import Box, place_labels, text_width
from PIL import ImageFont

SVG = "{http://www.w3.org/2000/svg}"
FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
"""A wide sans-serif font: the labels of a narrower one take less room."""


@cache
def wide(text: str, size: float) -> float:
    return ImageFont.truetype(str(FONT), 100).getlength(text) * size / 100


def point(name: str, size: float, utility: float | None, leakage: float | None) -> TradePoint:
    return TradePoint(
        name=name,
        bytes=size,
        utility=None if utility is None else Reach(value=utility, low=utility - 0.04, high=utility + 0.04),
        leakage=None if leakage is None else Reach(value=leakage, low=leakage - 0.09, high=leakage + 0.08),
    )


QUICKSTART = [
    point("fedavg", 59_818_360, 0.872, 0.627),
    point("fedkd", 1_402_000, 0.864, 0.571),
    point("selective-fd", 512_400, 0.812, 0.566),
    point("fediod", 148_300_000, 0.796, 0.588),
    point("dafkd", 71_200_000, 0.884, 0.631),
]
CASES = {
    "the quickstart": QUICKSTART,
    "two equal points": [point("one", 2e6, 0.8, 0.6), point("other", 2e6, 0.8, 0.6)],
    "ten equal points": [point(f"a rather long name {n}", 2e6, 0.8, 0.6) for n in range(10)],
    "ten points in a heap": [
        point(f"selective-fd-{n}", 1e6 * (1 + n / 50), 0.8 + n / 300, 0.6 + (n * 7 % 10) / 300)
        for n in range(10)
    ],
    "twenty points": [
        point(f"run {n}", 10 ** (3 + n % 7), 0.1 + 0.04 * (n * 3 % 20), 0.5 + 0.02 * (n * 7 % 20))
        for n in range(20)
    ],
    "points at the borders": [
        point("none", 0, 0.0, 0.0),
        point("all", 9_999_999_999, 1.0, 1.0),
        point("left", 0, 1.0, 1.0),
        point("right", 9_999_999_999, 0.0, 0.5),
    ],
    "two points that nearly coincide at the right": [
        point("fedkd", 14_200, 0.875, 0.506),
        point("one", 906_200, 0.558, 0.752),
        point("fedavg", 906_200, 0.506, 0.735),
    ],
    "a single point": [point("alone", 12_345, 0.5, 0.5)],
    "wide names": [
        point("W" * 30, 1e6, 0.8, 0.6),
        point("M" * 30, 1.1e6, 0.81, 0.6),
        point("m@W", 1e6, 0.8, 0.61),
    ],
}


def marks(chart: str) -> Iterator[Box]:
    """The boxes of the marks, read off their paths."""
    for group in ElementTree.fromstring(chart).iter(f"{SVG}g"):
        if group.get("class") == "mark":
            x, y = map(float, re.findall(r"[\d.]+", str(group.get("transform"))))
            yield Box(left=x - 4, top=y - 4, right=x + 4, bottom=y + 4)


def texts(chart: str) -> Iterator[tuple[str, Box]]:
    """The texts that lie level, with their boxes in a wide font."""
    root = ElementTree.fromstring(chart)
    turned = {text for group in root.iter(f"{SVG}g") for text in group.iter(f"{SVG}text")}
    for text in root.iter(f"{SVG}text"):
        if text in turned:
            continue
        style = dict(part.split(": ") for part in str(text.get("style")).split("; "))
        size = float(style["font-size"].removesuffix("px"))
        x, y, length = float(str(text.get("x"))), float(str(text.get("y"))), wide(str(text.text), size)
        left = x - length * {"start": 0.0, "middle": 0.5, "end": 1.0}[style["text-anchor"]]
        box = Box(left=left, top=y - 0.74 * size, right=left + length, bottom=y + 0.22 * size)
        yield str(text.text), box


def drawn(points: Sequence[TradePoint]) -> tuple[Panel, ...]:
    return panels(points, [("standalone", 0.446), ("centralised", 0.93)], "accuracy")


@pytest.mark.parametrize("case", CASES)
def test_no_label_covers_a_mark_or_another_text(case: str) -> None:
    points = CASES[case]
    made = drawn(points)
    assert len(made) == 3
    for panel in made:
        boxes, places = list(texts(panel.chart)), list(marks(panel.chart))
        assert len(places) == len(points)
        for text, box in boxes:
            assert not [place for place in places if box.overlaps(place)], f"{panel.title}: {text} on a mark"
            assert box.left >= 0, text
            assert box.right <= 270, text
        for (one, first), (other, second) in itertools.combinations(boxes, 2):
            assert not first.overlaps(second), f"{panel.title}: {one} on {other}"


@pytest.mark.parametrize("case", CASES)
def test_every_point_has_its_name_or_its_number_and_no_leader_crosses_a_label(case: str) -> None:
    points = CASES[case]
    for panel in drawn(points):
        assert panel.unnamed == ()
        found = [text for text, _ in texts(panel.chart)]
        by_name = all(any(text == p.name[:16] or text == f"{p.name[:16]}…" for text in found) for p in points)
        by_number = {str(n) for n in range(1, len(points) + 1)} <= set(found)
        assert by_name or by_number
        thin = r'd="M ([\d.]+) ([\d.]+) L ([\d.]+) ([\d.]+)" stroke="#56626f" stroke-width="0.6"'
        ends = [tuple(map(float, line)) for line in re.findall(thin, panel.chart)]
        inside = [(a, b, c, d) for a, b, c, d in ends if 42 < a < 254 and b < 162 and d < 162]
        for a, b, c, d in inside:
            crossed = [text for text, box in texts(panel.chart) if box.crossed_by(((a, b), (c, d)))]
            assert crossed == []


def test_points_carry_names_and_without_figures_there_are_no_panels() -> None:
    for panel in drawn(QUICKSTART):
        assert {p.name for p in QUICKSTART} <= {text for text, _ in texts(panel.chart)}
    assert drawn([point("a", 1, None, None), point("b", 2, None, None)]) == ()


def test_a_run_s_bytes_stand_at_its_mark_and_its_mark_at_its_bytes() -> None:
    traffic, _, leakage = drawn(QUICKSTART)
    sizes = ("59.8 MB", "1.4 MB", "512.4 kB", "148.3 MB", "71.2 MB")
    printed = dict(zip([p.name for p in QUICKSTART], sizes, strict=True))
    for panel in (traffic, leakage):
        boxes = dict(texts(panel.chart))
        tick = {
            size: (boxes[text].left + boxes[text].right) / 2 for size, text in ((6, "1 MB"), (7, "10 MB"))
        }
        for p, mark in zip(QUICKSTART, marks(panel.chart), strict=True):
            middle = (mark.left + mark.right) / 2
            assert middle == pytest.approx(tick[6] + (tick[7] - tick[6]) * (math.log10(p.bytes) - 6), abs=0.1)
            name, size = boxes[p.name], boxes[printed[p.name]]
            assert size.top == pytest.approx(name.top + 10, abs=0.01), "its bytes are under its name"
            assert (size.left + size.right) == pytest.approx(name.left + name.right, abs=0.02)


def test_a_run_without_a_figure_is_named_beside_the_panels_that_need_it() -> None:
    points = [*QUICKSTART, point("unattacked", 1e6, 0.7, None), point("no model", 1e5, None, 0.6)]
    traffic, both, leakage = drawn(points)
    assert traffic.absent == ("no model",)
    assert both.absent == ("unattacked", "no model")
    assert leakage.absent == ("unattacked",)
    assert len(list(marks(both.chart))) == 5


def test_a_label_without_room_has_no_place() -> None:
    mark = Box(left=0, top=0, right=8, bottom=8)
    frame = Box(left=0, top=0, right=20, bottom=20)
    assert place_labels([mark], [(30, 10)], frame) == [None]
    (label,) = place_labels([mark], [(8, 8)], frame)
    assert label is not None
    assert not label.box.overlaps(mark)


@pytest.mark.parametrize("text", ["fedavg", "selective-fd", "WWWW@@", "99.9 MB", "a_b+c=d", "iiii"])
def test_a_text_takes_no_more_room_than_it_is_given(text: str) -> None:
    assert text_width(text, 9) >= wide(text, 9)

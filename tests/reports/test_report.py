"""The security report as text: escaped, complete, traceable, closed to the outside, the same every time."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fdaudit.reports import render_report, report_json, write_report
from fdaudit.reports.drawings.images import LIMIT, data_uri
from fdaudit.reports.text import amount, visible
from hypothesis import given
from hypothesis import strategies as st

from fdaudit.errors import UsageError
from fdaudit.result import read

from ..helpers.report_cases import FIXTURES, SECTIONS, TIMINGS, Document, load, minimal, numbers
from ..helpers.results import figures_of

HOSTILE = (
    "<script>document.title='owned'</script>",
    "'\"><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}{% raw %}{{ cycler.__init__.__globals__ }}",
    "</title></style></svg><script>alert(2)</script>",
    "$\\frac{1}{2}$ javascript:alert(3)",
    "`<script>alert(4)</script>` `",
    "\u202egnp.exe\u2066\u200b\x00\x1b[31m",
)
CLOSED = {"schema", "status", "direction", "truth", "guess", "prior", "goal"}
"""Members whose values the schema or the run directory fixes; `goal` is tried on its own."""


SCRIPT = Path(__file__).parents[2] / "reports" / "templates" / "report.js"


def render(raw: dict[str, Any]) -> str:
    return render_report(read(raw), FIXTURES, TIMINGS)


@pytest.fixture(scope="module")
def page() -> str:
    return render(load())


def test_sections_and_cells_say_something_with_their_reasons(page: str) -> None:
    document = Document(page)
    assert tuple(document.sections) == SECTIONS
    for name, text in document.sections.items():
        assert len(text.split()) > 30, name
    sections = Document(page).sections
    for cell in load()["cells"]:
        assert cell["attack"] in sections["coverage"]
        assert cell["attack"] in sections["reasons"]
        assert cell["reason"] in sections["reasons"]
    text = Document(page).sections["cells"]
    reasons = [f["unavailable"] for c in load()["cells"] for f in c["figures"] if f["value"] is None]
    assert len(reasons) == 2
    assert all(reason in text for reason in reasons)
    assert "Auditor-only" in page
    raw = load() | {"auditor_only": False}
    assert "Auditor-only" not in render(raw)
    raw["run"]["status"] = "interrupted"
    assert "Unfinished run." in render(raw)


def test_the_least_result_still_fills_every_section() -> None:
    document = Document(render_report(read(minimal()), FIXTURES, {}))
    assert tuple(document.sections) == SECTIONS
    for name, text in document.sections.items():
        assert len(text.split()) > 8, name
    assert "can be concluded" in document.sections["summary"]


def test_every_marked_number_is_in_the_result_and_shown_rounded_rightly(page: str) -> None:
    document = Document(page)
    known = set(numbers(json.loads(report_json(read(load()), TIMINGS))))
    assert len(document.marked) > 150
    for value, text in document.marked:
        assert value in known, (value, text)
        match = re.match(r"^(−?[\d,]+(?:\.(\d+))?)\s?(%|dB|B|kB|MB|GB|s|min.*)?$", text.strip())
        assert match, text
        if (match[3] or "").startswith("min"):
            continue
        scale = {"%": 100, "kB": 1e-3, "MB": 1e-6, "GB": 1e-9}.get(match[3] or "", 1)
        shown = float(match[1].replace(",", "").replace("−", "-"))
        assert abs(shown - scale * value) <= 0.5001 * 10.0 ** -len(match[2] or ""), (value, text)


def test_measured_values_are_on_the_page_and_in_its_sentences(page: str) -> None:
    raw, marked = load(), {value for value, _ in Document(page).marked}
    for cell in raw["cells"]:
        for figure in cell["figures"]:
            for end in ("value", "low", "high"):
                assert figure[end] is None or figure[end] in marked, (cell["id"], figure["name"])
        for target in cell["targets"]:
            for image in target["images"] or []:
                assert {image["psnr"], image["prior_psnr"]} <= marked
    assert {row["figure"]["value"] for row in raw["utility"]["final"]} <= marked
    gain = figures_of(load()["cells"][0])["psnr_gain"]
    said = f"{amount(gain['value'], 'dB')} [{amount(gain['low'], 'dB')}, {amount(gain['high'], 'dB')}]"
    assert said in Document(page).sections["summary"]


def test_a_cell_without_a_time_was_not_run_or_has_no_record_of_it() -> None:
    raw = load()
    next(c for c in raw["cells"] if not c["figures"])["status"] = "not-requested"
    text = Document(render_report(read(raw), FIXTURES, {})).sections["reasons"]
    assert text.count("not run") == 1
    assert text.count("no record") == len(raw["cells"]) - 1


def test_the_page_is_closed(page: str) -> None:
    document = Document(page)
    tags = {tag for tag, _ in document.elements}
    assert not tags & {"iframe", "object", "embed", "base", "form", "audio", "video", "foreignobject"}
    policy = [a["content"] for t, a in document.elements if a.get("http-equiv") == "Content-Security-Policy"]
    allowed = base64.b64encode(hashlib.sha256(SCRIPT.read_bytes()).digest()).decode()
    closed = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'; {}"
    forms = "base-uri 'none'; form-action 'none'"
    assert policy == [closed.format(allowed, forms)]
    assert [attributes for tag, attributes in document.elements if tag == "script"] == [{}]
    assert page.count(f"<script>{SCRIPT.read_text('utf-8')}</script>") == 1
    for tag, attributes in document.elements:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            value = attributes.get(name)
            beside = tag == "a" and str(value).partition("#")[0] == "appendix.html"
            assert value is None or value.startswith(("#", "data:")) or beside, (tag, value)
    assert not re.search(r"url\((?!#)|@import|http-equiv=.refresh", page)


def test_images_have_alternatives_and_identifiers_are_unique(page: str) -> None:
    document = Document(page)
    images = [attributes for tag, attributes in document.elements if tag == "img"]
    assert len(images) == 48 + 2 * 2 + 24  # of each attack, its thumbnails in the table, and of the findings
    assert all(len(str(image["alt"])) > 10 for image in images)
    ids = [str(attributes["id"]) for _, attributes in document.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [str(a["href"]) for t, a in document.elements if t == "a"]
    targets = {link[1:] for link in links if link.startswith("#")}
    assert targets <= set(ids)
    levels = [int(tag[1]) for tag, _ in document.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def poison(value: Any, change: Callable[[str], str], member: str = "") -> Any:
    """`value` with every free text replaced by what `change` makes of it."""
    if isinstance(value, str):
        return value if member in CLOSED else change(value)
    if isinstance(value, dict):
        return {key: poison(item, change, key) for key, item in value.items()}
    return [poison(item, change, member) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("payload", HOSTILE)
def test_hostile_text_is_text(payload: str) -> None:
    count = 0

    def mark(text: str) -> str:
        nonlocal count
        count += 1
        return f"m{count}m{payload}" if text else text

    raw = poison(load(), mark)
    raw["cells"][1]["goal"] = payload
    raw["run"]["spec"] = {payload: [payload]}
    page = render(raw)
    document = Document(page)
    plain = {tag for tag, _ in Document(render(load())).elements}
    assert {tag for tag, _ in document.elements} <= plain
    for tag, attributes in document.elements:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
    assert visible(payload) in document.text
    seen = re.findall(r"m\d+m" + re.escape(visible(payload)), document.text)
    assert len(set(seen)) > 150
    bad = {c for c in page if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\n\t"}
    assert not bad


def test_free_text_of_every_kind_reaches_the_page() -> None:
    raw, payload = load(), "<b>&{{x}}\u202e"
    places = {
        "name": raw["run"], "protocol_summary": raw["run"], "dataset_provenance": raw["run"],
        "device": raw["run"], "strategy": raw["run"], "profile": raw["run"], "source": raw["cells"][0],
        "attack": raw["cells"][2], "reason": raw["cells"][1], "kind": raw["exposure"][0],
        "unavailable": raw["cells"][0]["figures"][-1], "note": raw["cells"][0]["figures"][0],
        "what": raw["cells"][0]["controls"]["positive"], "target": raw["cells"][0]["targets"][1],
    }  # fmt: skip
    for k, (name, place) in enumerate(places.items()):
        place[name] = f"n{k}n{payload}"
    for k, name in enumerate(("limits", "assumptions")):
        raw[name] = [f"l{k}l{payload}"]
    raw["reproduce"] = {"commands": [f"c{payload}"], "notes": [f"o{payload}"]}
    text = Document(render(raw)).text
    expected = [f"n{k}n" for k in range(len(places))] + ["l0l", "l1l", "c", "o"]
    for mark in expected:
        assert mark + visible(payload) in text, mark


def test_what_stands_between_backticks_is_code_and_long_names_are_cut() -> None:
    raw = load()
    raw["run"]["deviations"] = ["as `a<b`; alone`"]
    assert "<li>as <code>a&lt;b</code>; alone`</li>" in render(raw)
    long = "w" * 10_000
    page = render(poison(load(), lambda text: text + long if text else text))
    assert "characters)" in page
    assert len(page) < 5_000_000


@given(st.text())
def test_nothing_invisible_is_left(text: str) -> None:
    shown = visible(text)
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert not [c for c in shown if unicodedata.category(c) in hidden and c not in "\n\t"]
    assert visible(shown) == shown
    shown.encode("utf-8")


@pytest.mark.parametrize(
    "path",
    ["../secret.png", "/etc/passwd", "attacks/../../secret.png", "absent.png", "a\x00b", "", "link.png"],
)
def test_paths_that_leave_the_directory_are_refused(tmp_path: Path, path: str) -> None:
    root = tmp_path / "run"
    root.mkdir()
    png = FIXTURES / load()["cells"][0]["targets"][0]["images"][0]["truth"]
    (tmp_path / "secret.png").write_bytes(png.read_bytes())
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    (root / "inside.png").write_bytes(png.read_bytes())
    assert data_uri(root, "inside.png").startswith("data:image/png;base64,")
    with pytest.raises(UsageError, match="image"):
        data_uri(root, path)


def test_absolute_paths_and_large_pictures_are_refused(tmp_path: Path) -> None:
    png = FIXTURES / load()["cells"][0]["targets"][0]["images"][0]["truth"]
    (tmp_path / "inside.png").write_bytes(png.read_bytes())
    (tmp_path / "page.png").write_bytes(b"<svg onload=alert(1)>")
    (tmp_path / "large.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"0" * LIMIT)
    (tmp_path / "folder.png").mkdir()
    for name in (str(tmp_path / "inside.png"), "page.png", "large.png", "folder.png"):
        with pytest.raises(UsageError, match="image"):
            data_uri(tmp_path, name)


def test_a_report_whose_image_is_out_of_bounds_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    raw, path = load(), tmp_path / "report" / "security.html"
    write_report(read(raw), FIXTURES, path, TIMINGS)
    before = path.read_bytes()
    raw["cells"][0]["targets"][0]["images"][0]["guess"] = "../conftest.py"
    with pytest.raises(UsageError, match="leaves the run"):
        write_report(read(raw), FIXTURES, path, TIMINGS)
    assert path.read_bytes() == before
    assert sorted(os.listdir(path.parent)) == ["security-appendix.html", "security.html", "security.json"]


def test_an_interrupted_write_leaves_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "security.html"
    path.write_text("old")

    def fail(self: Path, target: Path) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(read(load()), FIXTURES, path, TIMINGS)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["security.html"]


@pytest.mark.thorough
def test_the_same_result_gives_the_same_bytes(page: str) -> None:
    assert render(load()) == page
    code = (
        "import json, sys; from pathlib import Path; from fdaudit.reports import render_report;"
        "from fdaudit.result import read;"
        "r = json.loads(sys.stdin.read()); f = Path(sys.argv[1]);"
        "sys.stdout.reconfigure(encoding='utf-8');"
        "sys.stdout.write(render_report(read(json.loads((f / 'result.json').read_text())), f, r));"
        "assert 'torch' not in sys.modules"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(FIXTURES)],
        input=json.dumps(TIMINGS).encode(),
        capture_output=True,
        check=True,
        env=environment,
    )
    assert done.stdout.decode("utf-8") == page


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, fdaudit.reports as r; heavy = {'matplotlib', 'torch', 'jinja2'} & set(sys.modules);"
        "assert not heavy, heavy; assert r.__all__ == sorted(r.__all__); assert callable(r.render_report);"
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONSAFEPATH": "1"})

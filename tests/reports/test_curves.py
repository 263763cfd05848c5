"""Curves: every figure is one of the results', recomputed here; the page shows every run and asks nobody."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fdaudit.reports.curves.curve_figures import WIDTHS, Curve, _panel
from fdaudit.reports.curves.sweep_rows import MEASURES, SweepRow, SweepRun, front, points, row_of, spread_of
from fdaudit.reports.drawings.paper import FORMATS
from fdaudit.reports.goals.model_extraction import HELD
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from scipy import stats

from fdaudit.errors import RunError, UsageError
from fdaudit.result import read
from fdaudit.sweeps import sweep as engine
from fdaudit.sweeps.curves import curve
from fdaudit.sweeps.index import read_index

from ..helpers.browser import chromium
from ..helpers.command import Cli
from ..helpers.refusals import refused
from ..helpers.report_cases import Document, figures_in
from ..helpers.run_cases import tree
from ..helpers.sweep_cases import grid, inline

pytestmark = pytest.mark.thorough

HOSTILE = "</script><script>alert(1)</script> $x_1$ &amp;"
FORMULA = "=cmd|' /C calc'!A0"


def swept() -> dict[str, Any]:
    """Two seeds, a protocol that fails, one to which the defence does not apply, names that mean harm."""
    made = grid(name=HOSTILE, base__attacks=[{"name": "loss-threshold"}], base__references=["standalone"])
    made["base"]["dataset"]["limit"] = 300  # enough auxiliary records for the attack's control
    made["base"]["splits"]["auxiliary"] = 0.3
    made["base"]["model"] = {"name": "mlp", "params": {"widths": [32]}}
    made["protocols"].append({"name": "fedavg", "label": FORMULA, "params": {"rounds": 40, "lr": 1e30}})
    made["defences"][0]["name"] = HOSTILE
    made["defences"][0]["not_applicable"] = {FORMULA: "it fails in any case"}
    return made


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("curves") / "sweep"
    index = engine.sweep(swept(), out, executor=inline)
    assert [index.count(s) for s in ("done", "failed", "not-applicable")] == [6, 2, 4]
    return out


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws no figure: for tests of tables and paths, which need none."""
    monkeypatch.setattr(
        "fdaudit.reports.curves.curves.files", lambda curve, width: dict.fromkeys(FORMATS, b"")
    )


@pytest.fixture(scope="module")
def drawn(sweep: Path) -> Path:
    return curve(sweep, sweep.parent / "curves")[-1].parent


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def results(sweep: Path) -> dict[str, dict[str, Any]]:
    return {p.parent.name: json.loads(p.read_bytes()) for p in sweep.glob("runs/*/result.json")}


# -- the tables ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_every_run_of_the_grid_has_a_row_with_its_own_figures(sweep: Path, drawn: Path) -> None:
    table, index = rows(drawn / "curves.csv"), read_index(sweep)
    assert [r["key"] for r in table] == [e.key for e in index.runs]
    assert [r["status"] for r in table] == [e.status for e in index.runs]
    found = results(sweep)
    for row, entry in zip(table, index.runs, strict=True):
        file = sweep / "runs" / entry.key / "result.json"
        digest = hashlib.sha256(file.read_bytes()).hexdigest() if entry.status == "done" else ""
        assert row["result_sha256"] == digest
        assert (float(row["level"]), int(row["seed"])) == (entry.level, entry.seed)
        asked = entry.level if entry.asked or math.isinf(entry.level) else None
        assert row["epsilon_asked"] == ("" if asked is None else repr(asked))
        if entry.key not in found:
            assert row["reason"]
            assert not any(row[m.name] for m in MEASURES)
            continue
        value = found[entry.key]
        own = [u for u in value["utility"]["final"] if u["line"] == value["run"]["protocol"]]
        accuracy = {u["party"]: u["figure"]["value"] for u in own if u["figure"]["name"] == "accuracy"}
        clients = [v for party, v in accuracy.items() if party.startswith("client/")]
        expected = {
            "utility": accuracy.get("server", statistics.fmean(clients) if clients else None),
            "server": accuracy.get("server"),
            "clients_mean": statistics.fmean(clients) if clients else None,
            "worst_client": min(clients, default=None),
            "membership_auc": strongest(value, "membership", "auc"),
            "membership_tpr_at_1fpr": strongest(value, "membership", "tpr_at_1fpr"),
            "psnr": None,
            "psnr_gain": None,
            "fid": None,
            "class_named": None,
            "label_tv": None,
            "label_tv_prior": None,
            "agreement": None,
            "agreement_gain": None,
            "bytes": sum(w["bytes"] for w in value["wire"]),
            **{
                f"epsilon_{e['adversary']}": math.inf if e["epsilon"] is None else e["epsilon"]
                for e in value["ledger"]
            },
        }
        for name, number in expected.items():
            assert row[name] == ("" if number is None else repr(float(number))), name
        for e in value["ledger"]:
            assert row[f"cause_{e['adversary']}"] == e["cause"]
            assert bool(e["cause"]) == (e["epsilon"] is None)
    assert {r["epsilon_server"] for r in table if r["defence"] == "none" and r["epsilon_server"]} == {"inf"}


def strongest(value: dict[str, Any], goal: str, figure: str) -> float | None:
    return max(
        (
            f["value"]
            for c in value["cells"]
            for f in c["figures"]
            if (c["goal"], c["status"], f["name"]) == (goal, "run", figure) and f["value"] is not None
        ),
        default=None,
    )


def test_the_summary_is_that_of_the_runs(drawn: Path) -> None:
    runs, summary = rows(drawn / "curves.csv"), rows(drawn / "summary.csv")
    groups = {(r["protocol"], r["defence"], r["level"]) for r in runs}
    assert {(r["protocol"], r["defence"], r["level"]) for r in summary} == groups
    for row in summary:
        own = [r for r in runs if all(r[a] == row[a] for a in ("protocol", "defence", "level"))]
        assert int(row["runs"]) == len(own) == 2
        assert int(row["failed"]) == sum(r["status"] == "failed" for r in own)
        values = [float(r[row["measure"]]) for r in own if row["measure"] and r[row["measure"]]]
        assert int(row["n"]) == len(values)
        if len(values) > 1:
            mean, sd = np.mean(values), np.std(values, ddof=1)
            assert float(row["mean"]) == pytest.approx(mean)
            assert float(row["sd"]) == pytest.approx(sd)
            assert 0 <= float(row["low"]) <= mean <= float(row["high"])
            if row["unit"] == "fraction":
                assert float(row["high"]) <= 1


def test_the_table_over_seeds_has_a_row_a_point_with_the_summary_s_means(drawn: Path) -> None:
    summary, table = rows(drawn / "summary.csv"), rows(drawn / "table.csv")
    groups = list(dict.fromkeys((r["protocol"], r["defence"]) for r in summary))
    assert len(table) == len(groups)
    means = [float(r["mean"]) for r in summary if r["measure"] == "membership_auc"]
    cells = [r["Membership AUC"] for r in table]
    assert [float(c.split()[0]) for c in cells if c != "–"] == pytest.approx(means, abs=6e-4)


def test_the_table_over_seeds_says_why_a_figure_is_absent(sweep: Path) -> None:
    """Controls that failed, and a model in view, are no protection; of a distance the victims' mean counts."""
    entry = next(e for e in read_index(sweep).runs if e.status == "done")
    value = results(sweep)[entry.key]
    own = {"name": "label_tv", "value": None, "unavailable": "never answered"}
    cell = next(c for c in value["cells"] if c["status"] == "run")
    measured = cell | {
        "goal": "label-distribution",
        "figures": [],
        "targets": [
            {"target": f"client/{k}", "figures": [{"name": "label_tv", "value": tv, "n": 1}]}
            for k, tv in enumerate((0.2, 0.4))
        ]
        + [{"target": "client/2", "figures": [own]}],
    }
    failed = cell | {
        "goal": "reconstruction",
        "status": "inconclusive",
        "reason": "its positive control failed",
    }
    held = cell | {"goal": "model-extraction", "status": "not-applicable", "reason": f"in view: {HELD}"}
    result = read({**value, "cells": [measured, failed, held]})
    (point,) = points(
        [
            row_of(
                SweepRun(
                    key=entry.key, protocol="p", defence="d", level=1.0, seed=1, status="done", result=result
                )
            )
        ]
    )
    assert point.spreads["label_tv"].mean == pytest.approx(0.3)
    absences = {m.name: point.absence(m) for m in MEASURES if m.goal and m.name not in point.spreads}
    assert absences["psnr_gain"] == "inconclusive"
    assert absences["agreement"] == "held"
    assert absences["membership_auc"] == "–"


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=9))
def test_unbounded_intervals_are_scipy_s(values: list[float]) -> None:
    found = spread_of(values)
    error = stats.sem(values)
    assert found.n == len(values)
    assert found.mean == pytest.approx(np.mean(values))
    half = stats.t.ppf(0.975, len(values) - 1) * error
    assert (found.low, found.high) == pytest.approx(
        (np.mean(values) - half, np.mean(values) + half), abs=1e-6
    )


bounded = st.one_of(
    st.tuples(st.just(1.0), st.lists(st.floats(0, 1), min_size=2, max_size=9)),
    st.tuples(st.just(math.inf), st.lists(st.floats(0, 1e12), min_size=2, max_size=9)),
)


@settings(deadline=None)
@given(bounded)
@example((1.0, [0.92, 0.86, 1.0]))
@example((1.0, [0.0, 0.0, 1.0]))
@example((math.inf, [0.0, 5e-324]))
def test_an_interval_stays_in_its_range_and_contains_the_mean(case: tuple[float, list[float]]) -> None:
    ceiling, values = case
    found = spread_of(values, ceiling)
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= found.mean <= found.high <= ceiling
    if statistics.stdev(values) > 1e-9 * max(values) > 1e-100:
        assert found.low < found.mean < found.high


@settings(deadline=None)
@given(st.floats(0, 1), st.integers(2, 9), st.sampled_from([1.0, math.inf, None]))
def test_an_interval_is_the_value_if_all_seeds_agree(value: float, n: int, ceiling: float | None) -> None:
    found = spread_of([value] * n, ceiling)
    assert (found.low, found.mean, found.high, found.sd) == (value, value, value, 0.0)


@settings(deadline=None)
@given(st.floats(0.01, 0.99), st.floats(0.001, 0.009))
def test_an_interval_grows_with_the_difference_of_seeds(mean: float, reach: float) -> None:
    near, far = (spread_of([mean - r, mean, mean + r], 1.0) for r in (reach / 2, reach))
    assert far.low < near.low < near.high < far.high  # type: ignore[operator]


@pytest.mark.parametrize("n", [3, 5])
def test_an_interval_of_few_seeds_near_a_bound_covers_the_truth(n: int) -> None:
    draws = np.random.default_rng(0).beta(20, 2, size=(4000, n))
    found = [spread_of(row.tolist(), 1.0) for row in draws]
    hits = [s.low <= 20 / 22 <= s.high for s in found]  # type: ignore[operator]
    assert 0.93 <= statistics.fmean(hits) <= 0.97


def test_the_interval_is_wilson_s_and_one_seed_has_none() -> None:
    values = [0.9, 0.8, 0.95]
    found, mean = spread_of(values, 1.0), np.mean(values)
    trials = mean * (1 - mean) / (np.var(values, ddof=1) / 3)
    q = stats.t.ppf(0.975, 2)
    for end in (found.low, found.high):
        assert (mean - end) ** 2 == pytest.approx(q**2 * end * (1 - end) / trials)
    found = spread_of([0.5])
    assert (found.mean, found.sd, found.low, found.high, found.n) == (0.5, None, None, None, 1)


def test_every_bounded_measure_states_its_bounds() -> None:
    ceilings = {m.name: m.ceiling for m in MEASURES}
    for name in ("psnr", "psnr_gain", "agreement_gain"):
        assert ceilings.pop(name) is None
    assert ceilings.pop("fid") == ceilings.pop("bytes") == math.inf
    assert set(ceilings.values()) == {1.0}


def test_axes_end_at_the_bounds_of_their_measures() -> None:
    tpr = next(m for m in MEASURES if m.name == "membership_tpr_at_1fpr")
    made = points(
        SweepRow(
            run=SweepRun(key="k", protocol="p", defence="d", level=level, seed=seed, status="done"),
            values={"utility": utility, tpr.name: value},
        )
        for level, values in ((1.0, (0.0, 0.2, 0.9)), (2.0, (1.0, 1.0, 0.7)))
        for seed, (value, utility) in enumerate(zip(values, (1.0, 0.9, 1.0), strict=True))
    )
    drawn = Curve(
        name="c",
        points=made,
        across=tpr,
        adversary="server",
        utility="accuracy",
        references=(),
        protocols=("p",),
    )
    axes = Figure().subplots()
    _panel(axes, drawn, "d")
    left, right = axes.get_xlim()
    assert 0 <= left < right <= 100
    assert axes.get_ylim() == (0, 100)
    for line in axes.collections:
        for path in line.get_paths():
            assert path.vertices.min() >= 0
            assert path.vertices.max() <= 100
    assert figures_in(drawn.basis) == ["3", "0", "1", "2", "95"]  # n, the seeds, and the intervals' level
    assert "of the server" in drawn.basis


small = st.integers(0, 4).map(float)


@given(st.lists(st.tuples(small, small), max_size=12))
@example([(1.0, 1.0), (1.0, 1.0), (1.0, 2.0)])
def test_the_front_is_what_nothing_betters(places: list[tuple[float, float]]) -> None:
    best = [
        i
        for i, (cost, gain) in enumerate(places)
        if not any(c <= cost and g >= gain and (c < cost or g > gain) for c, g in places)
    ]
    found = front(places)
    assert sorted(found) == best
    assert [places[i][0] for i in found] == sorted(places[i][0] for i in found)


# -- the files -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_same_sweep_gives_the_same_bytes_in_every_format(
    sweep: Path, drawn: Path, tmp_path: Path
) -> None:
    made = curve(sweep, tmp_path / "again")
    assert tree(tmp_path / "again") == tree(drawn)
    assert {p.name for p in made} == {p.name for p in drawn.iterdir()}
    start = {
        ".svg": b"<?xml",
        ".pdf": b"%PDF",
        ".png": b"\x89PNG",
        ".csv": (b"proto", b"Proto"),
        ".html": b"<!doc",
    }
    for path in made:
        assert path.read_bytes().lstrip()[:5].startswith(start[path.suffix]), path.name
    for stem in ("utility-epsilon", "utility-membership-auc", "utility-bytes"):
        assert b"/FontFile2" in (drawn / f"{stem}.pdf").read_bytes(), "TrueType, embedded"
        assert b"<text" not in (drawn / f"{stem}.svg").read_bytes(), "glyphs are paths: no font is needed"
    assert not (drawn / "utility-psnr-gain.svg").exists(), "an axis without a figure is not drawn"


@pytest.mark.thorough
def test_figures_have_the_width_that_is_asked_for(sweep: Path, drawn: Path, tmp_path: Path) -> None:
    from PIL import Image

    curve(sweep, tmp_path, width="column")
    assert {"column", "text"} == set(WIDTHS)
    for width, folder in (("column", tmp_path), ("text", drawn)):
        assert len(list(folder.glob("*.png"))) >= 3
        for path in folder.glob("*.png"):
            with Image.open(path) as image:
                assert image.width == round(300 * WIDTHS[width])


def test_the_page_shows_names_as_text_what_failed_and_what_was_not_measured(drawn: Path) -> None:
    text = (drawn / "index.html").read_text(encoding="utf-8")
    page = Document(text)
    assert sum(tag == "script" for tag, _ in page.elements) == 1
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    for path in drawn.glob("*.csv"):
        raw = path.read_text(encoding="utf-8")
        for row in csv.reader(raw.splitlines()):
            assert not any(cell.startswith(("=", "+", "@")) for cell in row)
    assert any(r["protocol"] == f"'{FORMULA}" for r in rows(drawn / "curves.csv"))
    unmeasured = [m.label for m in MEASURES if m.name in ("psnr_gain", "fid")]
    assert [label for label in unmeasured if f"a value of {label}." not in text] == []
    assert "TrainingDivergedError" in text
    assert "in any case" in text
    assert "12 runs 2" in text
    assert re.search(r"= 2 seeds\D+1\D+2\D", text)
    assert "these attacks: server" in text


@pytest.mark.thorough
@pytest.mark.browser
def test_the_page_opens_without_a_request_and_sorts(drawn: Path, tmp_path: Path) -> None:
    with chromium(tmp_path) as browser:
        page = browser.open(drawn / "index.html")
        assert page.errors == ()
        assert page.requests == (page.url,)
        column = "return [...document.querySelectorAll('#runs tbody tr')].map(r => r.cells[%d].textContent)"
        before = browser.run(column % 4)
        press = "document.querySelectorAll('#runs thead th')[4].querySelector('button').click()"
        browser.run(press)
        assert browser.run(column % 4) == sorted(before)
        browser.run(press)
        assert browser.run(column % 4) == sorted(before, reverse=True)
        assert (
            browser.run("return document.querySelector('#runs [aria-sort]').getAttribute('aria-sort')")
            == "descending"
        )
        browser.run("document.querySelectorAll('#runs thead th')[2].querySelector('button').click()")
        levels = browser.run(column % 2)
        assert levels == ["8"] * 6 + ["none"] * 6
        narrow = browser.open(drawn / "index.html", width=390)
        assert narrow.errors == ()
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("blank_figures")
def test_a_run_whose_result_is_damaged_is_shown_as_failed(sweep: Path, tmp_path: Path) -> None:
    copy = tmp_path / "sweep"
    shutil.copytree(sweep, copy)
    gone, broken = (p for p in sorted(copy.glob("runs/*/result.json"))[:2])
    gone.unlink()
    broken.write_text("{}")
    curve(copy, tmp_path / "out")
    found = {r["key"]: r for r in rows(tmp_path / "out" / "curves.csv")}
    for path in (gone, broken):
        assert found[path.parent.name]["status"] == "failed"
        assert found[path.parent.name]["reason"].startswith("its result cannot")


def test_no_sweep_and_no_width_are_refused(sweep: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no sweep"):
        curve(tmp_path, tmp_path / "out")
    refused(
        lambda: curve(sweep, tmp_path / "out", width="colum"), "width", "colum", ["'column'"], kind=UsageError
    )
    (tmp_path / "file").write_text("mine")
    refused(lambda: curve(sweep, tmp_path / "file"), "out", kind=RunError)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("blank_figures")
def test_the_command_prints_the_paths(sweep: Path, tmp_path: Path, cli: Cli) -> None:
    code, out, err = cli("curve", sweep, "--out", tmp_path / "out", "--json")
    value = json.loads(out)
    assert (code, err) == (0, "")
    assert value["page"] == str(tmp_path / "out" / "index.html")
    assert {Path(p).name for p in value["files"]} == {p.name for p in (tmp_path / "out").iterdir()}
    assert cli("curve", tmp_path, "--out", tmp_path / "other")[0] == 2

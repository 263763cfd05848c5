"""No figure of a sweep claims a finite ε that its ledger denies."""

from __future__ import annotations

import copy
import csv
import math
import re
import xml.etree.ElementTree as ET
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fdaudit.reports.curves.curve_axis import ledger_label, scale_of
from fdaudit.reports.curves.curve_figures import Curve, files
from fdaudit.reports.curves.curve_words import conclusions
from fdaudit.reports.curves.curves import Sweep, curves_csv, render_curves, summary_csv
from fdaudit.reports.curves.sweep_rows import SweepRow, SweepRun, axis_adversary
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from fdaudit.errors import UsageError
from fdaudit.result import LedgerEntry, Result
from fdaudit.sweeps import sweep as engine
from fdaudit.sweeps.curves import curve
from fdaudit.sweeps.grid import expand, load_grid
from fdaudit.sweeps.levels import asks_for_epsilon
from fdaudit.testing.specs import SMALL_SPEC

from ..helpers.refusals import refused
from ..helpers.sweep_cases import grid, inline

LEVELS = (1.0, 64.0)
SVG = {"svg": "http://www.w3.org/2000/svg"}
ASKED = {"calibrate": "gaussian-noise", "releases": 2, "sensitivity": 2.0}


def noisy(sigma: Any) -> dict[str, Any]:
    """Return a grid of Selective-FD, whose index lists leave in clear, with noise on its soft labels."""
    made = copy.deepcopy(dict(SMALL_SPEC))
    base = {k: v for k, v in made.items() if k not in ("seed", "protocol")}
    noise = {"kind": "soft_labels", "name": "gaussian-noise", "params": {"clip": 1.0, "sigma": sigma}}
    params = {"labels": "soft", "rounds": 2, "warm_up_steps": 2, "local_steps": 1, "distill_steps": 1}
    return {
        "sweep": 1,
        "base": {**base, "dataset": {"name": "digits", "limit": 200}, "splits": {"proxy": 0.3}},
        "protocols": [{"name": "selective-fd", "params": params}],
        "defences": [{"name": "noise", "spec": {"defenses": [noise]}}],
        "epsilon": [*LEVELS, "inf"],
        "seeds": [1],
    }


def drawn(folder: Path, sigma: Any) -> Path:
    index = engine.sweep(noisy(sigma), folder / "sweep", executor=inline)
    assert index.count("done") == len(LEVELS) + 1
    return curve(folder / "sweep", folder / "curves")[-1].parent


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drawn(tmp_path_factory.mktemp("calibrated"), ASKED)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def marks(svg: bytes) -> dict[str, float]:
    """Return where each mark of a figure stands, in points."""
    root = ET.fromstring(svg)
    found = {}
    for group in root.iterfind(".//svg:g[@id]", SVG):
        if group.get("id", "").startswith("mark-"):
            (place,) = {float(u.get("x", "nan")) for u in group.iterfind(".//svg:use", SVG)}
            found[group.get("id", "")] = place
    return found


def breaks(svg: bytes) -> list[float]:
    root = ET.fromstring(svg)
    groups = [g for g in root.iterfind(".//svg:g[@id]", SVG) if g.get("id", "").startswith("break-")]
    return [float(use.get("x", "nan")) for g in groups for use in g.iterfind(".//svg:use", SVG)]


# -- a sweep whose ledger denies what was asked --------------------------------------------------------------------


@pytest.mark.thorough
def test_noise_that_leaves_the_index_in_clear_has_no_finite_epsilon_in_the_tables(calibrated: Path) -> None:
    for name, column in (("curves.csv", "epsilon_server"), ("summary.csv", "epsilon_ledger")):
        rows = [r for r in table(calibrated / name) if r["defence"] == "noise"]
        assert {float(r["epsilon_asked"]) for r in rows} == set(LEVELS)
        assert {r[column] for r in rows} == {"inf"}
        assert all(r["cause_server" if name == "curves.csv" else "cause"] for r in rows)


def test_marks_and_words_of_an_infinite_epsilon_stand_behind_the_break(calibrated: Path) -> None:
    svg = (calibrated / "utility-epsilon.svg").read_bytes()
    assert len(marks(svg)) == len(LEVELS) + 1
    assert min(marks(svg).values()) > max(breaks(svg))
    page = (calibrated / "index.html").read_text(encoding="utf-8")
    assert re.search(r"no finite ε[^<.]*\b2\sof\s2\b", page)
    assert "to a ledger" not in page
    cause = next(r["cause_server"] for r in table(calibrated / "curves.csv") if r["defence"] == "noise")
    assert cause.split(" (")[0] in page
    svg = (calibrated / "utility-epsilon-asked.svg").read_bytes()
    assert len(set(marks(svg).values())) == len(LEVELS) + 1
    assert sum(x < min(breaks(svg)) for x in marks(svg).values()) == len(LEVELS)
    page = (calibrated / "index.html").read_text(encoding="utf-8")
    assert "is no guarantee" in page


@pytest.mark.thorough
def test_a_placeholder_that_is_sigma_is_on_no_epsilon_axis(tmp_path: Path) -> None:
    out = drawn(tmp_path, "{epsilon}")
    rows = [r for r in table(out / "curves.csv") if r["defence"] == "noise"]
    assert {float(r["level"]) for r in rows} == set(LEVELS)
    assert {r["epsilon_asked"] for r in rows} == {""}
    assert not (out / "utility-epsilon-asked.svg").exists()
    assert "No level of" in (out / "index.html").read_text(encoding="utf-8")


# -- any sweep -----------------------------------------------------------------------------------------------------

epsilons = st.one_of(st.none(), st.just(0.0), st.floats(1e-3, 1e6))
ledgers = st.dictionaries(st.sampled_from(["server", "world"]), epsilons)
SLOTS = [(p, d, e) for p in ("a", "b") for d in ("none", "dp", "noise") for e in (1.0, 8.0)]


@st.composite
def sweeps(draw: st.DrawFn) -> Sweep:
    """Return a sweep of random ledgers, as results would give it."""
    result = Result.model_construct()  # what a row measured stands beside it
    rows = []
    for protocol, defence, level in draw(st.lists(st.sampled_from(SLOTS), unique=True, min_size=1)):
        asked = draw(st.booleans())
        for seed in range(draw(st.integers(1, 3))):
            run = SweepRun(
                key=f"{len(rows):016x}", protocol=protocol, defence=defence, seed=seed, status="done",
                level=math.inf if defence == "none" else level, asked=asked and defence != "none", result=result,
            )  # fmt: skip
            made = {
                a: LedgerEntry(adversary=a, epsilon=e, delta=1e-5, cause="" if e is not None else "in clear")
                for a, e in draw(ledgers).items()
            }
            value = draw(st.floats(0, 1))
            rows.append(SweepRow(run=run, values={"utility": value, "bytes": 9.0}, ledger=made))
    return Sweep(name="random", rows=tuple(rows), adversary=draw(st.sampled_from(["server", "world"])))


def claims(curve: Curve) -> list[tuple[set[float | None], float]]:
    """Return what the ledgers of each point's runs say, and where the figure puts it."""
    return [({r.epsilon(curve.adversary) for r in p.rows}, curve.epsilon(p)) for p in curve.points]


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(sweeps())
def test_every_finite_place_is_the_largest_epsilon_of_its_ledgers(sweep: Sweep) -> None:
    if (made := sweep.curve(None)) is None:
        return
    for found, place in claims(made):
        assert None not in found, "a run without an entry claims nothing"
        assert place == max(e for e in found if e is not None)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:constrained_layout not applied")  # many panels on a narrow column
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(sweeps())
def test_marks_stand_where_the_ledger_says(sweep: Sweep) -> None:
    if (made := sweep.curve(None)) is None:
        return
    places = marks(files(made, 3.5)["svg"])
    finite = {n: made.epsilon(p) for n, p in enumerate(made.points) if 0 < made.epsilon(p) < math.inf}
    for panel in range(len(made.defences)):
        own = {int(n.split("-")[2]): x for n, x in places.items() if n.startswith(f"mark-{panel}-")}
        known = sorted((math.log10(finite[n]), x) for n, x in own.items() if n in finite)
        assert all(x > top for n, x in own.items() if math.isinf(made.epsilon(made.points[n]))
                   for _, top in known[-1:])  # fmt: skip
        if len(known) > 2:
            decades, points = zip(*known, strict=True)
            ends = ((decades[0], decades[-1]), (points[0], points[-1]))
            assert points == pytest.approx(np.interp(decades, *ends), abs=0.01), "the axis is logarithmic"


@settings(max_examples=100, deadline=None)
@given(sweeps())
def test_the_axis_of_the_epsilon_asked_shows_only_levels_that_are_one(sweep: Sweep) -> None:
    made = sweep.curve(None, asked=True)
    assert made is None or all(r.run.asked or not p.defended for p in made.points for r in p.rows)


@settings(max_examples=50, deadline=None)
@given(sweeps())
def test_tables_and_sentences_hold_no_epsilon_but_the_ledger_s(sweep: Sweep) -> None:
    for row, r in zip(csv.DictReader(curves_csv(sweep).splitlines()), sweep.rows, strict=True):
        for adversary, entry in r.ledger.items():
            said = math.inf if entry.epsilon is None else entry.epsilon
            assert float(row[f"epsilon_{adversary}"]) == said
    summary = csv.DictReader(summary_csv(sweep).splitlines())
    rows = {(r["protocol"], r["defence"], float(r["level"])): r for r in summary}
    for point in sweep.points:
        found = [r.epsilon(sweep.adversary) for r in point.rows]
        row = rows[point.protocol, point.defence, point.level]
        known = [e for e in found if e is not None]
        complete = len(known) == len(found)
        assert row["epsilon_ledger"] == (repr(max(known)) if complete else "")
    finite = [e for r in sweep.rows if (e := r.epsilon(sweep.adversary)) is not None and e < math.inf]
    for line in conclusions(sweep.points, sweep.rows, sweep.adversary):
        for number in re.findall(r"(?:ledger ε of|ledger ε =) ([0-9.,e+-]*[0-9])", line):
            said = float(number.replace(",", ""))
            assert any(e <= said * (1 + 1e-6) and said <= e * 1.011 + 1e-9 for e in finite), line


# -- which adversary, which levels ---------------------------------------------------------------------------------


def row(level: float, **ledger: float | None) -> SweepRow:
    made = {a: LedgerEntry(adversary=a, epsilon=e, delta=1e-5) for a, e in ledger.items()}
    run = SweepRun(
        key="0" * 16, protocol="a", defence="dp", level=level, seed=1, status="done", asked=True,
        result=Result.model_construct(),
    )  # fmt: skip
    return SweepRow(run=run, values={"utility": 0.5}, ledger=made)


def test_the_axis_names_its_adversary_and_shows_that_adversary_s_epsilon() -> None:
    rows = (row(1.0, server=0.5, world=0.25), row(8.0, server=None, world=4.0))
    for adversary, expected in (("server", [0.5, math.inf]), ("world", [0.25, 4.0])):
        made = Sweep(name="s", rows=rows, adversary=adversary).curve(None)
        assert made is not None
        assert [made.epsilon(p) for p in made.points] == expected
        label = ledger_label(made.points, adversary)
        assert f"{adversary}'s view" in label
        assert "1e-5" in label


def test_the_adversary_of_an_axis_is_the_servers_or_the_grids() -> None:
    assert axis_adversary([row(1.0, world=1.0, server=1.0)], None) == "server"
    assert axis_adversary([row(1.0, world=1.0)], None) == "world"
    assert axis_adversary([row(1.0, world=1.0)], "world") == "world"
    act = partial(axis_adversary, [row(1.0, world=1.0)], "wrold")
    refused(act, "adversary", "wrold", ["'world'"], kind=UsageError)
    assert load_grid(grid(adversary="server")).adversary == "server"
    expand(load_grid(grid(adversary="server")))
    refused(lambda: expand(load_grid(grid(adversary="client/0"))), "adversary", "client/0")


CALIBRATED = {"calibrate": "gnmax"}


@pytest.mark.parametrize(
    ("fragment", "expected"),
    [
        ({"preset": {"name": "private", "epsilon": "{epsilon}"}}, True),
        ({"privacy": {"budget": {"epsilon": "{epsilon}"}}}, True),
        ({"defenses": [{"params": {"sigma": CALIBRATED}}]}, True),
        ({"defenses": [{"params": {"sigma": {**CALIBRATED, "share": 0.5}}}] * 2}, True),
        ({"defenses": [{"params": {"sigma": CALIBRATED}}], "gates": {"epsilon": "{epsilon}"}}, True),
        ({"defenses": [{"params": {"sigma": CALIBRATED}}] * 2}, False),
        ({"defenses": [{"params": {"sigma": "{epsilon}"}}]}, False),
        ({"defenses": [{"params": {"sigma": CALIBRATED, "clip": "{epsilon}"}}]}, False),
        ({"gates": {"epsilon": "{epsilon}"}}, False),
        ({"references": ["standalone"]}, False),
    ],
    ids=str,
)
def test_a_level_is_an_epsilon_only_where_it_is_used_as_one(fragment: dict[str, Any], expected: bool) -> None:
    assert asks_for_epsilon(fragment) is expected


def test_every_tested_epsilon_has_a_tick_and_none_has_only_infinity() -> None:
    rows = (row(1.0, server=0.7), row(4.0, server=3.1), row(16.0, server=None), row(8.0, server=3.1))
    curve = Sweep(name="s", rows=rows).curve(None)
    assert curve is not None
    assert curve.scale is not None
    axes = Figure().subplots()
    curve.scale.draw(axes)
    marked = axes.get_xticks(minor=True)
    assert list(marked) == pytest.approx([math.log10(0.7), math.log10(3.1)])
    assert axes.get_xlim() == pytest.approx(curve.scale.limits)
    assert [name for _, name in scale_of([math.inf]).ticks] == ["∞"]
    found = scale_of([0.0, 2.0, math.inf])
    places = [place for place, _ in found.ticks]
    assert places == sorted(places)
    assert found.ticks[0][1] == "0"
    assert found.place(0.0) < found.breaks[0] < found.place(2.0) < found.breaks[1] < found.place(math.inf)


@pytest.mark.parametrize("epsilon", [0.0, 3.0, None])
def test_every_page_is_rendered(epsilon: float | None) -> None:
    page = render_curves(Sweep(name="s", rows=(row(1.0, server=epsilon),)))
    assert "ε, ledger" in page

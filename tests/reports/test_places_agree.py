"""One verdict in every place: console, first page, matrix, JSON, public page and comparison, on small data too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fdaudit.reports.comparison.comparison import ComparedRun, compare
from fdaudit.reports.goals import RULES
from fdaudit.reports.judgement.judgement import judged, judgement_in, read_judged
from fdaudit.reports.judgement.severity import SEVERITIES
from fdaudit.reports.judgement.verdict import LEVELS, SETTLED, Finding, judge_all
from fdaudit.reports.public import public
from fdaudit.reports.run.document import document, to_json
from fdaudit.reports.run.security import render_report
from fdaudit.reports.run.summary import summarise
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fdaudit.cli.verdicts import outcome, verdicts
from fdaudit.errors import UsageError
from fdaudit.result import JudgedView, Result, read

from ..helpers.report_cases import load

ADVERSARIES = ("server", "client/0", "world", "eavesdropper", "server+client/0")
DECIDING = {goal: rule.figure for goal, rule in RULES.items()}
PASSED = {"what": "a control", "passed": True, "figures": []}
FAILED = {**PASSED, "passed": False}

values = st.sampled_from([None, 0.0, 0.3, 0.5, 0.51, 0.8, 1.0, -2.0, 12.0])
tests = st.sampled_from([None, 1.0, 0.06, 0.04, 1e-6])
counts = st.sampled_from([None, 1, 2, 6, 12, 30])


@st.composite
def figures(draw: st.DrawFn, goal: str) -> list[dict[str, Any]]:
    """Return the deciding figure of few records, with and without interval and p-value, and what it is beside."""
    name = DECIDING[goal]
    found = []
    if goal == "reconstruction" and draw(st.booleans()):  # classes were shown, and no record
        found.append({"name": "evaluator_chance", "value": 0.2, "unit": "fraction"})
        seen = {"value": draw(st.sampled_from([0.1, 0.8])), "low": 0.1, "high": 0.9, "p": draw(tests)}
        found.append({"name": "evaluator_accuracy", "unit": "fraction", **seen})
    for each in (name, f"{name}_prior", f"{name}_blind"):
        value = draw(values)
        if each == f"{name}_blind" and goal != "membership":
            continue
        if each == f"{name}_prior" and goal == "membership":
            continue
        if each != name and draw(st.booleans()):
            continue
        if goal in ("membership", "label-distribution", "model-extraction") and value is not None:
            value = min(max(value, 0.0), 1.0)
        figure: dict[str, Any] = {"name": each, "value": value, "unit": "", "n": draw(counts)}
        if value is None:
            figure["unavailable"] = "too few records"
        elif draw(st.booleans()):
            width = draw(st.sampled_from([0.0, 0.05, 0.5]))
            figure |= {"low": value - width, "high": value + width}
        if value is not None and each == name:
            figure["p"] = draw(tests)
        found.append(figure)
    return found


@st.composite
def cells(draw: st.DrawFn) -> dict[str, Any]:
    goal = draw(st.sampled_from(sorted(DECIDING)))
    adversary, number = draw(st.sampled_from(ADVERSARIES)), draw(st.integers(0, 2))
    attack = f"{draw(st.sampled_from(['', 'external-']))}{goal}-{number}"
    status = draw(
        st.sampled_from(
            ["run", "run", "run", "inconclusive", "failed", "not-applicable", "not-requested", "not-tested"]
        )
    )
    ran = status in ("run", "inconclusive")
    control = st.sampled_from([None, PASSED, FAILED])
    chosen = {name: draw(control) for name in ("positive", "negative", "power")}
    return {
        "id": f"{adversary}/{attack}",
        "protocol": "p",
        "adversary": adversary,
        "attack": attack,
        "goal": goal,
        "status": status,
        "reason": "" if status == "run" else "for a reason",
        "source": "a test",
        "needs": ["logits"],
        "figures": draw(figures(goal)) if ran else [],
        "targets": [
            {"target": f"client/{k}", "figures": draw(figures(goal))}
            for k in range(draw(st.integers(0, 2)))
            if ran
        ],
        "controls": chosen if ran and any(chosen.values()) else None,
    }


@st.composite
def results(draw: st.DrawFn) -> Result:
    """Return a result of a small run, with or without coins, warnings and an interruption."""
    raw = load()
    found = draw(st.lists(cells(), max_size=6, unique_by=lambda cell: cell["id"]))
    raw |= {"cells": found, "gates": [], "checks": [], "family": None}
    raw["unfinished"] = draw(st.sampled_from([None, {"done": len(found), "of": 96}]))
    coins = draw(st.sampled_from([0, 2, 8, 40]))
    judged = [cell for cell in found if cell["goal"] == "membership" and cell["status"] == "run"]
    if coins and judged:
        floor = st.sampled_from([None, 0.5, 0.9])
        adjusted = []
        for cell in judged:
            for figure in cell["figures"]:
                if figure.get("p") is not None:
                    row = {"cell": cell["id"], "target": None, "figure": figure["name"]}
                    adjusted.append({**row, "p": draw(st.sampled_from([1.0, 0.001])), "floor": draw(floor)})
        by_coins = {"level": 0.05, "coins": coins, "reflips": 20000, "statistics": len(adjusted)}
        raw["family"] = {"level": 0.05, "by_coins": by_coins, "by_themselves": None, "adjusted": adjusted}
    return read(json.loads(json.dumps(raw)))


def grave(levels: Sequence[str]) -> str:
    return min(levels, key=list(LEVELS).index)


def shown_views(result: Result) -> dict[tuple[str, str], JudgedView]:
    """Return the leaks of a judgement by adversary and goal, without what it says of remedies that were tried."""
    judgement = judgement_in(result)
    leaks = [view.model_copy(update={"effect_measured": False}) for view in judgement.views if view.severity]
    return {(view.adversary, view.goal): view for view in leaks}


def inside(result: Result, cell: str) -> str:
    """Return a cell's id on a public page, where all guesses from outside are one."""
    (made,) = [c for c in result.cells if c.id == cell]
    return f"{made.adversary}/external-guesses-{made.goal}" if made.attack.startswith("external-") else cell


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(results())
def test_every_place_prints_the_one_judgement(result: Result) -> None:
    """Pages, console, comparison and JSON of one result agree with its judgement, level by level."""
    result = judged(result)
    judgement = judgement_in(result)
    level_of = {(view.adversary, view.goal): view.level for view in judgement.views}
    summary = summarise(result)

    for view in judgement.views:
        graded = (view.severity is not None, view.remedy is not None)
        assert graded == (view.level in ("leak", "partial"),) * 2

    said = [*verdicts(result), *outcome(result)]
    for cell, own in zip(result.cells, judgement.cells, strict=True):
        if own.level != "not-requested":
            start = f"{cell.adversary} / {cell.attack}: {LEVELS[own.level].lower()}"
            assert any(line.startswith(start) for line in said)
    assert summary.headline in "\n".join(said)
    for view in judgement.views:
        if view.level == "not-tested":
            assert f"{view.adversary}, {view.goal}: not tested. {view.untested}" in said

    stored = json.loads(json.dumps(result.plain()))["judgement"]
    made = json.loads(to_json(document(result, {})))
    assert made["result"]["judgement"] == stored
    assert [cell["level"] for cell in stored["cells"]] == [cell.level for cell in judgement.cells]
    assert [f["level"] for f in made["findings"]] == [cell.level for cell in judgement.cells]
    assert made["verdict"]["level"] == summary.level == judgement.level
    assert {(s["adversary"], s["goal"]): s["level"] for s in made["adversaries"]} == level_of
    for row in summary.matrix:
        for entry in row.entries:
            assert entry.level == level_of[row.adversary, entry.goal]

    views = shown_views(result)
    covered = {(a, goal) for f in summary.front.findings for a in f.adversaries for goal in f.goals}
    assert covered == set(views)
    for found in summary.front.findings:
        own = [
            view
            for view in views.values()
            if view.adversary in found.adversaries and view.goal in found.goals
        ]
        grades = [view.severity for view in own if view.severity is not None]
        assert (found.severity, found.factors) in [(grade.word, grade.factors) for grade in grades]
        assert found.remedy in [view.remedy for view in own]

    settled = [view.level for view in judgement.views if view.level in SETTLED]
    if "No leak was measured" in summary.headline:
        assert set(settled) == {"none-seen"}
    if summary.level in ("leak", "partial", "possible"):
        assert summary.level == grave(settled)
    if not settled:
        assert summary.level in ("inconclusive", "not-tested")

    (compared,) = compare([ComparedRun(name="one", result=result)]).rows
    for each in compared.outcomes:
        levels = [view.level for view in judgement.views if view.goal == each.goal]
        shown = "not-requested" if each.finding is None else each.finding.level
        if shown in ("leak", "partial", "possible") or grave(levels) in ("leak", "partial", "possible"):
            assert shown == grave(levels)
        if shown == "none-seen":
            assert "none-seen" in levels


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(results())
def test_a_public_judgement_is_neither_graver_nor_milder(result: Result) -> None:
    result = judged(result)
    whole, less = judgement_in(result), public(result)
    part = judgement_in(less)
    graded = [{key: (v.level, v.severity) for key, v in shown_views(each).items()} for each in (less, result)]
    assert graded[0] == graded[1]
    by_cell = {inside(result, own.cell): own for own in reversed(whole.cells)}
    blind = {own.cell for own in whole.cells if own.blind}
    for after in part.cells:
        before = by_cell[after.cell]
        if after.cell.rpartition("/")[2].startswith("external-"):
            assert after.level in {own.level for own in whole.cells} | {"none-seen", "inconclusive"}
        elif before.level == "possible":
            assert after.level in ("none-seen", "inconclusive")
            assert after.level != "none-seen" or before.cell not in blind
        else:
            assert (after.level, after.certain, after.of_classes) == (
                before.level,
                before.certain,
                before.of_classes,
            )
        assert (after.worst, after.affected, after.decided_by) == (None, (), {})
    possible = any(own.level == "possible" for own in whole.cells)
    assert possible or part.level == whole.level
    assert "possible" not in {own.level for own in (*part.cells, *part.views)} | {part.level}
    assert less.unfinished == result.unfinished
    assert json.loads(to_json(document(less, {})))["verdict"]["level"] == part.level


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(results(), st.data())
def test_a_doctored_judgement_is_refused(result: Result, data: st.DataObject) -> None:
    stored = json.loads(json.dumps(judged(result).plain()))
    assert read_judged(stored).judgement == judged(result).judgement
    judgement = stored["judgement"]
    places = [("level",)]
    for i, view in enumerate(judgement["views"]):
        places.append(("views", i, "level"))
        places += [("views", i, "severity", "word")] * ("severity" in view)
    for i, _ in enumerate(judgement["cells"]):
        places += [("cells", i, "level"), ("cells", i, "certain")]
    place = data.draw(st.sampled_from(places))
    part = judgement
    for step in place[:-1]:
        part = part[step]
    lies: dict[str, list[Any]] = {"level": list(LEVELS), "certain": [True, False], "word": list(SEVERITIES)}
    part[place[-1]] = data.draw(
        st.sampled_from([lie for lie in lies[str(place[-1])] if lie != part[place[-1]]])
    )
    with pytest.raises(UsageError, match="contradicts the cells") as refused:
        read_judged(stored)
    assert refused.value.field == ".".join(map(str, ("result.judgement", *place)))
    assert refused.value.value == part[place[-1]]


def test_a_judgement_by_other_rules_or_none_is_made_when_the_result_is_read() -> None:
    due = judged(read(load())).judgement
    stored = json.loads(json.dumps(judged(read(load())).plain()))
    stored["judgement"] |= {"version": "0.0", "level": "not-requested", "views": []}
    assert read_judged(stored).judgement == due
    assert read_judged(load()).judgement == due


def test_a_leak_of_classes_is_as_grave_on_the_public_page() -> None:
    """The figure that shows it is no public one, so only the judgement can say it."""
    raw = load()
    figures = [
        {"name": "psnr_gain", "value": 0.2, "low": -0.3, "high": 0.7, "unit": "dB"},
        {"name": "evaluator_prior", "value": 0.3, "unit": "fraction"},
        {"name": "evaluator_chance", "value": 0.2, "unit": "fraction"},
        {"name": "evaluator_accuracy", "value": 0.8, "low": 0.4, "high": 0.97, "p": 1e-4, "unit": "fraction"},
    ]
    cell = {
        "protocol": "p", "adversary": "server", "attack": "a", "goal": "reconstruction", "status": "run", "source": "s",
        "figures": figures, "targets": [], "controls": {"positive": PASSED, "negative": PASSED},
    }  # fmt: skip
    result = judged(read(raw | {"cells": [cell], "gates": [], "checks": [], "family": None}))
    less = public(result)
    assert [figure.name for c in less.cells for figure in c.figures] == ["psnr_gain"]
    for shown in (result, less):
        (view,) = judgement_in(shown).views
        (found,) = summarise(shown).front.findings
        assert (view.level, view.severity.impact if view.severity else 0) == ("partial", 2)
        assert (found.severity, found.factors[0]) == ("low", 2)
        assert "classes" in found.what
        assert [entry.words for row in summarise(shown).matrix for entry in row.entries] == [
            "Partial: classes"
        ]


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(results())
def test_every_page_can_be_drawn(result: Result) -> None:
    page = render_report(result, Path(), {})
    less = public(result)
    shared = render_report(less, Path(), {})
    if result.unfinished is not None:
        for text in (page, shared):
            assert result.unfinished.words in text
            assert "attack was tried" not in text


def test_a_prior_without_the_figure_beside_it_is_not_shown() -> None:
    raw = load()
    cell = {
        "id": "server/a", "protocol": "p", "adversary": "server", "attack": "a", "goal": "label-distribution",
        "status": "run", "source": "s", "targets": [],
        "figures": [
            {"name": "label_tv", "value": None, "unit": "", "unavailable": "too few records"},
            {"name": "label_tv_prior", "value": 0.2, "unit": ""},
        ],
    }  # fmt: skip
    result = read(raw | {"cells": [cell], "gates": [], "checks": [], "family": None})
    assert "Inconclusive" in render_report(result, Path(), {})


def membership(*rows: tuple[float | None, float | None], coins: int = 4, p: float | None = 1.0) -> Finding:
    """Return the finding about one attack whose AUC's floors are given: of all victims, and of one."""
    raw = load()
    figure = {"name": "auc", "value": 0.5, "unit": "", "low": 0.4, "high": 0.6, "p": p, "n": coins}
    cell = {
        "id": "server/a", "protocol": "p", "adversary": "server", "attack": "a", "goal": "membership", "status": "run",
        "source": "s", "figures": [figure], "targets": [{"target": "client/0", "figures": [figure]}],
        "controls": {"positive": PASSED, "negative": PASSED},
    }  # fmt: skip
    adjusted = []
    for whole, one in rows:
        row = {"cell": "server/a", "figure": "auc", "p": 1.0}
        adjusted += [{**row, "target": None, "floor": whole}, {**row, "target": "client/0", "floor": one}]
    by_coins = {"level": 0.05, "coins": coins, "reflips": 20000, "statistics": 2}
    family = {"level": 0.05, "by_coins": by_coins, "by_themselves": None, "adjusted": adjusted}
    raw |= {"cells": [cell], "gates": [], "checks": [], "family": family}
    (finding,) = judge_all(read(raw))
    return finding


def test_too_few_coins_are_inconclusive_and_say_so() -> None:
    few = membership((None, None))
    assert few.level == "inconclusive"
    assert "Only 4 coins" in few.because
    equal_scores = membership((0.5, 0.5))
    assert equal_scores.level == "inconclusive"
    enough = membership((0.8, None), coins=40)
    assert enough.level == "none-seen"
    assert "AUC 0.80" in enough.detectable


def level_of(goal: str, *figures: dict[str, Any]) -> str:
    """Return the level that a result of one cell gets."""
    cell = {
        "id": "server/a", "protocol": "p", "adversary": "server", "attack": "a", "goal": goal, "status": "run",
        "source": "s", "figures": figures, "targets": [], "controls": {"positive": PASSED, "negative": PASSED},
    }  # fmt: skip
    (finding,) = judge_all(read(load() | {"cells": [cell], "gates": [], "checks": [], "family": None}))
    return finding.level


@pytest.mark.parametrize(
    ("high", "level"), [(1.0, "inconclusive"), (None, "inconclusive"), (0.7, "none-seen")]
)
def test_without_coins_a_baseline_must_be_beatable(high: float | None, level: str) -> None:
    low = None if high is None else 0.0
    auc = {"name": "auc", "value": 0.5, "unit": "", "low": 0.2, "high": 0.8, "n": 2}
    blind = {"name": "auc_blind", "value": 0.5, "unit": "", "low": low, "high": high, "n": 2}
    assert level_of("membership", auc, blind) == level


@pytest.mark.parametrize(("distance", "prior", "level"), [(0.0, 0.0, "inconclusive"), (0.0, 0.3, "leak")])
def test_class_shares_that_the_prior_knows_are_no_leak(distance: float, prior: float, level: str) -> None:
    measured = {"name": "label_tv", "value": distance, "unit": ""}
    known = {"name": "label_tv_prior", "value": prior, "unit": ""}
    assert level_of("label-distribution", measured, known) == level

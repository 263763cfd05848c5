"""One verdict in every place: console, first page, matrix, JSON, public page and comparison, on small data too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fdaudit.reports.comparison import ComparedRun, compare
from fdaudit.reports.document import document, to_json
from fdaudit.reports.findings import severity, shows_classes
from fdaudit.reports.goals import RULES
from fdaudit.reports.inheritance import standings
from fdaudit.reports.public import public
from fdaudit.reports.security import render_report
from fdaudit.reports.summary import summarise
from fdaudit.reports.verdict import LEVELS, SETTLED, Finding, judge_all
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fdaudit.cli.verdicts import outcome, verdicts
from fdaudit.result import Result, read

from ..helpers.report_cases import load

ADVERSARIES = ("server", "client/0", "world", "server+client/0")
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
    status = draw(
        st.sampled_from(
            ["run", "run", "run", "inconclusive", "failed", "not-applicable", "not-requested", "not-tested"]
        )
    )
    ran = status in ("run", "inconclusive")
    control = st.sampled_from([None, PASSED, FAILED])
    chosen = {name: draw(control) for name in ("positive", "negative", "power")}
    return {
        "id": f"{adversary}/{goal}-{number}",
        "protocol": "p",
        "adversary": adversary,
        "attack": f"{goal}-{number}",
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


def gravest_by_view(result: Result, findings: Sequence[Finding]) -> dict[tuple[str, str], str]:
    """The severity of each adversary and goal, of the finding that names it."""
    graded = {}
    for found in standings(result, findings):
        if found.finding is not None and found.level in ("leak", "partial"):
            word, *_ = severity(
                found.goal,
                found.level,
                found.adversary,
                of_classes=shows_classes(found.finding),
                certain=found.finding.certain,
            )
            graded[found.adversary, found.goal] = word
    return graded


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(results())
def test_every_place_has_the_same_verdict(result: Result) -> None:
    findings = judge_all(result)
    held = standings(result, findings)
    summary = summarise(result, findings)
    level_of = {(s.adversary, s.goal): s.level for s in held}

    said = "\n".join([*verdicts(result), *outcome(result)])
    for finding in findings:
        if finding.level != "not-requested":
            assert (
                f"{finding.cell.id.replace('/' + finding.cell.attack, '')} / {finding.cell.attack}: " in said
            )
    assert summary.headline in said

    made = json.loads(to_json(document(result, findings, {})))
    assert [f["level"] for f in made["findings"]] == [f.level for f in findings]
    assert made["verdict"]["level"] == summary.level
    assert {(s["adversary"], s["goal"]): s["level"] for s in made["adversaries"]} == level_of
    for row in summary.matrix:
        for entry in row.entries:
            assert entry.level == level_of[row.adversary, entry.goal]

    settled = [s.level for s in held if s.level in SETTLED]
    if "No leak was measured" in summary.headline:
        assert "none-seen" in settled
        assert set(settled) == {"none-seen"}
    if summary.level in ("leak", "partial", "possible"):
        assert summary.level == grave(settled)
    if not settled:
        assert summary.level in ("inconclusive", "not-tested")

    (compared,) = compare([ComparedRun(name="one", result=result)]).rows
    for each in compared.outcomes:
        levels = [s.level for s in held if s.goal == each.goal]
        shown = "not-requested" if each.finding is None else each.finding.level
        if shown in ("leak", "partial", "possible") or grave(levels) in ("leak", "partial", "possible"):
            assert shown == grave(levels)
        if shown == "none-seen":
            assert "none-seen" in levels

    less, hidden = public(result)
    assert gravest_by_view(less, hidden) == gravest_by_view(result, findings)
    for before, after in zip(_in_order(findings, hidden), hidden, strict=True):
        if before.level == "possible":
            assert after.level in ("none-seen", "inconclusive")
            assert after.level != "none-seen" or not before.blind
        else:
            assert after.level == before.level
    assert summarise(less, hidden).level == _without_possible(summary.level) or "possible" in [
        f.level for f in findings
    ]
    assert less.unfinished == result.unfinished


def _in_order(findings: Sequence[Finding], hidden: Sequence[Finding]) -> list[Finding]:
    by_id = {f.cell.id: f for f in findings}
    return [by_id[f.cell.id] for f in hidden]


def _without_possible(level: str) -> str:
    return "inconclusive" if level == "possible" else level


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(results())
def test_every_page_can_be_drawn(result: Result) -> None:
    page = render_report(result, Path(), {})
    less, _ = public(result)
    shared = render_report(less, Path(), {})
    if result.unfinished is not None:
        for text in (page, shared):
            assert result.unfinished.words in text
            assert "no attack was tried" not in text


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


@pytest.mark.parametrize(
    ("high", "level"), [(1.0, "inconclusive"), (None, "inconclusive"), (0.7, "none-seen")]
)
def test_without_coins_a_baseline_must_be_beatable(high: float | None, level: str) -> None:
    raw = load()
    figures = [
        {"name": "auc", "value": 0.5, "unit": "", "low": 0.2, "high": 0.8, "n": 2},
        {
            "name": "auc_blind",
            "value": 0.5,
            "unit": "",
            "low": None if high is None else 0.0,
            "high": high,
            "n": 2,
        },
    ]
    cell = {
        "id": "server/a", "protocol": "p", "adversary": "server", "attack": "a", "goal": "membership", "status": "run",
        "source": "s", "figures": figures, "targets": [], "controls": {"positive": PASSED, "negative": PASSED},
    }  # fmt: skip
    (finding,) = judge_all(read(raw | {"cells": [cell], "gates": [], "checks": [], "family": None}))
    assert finding.level == level


@pytest.mark.parametrize(("distance", "prior", "level"), [(0.0, 0.0, "inconclusive"), (0.0, 0.3, "leak")])
def test_class_shares_that_the_prior_knows_are_no_leak(distance: float, prior: float, level: str) -> None:
    raw = load()
    figures = [
        {"name": "label_tv", "value": distance, "unit": ""},
        {"name": "label_tv_prior", "value": prior, "unit": ""},
    ]
    cell = {
        "id": "server/a", "protocol": "p", "adversary": "server", "attack": "a", "goal": "label-distribution",
        "status": "run", "source": "s", "figures": figures, "targets": [],
        "controls": {"positive": PASSED, "negative": PASSED},
    }  # fmt: skip
    (finding,) = judge_all(read(raw | {"cells": [cell], "gates": [], "checks": [], "family": None}))
    assert finding.level == level

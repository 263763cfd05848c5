"""The front page: findings with severity and remedy, what ε may be stated, and what was not tested."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from fdaudit.reports.judgement.inheritance import standings
from fdaudit.reports.judgement.severity import ACCESS, SEVERITIES, severity
from fdaudit.reports.judgement.verdict import judge_all
from fdaudit.reports.run.annex import annex
from fdaudit.reports.run.front import front
from fdaudit.reports.run.security import render_report
from fdaudit.reports.run.summary import summarise

from fdaudit.goals import GOALS
from fdaudit.planning.ladder import LADDER
from fdaudit.result import read

from ..helpers.report_cases import FIXTURES, Document, load


def front_of(raw: dict[str, Any]) -> Any:
    result = read(raw)
    return front(result)


def test_every_leak_is_in_a_finding_the_gravest_first() -> None:
    result = read(load())
    findings = judge_all(result)
    leaks = {(s.adversary, s.goal) for s in standings(result, findings) if s.level in ("leak", "partial")}
    told = {(a, goal) for f in front(result).findings for a in f.adversaries for goal in f.goals}
    assert leaks
    assert leaks <= told
    made = front_of(load())
    order = [SEVERITIES.index(f.severity) for f in made.findings]
    assert order == sorted(order)
    assert len(made.findings) > 1
    ids = {cell["id"] for cell in load()["cells"]}
    assert {f.strongest.cell.id for f in made.findings} <= ids


@pytest.mark.parametrize(
    ("goal", "level", "adversary", "release", "expected"),
    [
        ("reconstruction", "leak", "world", None, "critical"),
        ("reconstruction", "leak", "world", "internal", "medium"),
        ("reconstruction", "leak", "server", None, "high"),
        ("membership", "leak", "world", "public-weights", "high"),
        ("membership", "partial", "server", None, "medium"),
        ("membership", "partial", "server+client/0", None, "low"),
        ("label-distribution", "leak", "eavesdropper", None, "medium"),
        ("label-distribution", "partial", "client/3", None, "low"),
        ("of-another-system", "leak", "aggregator", None, "medium"),
    ],
)
def test_severity_is_impact_times_access_times_strength(
    goal: str, level: Any, adversary: str, release: str | None, expected: str
) -> None:
    assert severity(goal, level, adversary, release).word == expected


def test_certainty_outranks_an_average_and_a_record_what_classes_look_like() -> None:
    assert severity("reconstruction", "partial", "world").word == "high"
    assert severity("reconstruction", "partial", "world", of_classes=True).word == "medium"
    assert severity("membership", "leak", "world", certain=True).word == "critical"
    assert severity("reconstruction", "leak", "server", certain=True).word == "critical"
    assert severity("membership", "leak", "server", certain=True).strength == 3
    average = severity("membership", "partial", "server")
    assert severity("membership", "partial", "server", certain=True) == average


def test_more_impact_or_easier_access_is_never_less_severe() -> None:
    for adversary in ("world", "server", "client/0", "eavesdropper", "server+client/0"):
        ranks = [
            SEVERITIES.index(severity(goal, "leak", adversary).word)
            for goal in sorted(GOALS, key=lambda g: -GOALS[g].impact)
        ]
        assert ranks == sorted(ranks)
        for goal in GOALS:
            leak, partial = (severity(goal, level, adversary).word for level in ("leak", "partial"))  # type: ignore[arg-type]
            assert SEVERITIES.index(leak) <= SEVERITIES.index(partial)
    assert max(access for access, _ in ACCESS.values()) == ACCESS["world"][0]


RELEASE = {"kind": "release", "sender": "client", "mechanism": "Gaussian", "charges": 1, "epsilon": 1.5}
ENTRY = {"adversary": "server", "epsilon": 1.5, "delta": 1e-5, "unit": "record", "relation": "add-or-remove"}


def test_a_contradicted_ledger_lets_nobody_state_an_epsilon() -> None:
    raw = load()
    raw["ledger"] = [ENTRY | {"contributions": [RELEASE]}]
    (claim,) = front_of(raw).claims
    for said in ("server", "ε of at", "1.500", "1e−05", "one record", "add-or-remove"):
        assert said in claim
    check = {
        "adversary": "server",
        "claimed": 1.5,
        "verdict": "contradicted",
        "reason": "r",
        "confidence": 0.95,
    }
    none, contradicted = front_of(raw | {"checks": [check | {"bound": 3.0}]}).claims
    assert none.startswith("No ε")
    assert "Attacks contradict" in contradicted
    assert "1.500" not in none + contradicted


@pytest.mark.parametrize(
    ("departing", "expected"),
    [
        ([("server", True), ("client", True)], ""),
        ([("server", False), ("client", True)], "if the server"),
        ([("server", True), ("client", False)], "if all other clients"),
        (
            [("aggregator", False), ("client", False), ("client", False)],
            "if the aggregator and all other clients",
        ),
    ],
)
def test_a_claim_says_who_must_follow_the_protocol(departing: list[tuple[str, bool]], expected: str) -> None:
    raw = load()
    against = [
        {"departs": who, "number": 1, "holds": holds, "epsilon": 1.5 if holds else None}
        for who, holds in departing
    ]
    raw["ledger"], raw["checks"] = [ENTRY | {"contributions": [RELEASE], "against": against}], []
    condition = front_of(raw).claims[0].partition("add-or-remove.")[2]
    assert expected in condition
    assert bool(condition) == bool(expected)
    result = read(raw)
    reasons = [reason.text for reason in summarise(result).reasons if "ε is at most" in reason.text]
    trusted = [i.what for i in annex(result) if i.asked in ("Trust model", "DP setting: who must be trusted")]
    assert len(reasons) == 1
    assert len(trusted) == 2
    assert all(text.endswith(f".{condition}") for text in (*reasons, *trusted))


def test_a_world_that_is_given_no_model_has_no_epsilon_of_0() -> None:
    exposure = [row for row in load()["exposure"] if row["party"] != "world"]
    raw = load() | {"ledger": [ENTRY | {"adversary": "world", "epsilon": 0.0}], "exposure": exposure}
    raw["run"]["release"] = None
    page = front_of(raw)
    (claim,) = page.claims
    assert "no model" in claim
    assert "no ε is" in claim
    assert not any("(release)" in line for line in page.untested)


def test_the_first_message_without_a_guarantee_is_said_to_be_derived_from_not_received() -> None:
    cause = "class_counts of client/0 in round 1 (message 0): computed from raw data, without a guarantee"
    entry = {"adversary": "server", "epsilon": None, "unit": "record", "relation": "add-or-remove"}
    entry["cause"] = f"{cause}, which reaches the view through what was computed from it"
    told = front_of(load() | {"ledger": [entry]}).claims
    assert "client/0 sends class_counts" in told[-1]
    assert "(message 0)" in told[-1]


def test_what_was_not_tested_is_counted() -> None:
    raw = load()
    said = " ".join(front_of(raw).untested)
    levels = [f.level for f in judge_all(read(raw))]
    assert f"clear nobody: {levels.count('inconclusive')} inconclusive" in said
    standing = summarise(read(raw)).standing
    assert f"{levels.count('not-applicable')} do not apply" in standing
    assert f"run with the {raw['run']['profile']}" in said


def test_coalitions_add_no_finding_where_a_part_can_do_as_much() -> None:
    raw = load()
    leak = next(c for c in raw["cells"] if c["id"].startswith("server/") and c["figures"])
    name = "server+client/0"
    both = json.loads(json.dumps(leak)) | {"id": f"{name}/{leak['attack']}", "adversary": name}
    with_both = front_of(raw | {"cells": [*raw["cells"], both]}).findings
    assert len(with_both) == len(front_of(raw).findings)
    assert all("with client/0" not in f.what for f in with_both)


def leaking(adversaries: dict[str, float]) -> Any:
    """A result with one leak on membership an adversary, whose AUCs differ by these amounts."""
    raw = load()
    leak = next(c for c in raw["cells"] if c["id"] == "world/loss-threshold")
    raw["cells"], raw["views"] = [], []
    for adversary, more in adversaries.items():
        cell = json.loads(json.dumps(leak)) | {"id": f"{adversary}/loss-threshold", "adversary": adversary}
        for figures in (cell["figures"], *(t["figures"] for t in cell["targets"])):
            for figure in figures:
                if figure["name"].startswith("auc"):
                    figure["value"] += more
        raw["cells"].append(cell)
    return read(raw)


@pytest.mark.parametrize(("more", "findings"), [(0.0, 1), (0.01, 2)])
def test_adversaries_share_a_finding_only_if_they_share_its_evidence(more: float, findings: int) -> None:
    result = leaking({"client/0": 0.0, "client/1": more})
    found = front(result).findings
    assert len(found) == findings
    for one in found:
        for adversary in one.adversaries:
            (cell,) = [c for c in result.cells if c.adversary == adversary]
            (auc,) = [f for f in cell.figures if f.name == "auc"]
            assert f"AUC {auc.value:.3f}" in one.evidence


def test_the_evidence_of_a_coalition_is_not_that_of_its_member() -> None:
    result = leaking({"server": 0.0, "server+client/0": 0.01})
    (found,) = front(result).findings
    assert found.strongest.cell.adversary == "server"
    assert set(found.adversaries) == {"server", "server+client/0"}


def test_a_possible_leak_is_told_as_open() -> None:
    raw = leaking({"client/0": 0.0}).model_dump(mode="json", by_alias=True)
    raw["cells"] += [raw["cells"][0] | {"id": f"client/1/{i}", "adversary": "client/1"} for i in range(40)]
    raw["family"] = None
    for cell in raw["cells"]:
        cell["targets"] = []
        cell["figures"] = [f | {"p": 0.004} for f in cell["figures"] if f["name"] == "auc"]
    result = read(raw)
    findings = judge_all(result)
    possible = sum(f.level == "possible" for f in findings)
    assert possible
    assert any(line.startswith(f"{possible} membership tests") for line in front(result).untested)


@pytest.mark.parametrize("public", [False, True])
def test_a_model_near_chance_is_in_the_headline(public: bool) -> None:
    raw = load()
    raw["utility"]["warnings"] = ["The model of the server ends near chance: it has 10.4 %."]
    text = Document(render_report(read(raw), FIXTURES, {}, public=public)).sections["summary"]
    assert "near chance" in text
    assert ("10.4 %" in text) != public


def test_the_page_shows_as_many_findings_as_it_has_room_for() -> None:
    made = leaking({"server": 0.0})
    page = front(made)
    finding = page.findings[0]
    many = replace(page, findings=(finding,) * 20)
    assert 1 < len(many.shown) <= 7
    long = replace(finding, evidence=finding.evidence * 6)
    assert len(replace(page, findings=(long,) * 20).shown) < len(many.shown)
    assert len(replace(many, claims=("ε " * 600,)).shown) < len(many.shown)
    assert len(replace(many, adversaries=60).shown) == 1
    assert len(replace(many, above=20).shown) < len(many.shown)
    assert summarise(made).front.above >= 3  # the headline, the first action and the scope


def test_severity_is_the_product_that_is_printed() -> None:
    for finding in front_of(load()).findings:
        impact, access, strength = finding.factors
        marks = ((24, "critical"), (12, "high"), (5, "medium"), (1, "low"))
        assert finding.severity == next(word for least, word in marks if impact * access * strength >= least)
        assert finding.because.startswith(f"impact {impact} × access {access} (")
        assert finding.because.endswith(f" × strength {strength}")


@pytest.mark.parametrize(("adversaries", "drawn"), [(3, 3), (7, 5)])
def test_the_five_gravest_findings_have_their_figures(adversaries: int, drawn: int) -> None:
    made = leaking({f"client/{k}": k / 1000 for k in range(adversaries)})
    page = render_report(made, FIXTURES, {})
    findings = page[page.index('<section id="findings"') :].partition("</section>")[0]
    assert findings.count('<article class="cell"') == adversaries
    assert findings.count("<figure") == drawn
    assert ("their full evidence" in findings) == (adversaries > 5)


@pytest.mark.parametrize("there", [True, False])
def test_a_record_without_auxiliary_records_asks_for_them_first(there: bool) -> None:
    raw = load()
    (cell,) = (c for c in raw["cells"] if c["id"] == "server/dlg")
    targets = [{**target, "figures": [], "images": []} for target in cell["targets"]]
    raw["cells"] = [{**cell, "figures": [], "targets": targets, "controls": None}]
    raw["gates"] = []
    rung = {"bring": "auxiliary records", "buys": "controls", "there": there}
    said = {"system": "s", "asserted_by": "me", "closed": True, "design": "observational", "ladder": [rung]}
    raw["run"]["recording"] = said
    result = read(raw)
    summary = summarise(result)
    assert summary.level == "inconclusive"
    assert ("auxiliary records" in summary.headline) == (not there)
    assert ("bring auxiliary records" in summary.actions[0].do) == (not there)
    assert any("No auxiliary records" in note for note in summary.notes) == (not there)
    assert not any(note.endswith("..") for note in summary.notes)


def test_the_rung_of_auxiliary_records_has_the_name_that_reports_look_for() -> None:
    assert "auxiliary records" in [bring for bring, _, _ in LADDER]

"""Findings name those for whom a leak was found, and the evidence that carries it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from fdaudit.reports.goals import RULES
from fdaudit.reports.judgement.judgement import judgement_of
from fdaudit.reports.judgement.remedies import ENCRYPT
from fdaudit.reports.judgement.verdict import judge_all
from fdaudit.reports.run.actions import Action, actions
from fdaudit.reports.run.findings import FrontFinding
from fdaudit.reports.run.front import front
from fdaudit.reports.run.security import render_report
from fdaudit.reports.run.summary import summarise

from fdaudit.goals import GOALS
from fdaudit.result import Cell, Control, Controls, LedgerEntry, Remedy, Result, Unfinished
from fdaudit.types import Figure

from ..helpers.report_cases import FIXTURES, Document, figures_in
from .test_inheritance import cell, received, result
from .test_verdict import PASSED, figure


def test_a_finding_names_whom_any_attack_of_its_adversary_finds() -> None:
    victims = ("client/0", "client/1", "client/2")
    made = result([cell("server", "leak", "a", victims[:1]), cell("server", "leak", "b", victims[1:2])])
    (finding,) = front(made).findings
    assert figures_in(finding.affected) == ["0", "1", "1"]  # client/0 and client/1; 1 other
    made = result([cell("server", "leak", "a"), cell("server", "leak", "b", victims[2:])])
    (finding,) = front(made).findings
    assert figures_in(finding.affected) == ["3", "2"]  # all 3 pooled; client/2 alone


def test_evidence_leads_with_one_victim_or_counts_the_pairs_of_all() -> None:
    made = result([cell("server", "leak", affected=("client/2",))])
    (finding,) = front(made).findings
    alone, together = finding.evidence.split("; ")
    assert "client/2" in alone
    assert "no leak" in together
    assert re.search(r"client/2 \(decided.* 70\.0.*10\.0.*0\.0001", with_rate(0.02, 1e-9))
    assert "decided by" not in with_rate(1e-9, 1e-9)  # the AUC alone would have
    made = cell("server", "leak")
    pooled = tuple(replace(f, n=96) for f in made.figures)
    (finding,) = front(result([made.model_copy(update={"figures": pooled})])).findings
    together, alone = finding.evidence.split("; ")
    assert "96 pairs" in together
    assert re.search(r"client/\d, .*no leak", alone)


def test_what_encryption_stops_names_the_affected_clients_by_goal() -> None:
    both = [cell("eavesdropper", "leak", affected=("client/0",)), cell("eavesdropper", "leak", "b")]
    single = figure("agreement_gain", 0.1, -0.1, 0.2, p=1.0)
    each = tuple(t.model_copy(update={"figures": (single,)}) for t in both[1].targets)
    other = both[1].model_copy(update={"goal": "model-extraction", "figures": copying(), "targets": each})
    made = result([both[0], other])
    (finding,) = front(made).findings
    membership, extraction = finding.affected.split(". ")
    assert membership.startswith("Membership: client/0;")
    assert re.match(r"Model extraction: all\s3", extraction)
    assert re.search(r"\bb:.*\b20\.0\b.*\b0\.950\b", finding.evidence)
    (alone,) = front(result([other])).findings
    assert re.search(r"\(0\.950.*decided by.*0\.0001", alone.evidence)
    assert "(" not in finding.clause


def copying() -> tuple[Figure, ...]:
    gain = figure("agreement_gain", 0.2, -0.01, 0.3, p=1e-9)
    return gain, figure("agreement", 0.95, 0.9, 0.97)


def with_rate(auc_p: float, rate_p: float, victim: str = "client/2") -> str:
    """The evidence of a finding about one victim, by the p-values of its AUC and of its true-positive rate."""
    base = cell("server", "none-seen")
    auc, rate = figure("auc", 0.87, 0.64, 0.97, p=auc_p), figure("tpr_at_10fpr", 0.7, 0.5, 0.9, p=rate_p)
    quiet = figure("auc", 0.5, 0.4, 0.6, p=0.5)
    targets = tuple(
        t.model_copy(update={"figures": (auc, rate) if t.target == victim else (quiet,)})
        for t in base.targets
    )
    made = result([base.model_copy(update={"figures": (quiet,), "targets": targets})])
    (finding,) = front(made).findings
    return finding.evidence


def test_evidence_of_a_group_shows_what_decided_for_each_victim_alone() -> None:
    """Another victim than the one with the largest AUC can be the one for whom a leak was shown."""
    base = cell("server", "none-seen")
    auc, rate = figure("auc", 0.71, 0.64, 0.77, p=1e-9), figure("tpr_at_10fpr", 0.562, 0.4, 0.7, p=0.001)
    figures = {
        "client/0": (figure("auc", 0.779, 0.5, 0.9, p=0.9),),
        "client/1": (figure("auc", 0.771, 0.5, 0.9, p=0.9), rate),
        "client/2": (figure("auc", 0.6, 0.5, 0.7, p=0.9),),
    }
    targets = tuple(t.model_copy(update={"figures": figures[t.target]}) for t in base.targets)
    made = result([base.model_copy(update={"figures": (auc,), "targets": targets})])
    (finding,) = front(made).findings
    assert figures_in(finding.affected) == ["3", "1"]  # all 3 pooled; client/1 alone
    _, decisive, largest = finding.evidence.split("; ")
    assert re.match(r"0\.771.*client/1.*decided by 56\.2.*10\.0.*0\.005", decisive)
    assert re.search(r"0\.779.*client/0, not significant", largest)


def test_a_weaker_leak_of_everybody_does_not_hide_who_is_shown_alone() -> None:
    """An eavesdropper for whom single clients stand out has more than the world, which tells only all together."""
    victims = ("client/0", "client/1")
    made = result([cell("world", "leak"), cell("eavesdropper", "leak", affected=victims)])
    rows = {row.adversary: row.entries[0].note for row in summarise(made).matrix}
    assert rows == {"world": "", "eavesdropper": ""}
    assert len(front(made).findings) == 2
    made = result(
        [cell("world", "leak", affected=victims), cell("eavesdropper", "leak", affected=victims[:1])]
    )
    assert len(front(made).findings) == 1


def test_a_finding_rests_on_an_attack_whose_controls_passed_if_one_found_as_much() -> None:
    strong = cell("server", "leak", "strong")
    failed = Controls(positive=Control(what="overfit", passed=False), negative=PASSED.negative)
    more = (figure("auc", 0.92, 0.8, 1.0),)
    weak = cell("server", "leak", "weak").model_copy(
        update={"controls": failed, "status": "inconclusive", "reason": "r", "figures": more}
    )
    both, alone = result([weak, strong]), result([weak])
    (finding,) = front(both).findings
    assert (finding.strongest.cell.attack, finding.caution) == ("strong", "")
    (finding,) = front(alone).findings
    assert "of weak failed" in finding.caution
    assert finding.caution in render_report(alone, FIXTURES, {})


def test_the_headline_is_sure_beyond_doubt_and_counts_the_other_findings() -> None:
    def clause(low: float) -> str:
        made = cell("server", "leak")
        made = made.model_copy(update={"figures": (figure("auc", 0.99, low, 1.0),)})
        return front(result([made])).findings[0].what

    assert clause(0.97) == f"The server {RULES['membership'].leaked}"
    assert clause(0.9) == f"The server {RULES['membership'].likely}"
    made = result([cell("server", "leak"), cell("client/0", "leak", "b"), cell("aggregator", "partial")])
    assert figures_in(summarise(made).headline.rpartition(". ")[2]) == ["2", "1"]
    made = result([cell("server", "leak"), cell("aggregator", "partial")])
    assert figures_in(summarise(made).headline.rpartition(". ")[2]) == ["1"]
    # The widest finding is named beside the gravest only if it is high or worse.
    made = result([cell("server", "leak"), cell("world", "partial")])
    assert "released model" not in summarise(made).headline


def test_a_coalition_s_leak_says_which_part_can_do_as_much() -> None:
    made = result([cell("server", "leak"), cell("server+client/0", "leak")])
    server, coalition = (row.entries[0].note for row in summarise(made).matrix)
    assert (server, "server alone" in coalition) == ("", True)
    made = result([cell("server", "partial"), cell("server+client/0", "leak")])
    assert not any(row.entries[0].note for row in summarise(made).matrix)


def test_the_page_says_from_how_many_tests_and_for_which_findings_its_first_action_comes() -> None:
    made = result([cell("server", "leak")])
    assert summarise(made).first_is_all
    made = result([cell("server", "leak"), cell("eavesdropper", "leak")])
    page = summarise(made)
    assert not page.first_is_all
    assert page.actions[0].do == page.front.findings[0].remedy.do
    made = result([cell("server", "leak"), cell("world", "not-tested")])
    early = made.model_copy(update={"unfinished": Unfinished(done=1, of=2)})
    page = Document(render_report(early, FIXTURES, {}))
    assert re.search(r"Do first,.*1\sof\s2\b", page.sections["summary"])
    assert "Do first:" in Document(render_report(made, FIXTURES, {})).sections["summary"]


def test_the_first_action_serves_those_who_take_part_and_says_for_which_finding() -> None:
    page = summarise(result([cell("server", "leak"), cell("eavesdropper", "leak")]))
    assert page.first_for == ""
    other, gravest = (replace(page.front.findings[n], remedy=Remedy(do=f"{n}", why="")) for n in (1, 0))
    listens = replace(other, outcome="worked", remedy=ENCRYPT)

    def first(*found: FrontFinding) -> tuple[str, str]:
        made = replace(page, front=replace(page.front, findings=found), actions=actions_for(found))
        return made.actions[0].do, made.first_for

    assert first(replace(gravest, outcome="stays"), listens) == ("0", "")
    assert first(replace(gravest, outcome="useless"), listens) == (ENCRYPT.do, listens.brief)
    assert first(replace(gravest, outcome="stays"), replace(other, outcome="worked")) == ("1", other.brief)


def actions_for(found: Sequence[FrontFinding]) -> tuple[Action, ...]:
    return tuple(actions(result([]), [], found))


def test_an_effect_that_was_said_above_the_table_is_not_said_again() -> None:
    (finding,) = front(result([cell("server", "leak")])).findings
    tried = replace(finding, effect="Tried: noise: " + "AUC 0.9 to 0.5; " * 20)
    assert tried.beyond(tried.effect) == "Tried: see above."
    assert tried.lines(tried.effect) < tried.lines("") == tried.lines("something else")
    assert finding.beyond("anything") == finding.effect == ""


def test_encryption_is_no_remedy_for_what_everybody_gets() -> None:
    made = result([cell("world", "leak"), cell("eavesdropper", "leak")])
    (finding,) = front(made).findings
    assert set(finding.adversaries) == {"world", "eavesdropper"}
    assert "Encrypt" not in finding.remedy.do
    hears_more = cell("eavesdropper", "leak")
    sure = figure("auc", 0.99, 0.97, 1.0, p=1e-9)
    targets = tuple(t.model_copy(update={"figures": (sure,)}) for t in hears_more.targets)
    hears_more = hears_more.model_copy(update={"figures": (sure,), "targets": targets})
    made = result([cell("world", "leak"), hears_more])
    assert [f.remedy == ENCRYPT for f in front(made).findings].count(True) == 1
    made = result([cell("world", "none-seen"), cell("eavesdropper", "leak")])
    (alone,) = front(made).findings
    assert alone.remedy == ENCRYPT


@pytest.mark.parametrize(
    ("adversaries", "tried"),
    [
        (("server", "client/0"), ["client/0"]),
        (("server+client/0",), ["server+client/0"]),
        (
            ("client/0", "client/1", "server+client/1", "aggregator+client/0"),
            ["client/0", "client/1", "server+client/1", "aggregator+client/0"],
        ),
    ],
)
def test_adversaries_that_were_not_tried_are_told(adversaries: tuple[str, ...], tried: list[str]) -> None:
    made = result([cell(a, "none-seen") for a in adversaries])
    (said,) = (text for text in front(made).untested if text.startswith("Tried as adversaries:"))
    assert re.findall(r"[\w+]*client/\d", said) == tried
    assert ("no client" in said) == ("client/0" not in tried)
    assert ("no parties" in said) == (not any("+" in name for name in tried))


def test_rates_that_candidates_are_too_few_for_are_told() -> None:
    base = cell("server", "none-seen")
    rates = (figure("tpr_at_10fpr", 0.1, 0.0, 0.3), figure("tpr_at_1fpr", None))
    targets = tuple(t.model_copy(update={"figures": (*t.figures, *rates)}) for t in base.targets)

    def told(made: Cell) -> str:
        return " ".join(front(result([made])).untested)

    known = told(base.model_copy(update={"targets": targets}))
    assert re.search(r"false-positive rate measured:\s10\.0\b", known)
    assert "false-positive rate" not in told(base)


def test_findings_that_have_no_room_are_counted_by_severity() -> None:
    made = result([cell("server", "leak"), cell("eavesdropper", "partial")])
    page = front(made)
    assert page.more == ""
    crowded = replace(page, findings=(*page.findings * 5, *[page.findings[-1]] * 2))
    left = crowded.findings[len(crowded.shown) :]
    assert crowded.more.startswith(f"{len(left)} more ")
    assert sum(int(n) for n in re.findall(r"(\d+) (?:critical|high|medium|low)", crowded.more)) == len(left)
    grave = sum(f.severity in ("critical", "high") for f in left)
    assert grave
    assert len(crowded.grave) == grave
    assert len(set(crowded.grave)) == 1
    severity, brief, affected, remedy = crowded.grave[0].split(" · ")
    assert (severity.lower(), brief) == (page.findings[0].severity, page.findings[0].brief)
    assert ("all 3" in affected, "`dp-sgd`" in remedy) == (True, True)
    assert len(replace(crowded, findings=page.findings[:1] * 40).shown) < len(crowded.shown)


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (("its view has no gradient", "no message is a model"), "Not tested"),
        (("the victims' models themselves are in view: there is nothing to copy",), "Already held"),
        (("its view has no gradient",), "Not tested"),
    ],
)
def test_a_goal_without_a_fitting_attack_reads_as_untested_and_a_model_in_view_as_held(
    reasons: tuple[str, ...], words: str
) -> None:
    row = received("server", "logits", "client/0")
    base = cell("server", "not-applicable").model_copy(update={"goal": "model-extraction"})
    untried = [base.model_copy(update={"attack": f"b-{n}", "reason": r}) for n, r in enumerate(reasons)]
    made = result([cell("server", "leak"), *untried]).model_copy(update={"exposure": (row,)})
    (shown,) = summarise(made).matrix
    assert [entry.words for entry in shown.entries] == ["Leak", words]


def test_a_finding_about_classes_leads_with_the_share_of_pictures_that_are_recognised() -> None:
    """The gain in decibels does not decide about pictures of classes, and does not say that they can be recognised."""
    shown = (
        figure("psnr_gain", 2.0, 1.5, 2.5),
        replace(figure("evaluator_accuracy", 0.9, 0.7, 1.0, p=1e-9), unit="fraction"),
        replace(figure("evaluator_chance", 0.2, None, None), unit="fraction"),
    )
    base = cell("server", "leak")
    targets = tuple(t.model_copy(update={"figures": shown}) for t in base.targets)
    told = base.model_copy(update={"goal": "reconstruction", "figures": shown, "targets": targets})
    made = result([told])
    page = summarise(made)
    (finding,) = page.front.findings
    assert re.match(r"a: 90\.0.*recognised, 20\.0", finding.evidence)
    assert re.search(r"classes.*\(90\.0", finding.brief)
    assert [entry.words for entry in page.matrix[0].entries] == ["Partial: classes"]
    unsure = tuple(replace(f, low=0.1) if f.name == "evaluator_accuracy" else f for f in shown)
    made = result([told.model_copy(update={"figures": unsure})])
    assert "recognised" not in front(made).findings[0].evidence


def test_defences_that_ran_and_give_no_epsilon_are_named() -> None:
    row = received("server", "logits", "client/0", defenses=("uniform-quantization",))
    entry = LedgerEntry(
        adversary="server", epsilon=None, unit="record", relation="add-or-remove", cause="logits"
    )
    base = result([cell("server", "leak")]).model_copy(update={"exposure": (row,)})
    for ledger, said in (((entry,), True), ((), False)):
        made = base.model_copy(update={"ledger": ledger})
        claims = " ".join(front(made).claims)
        assert ("uniform-quantization on logits" in claims) == said


def all_possible(made: Result) -> Result:
    """The same result, judged as if each cell had a possible leak."""
    findings = [replace(finding, level="possible") for finding in judge_all(made)]
    return made.model_copy(update={"judgement": judgement_of(made, findings)})


def test_possible_leaks_are_counted_by_what_would_settle_them_if_there_are_any() -> None:
    made = result([cell("server", "leak")])
    assert "possible leak" not in summarise(made).standing
    assert "1 a possible" in summarise(all_possible(made)).standing
    made = result([cell("server", "leak"), cell("client/0", "leak")])
    (said,) = (text for text in front(all_possible(made)).untested if "open" in text)
    assert said.startswith("2 membership tests")
    assert GOALS["membership"].settled_by in said


def test_tests_are_counted_by_whether_they_ran_and_their_controls() -> None:
    made = result([cell("server", "leak"), cell("client/0", "not-applicable"), cell("world", "failed")])
    said = summarise(made).standing
    possible, ran = said.split(". ")[:2]
    assert figures_in(possible) == ["3", "1"]
    assert "clears nobody" in possible
    assert figures_in(ran) == ["2", "1", "0", "0", "1"]  # ran: leak, partial, none; no answer
    failed = Controls(positive=Control(what="overfit", passed=False), negative=PASSED.negative)
    leak = cell("server", "leak", "b").model_copy(
        update={"controls": failed, "status": "inconclusive", "reason": "r"}
    )
    made = result([cell("server", "inconclusive"), leak])
    said = front(made).untested[0]
    assert re.findall(r"clear nobody|inconclusive|\d+", said) == ["clear nobody", "2", "inconclusive", "1"]


def test_what_was_not_asked_for_or_did_not_apply_is_not_tested() -> None:
    made = result([cell("server", "leak"), cell("client/0", "not-requested")])
    words = {row.adversary: row.entries[0].words for row in summarise(made).matrix}
    assert words["client/0"] == "Not requested"
    made = result([cell("server", "leak"), cell("client/0", "not-applicable")])
    assert "no client" in " ".join(front(made).untested)

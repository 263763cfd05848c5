"""Findings name those for whom a leak was found, and the evidence that carries it."""

from __future__ import annotations

import re

from fdaudit.reports.front import front
from fdaudit.reports.verdict import judge_all

from fdaudit.types import Figure

from .test_inheritance import cell, result
from .test_verdict import figure


def test_a_finding_names_whom_any_attack_of_its_adversary_finds() -> None:
    victims = ("client/0", "client/1", "client/2")
    made = result([cell("server", "leak", "a", victims[:1]), cell("server", "leak", "b", victims[1:2])])
    (finding,) = front(made, judge_all(made)).findings
    assert finding.affected == "client/0 and client/1; 1 other not cleared"
    made = result([cell("server", "leak", "a"), cell("server", "leak", "b", victims[2:])])
    (finding,) = front(made, judge_all(made)).findings
    assert finding.affected == "all 3 attacked clients as a group; alone: client/2"


def test_evidence_of_one_victim_leads_with_that_victim() -> None:
    made = result([cell("server", "leak", affected=("client/2",))])
    (finding,) = front(made, judge_all(made)).findings
    assert re.match(
        r"a: AUC \S+ \[.*\] for client/2; .* for all together, which is no leak\.", finding.evidence
    )


def test_what_encryption_stops_names_the_affected_clients_by_goal() -> None:
    both = [cell("eavesdropper", "leak", affected=("client/0",)), cell("eavesdropper", "leak", "b")]
    single = figure("agreement_gain", 0.1, -0.1, 0.2, p=1.0)
    each = tuple(t.model_copy(update={"figures": (single,)}) for t in both[1].targets)
    other = both[1].model_copy(update={"goal": "model-extraction", "figures": copying(), "targets": each})
    made = result([both[0], other])
    (finding,) = front(made, judge_all(made)).findings
    assert finding.affected == (
        "Membership: client/0; 2 others not cleared. Model extraction: all 3 attacked clients as a group."
    )
    assert "above the baseline (0.950 in all) (significant by its test)" in finding.evidence
    assert "(" not in finding.clause


def copying() -> tuple[Figure, ...]:
    gain = figure("agreement_gain", 0.2, -0.01, 0.3, p=1e-9)
    return gain, figure("agreement", 0.95, 0.9, 0.97)

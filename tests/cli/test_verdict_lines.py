"""The verdict of each cell on the console: the words of the report, and the victim that leaks most."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fdaudit.reports.judgement.inheritance import standings
from fdaudit.reports.judgement.verdict import LEVELS, judge_all
from fdaudit.reports.run.matrix import attack_matrix
from fdaudit.reports.run.summary import summarise

from fdaudit.cli.app import _summary
from fdaudit.cli.verdicts import outcome, profile_words, verdicts
from fdaudit.result import read

from ..helpers.cli_cases import Shell

RAW = json.loads((Path(__file__).parents[1] / "fixtures" / "result.json").read_bytes())
RESULT = read(RAW)


def test_the_lines_are_the_report_s_verdicts() -> None:
    findings = [f for f in judge_all(RESULT) if f.level != "not-requested"]
    lines = list(verdicts(RESULT))
    views = [s for s in standings(RESULT, judge_all(RESULT)) if s.level == "not-tested"]
    assert len(lines) == len(findings) + len(views)
    for standing, line in zip(views, lines[len(findings) :], strict=True):
        assert line == f"{standing.adversary}, {standing.goal}: not tested. {standing.untested}"
    for finding, line in zip(findings, lines, strict=False):
        head = f"{finding.cell.adversary} / {finding.cell.attack}: {LEVELS[finding.level].lower()}"
        assert line.startswith(head)
        if finding.level in ("leak", "partial"):
            assert finding.worst is not None
            told = next(iter(finding.decided_by.values()), "")
            assert line.endswith(told or f"({finding.worst.target})")
    assert {f.level for f in findings} >= {"leak", "none-seen"}


def test_only_the_named_cells_are_shown() -> None:
    wanted = RESULT.cells[0].id
    (line,) = verdicts(RESULT, {wanted})
    assert line == next(iter(verdicts(RESULT)))


@pytest.mark.usefixtures("forked_processes")
def test_run_and_attack_print_them(tmp_path: Path, shell: Shell) -> None:
    spec = shell.spec(attacks=[{"name": "loss-threshold"}])
    out, _ = shell.told("run", spec, "--out", "here", "--no-report", "--verbose")
    (line,) = [x for x in out.splitlines() if x.startswith("server / loss-threshold: ")]
    result = read(json.loads((shell.home / "here" / "result.json").read_bytes()))
    assert line in list(verdicts(result))
    out, _ = shell.told("attack", "here", "loss-threshold")
    assert out.splitlines()[-1] == line


def test_a_run_s_outcome_is_the_first_page_of_its_report() -> None:
    page = summarise(RESULT)
    head, columns, *rows = outcome(RESULT)
    assert head == f"Leak: {page.headline}"
    assert re.split(r"  +", columns.strip()) == [goal.replace("-", " ") for goal in page.goals]
    for line, row in zip(rows, page.matrix, strict=True):
        assert re.split(r"  +", line) == [row.adversary, *(entry.words for entry in row.entries)]
    cells = list(verdicts(RESULT))
    assert list(outcome(RESULT, verbose=True)) == [*cells, "", head, columns, *rows]


def test_a_leak_beside_a_failed_control_has_one_level_on_the_console() -> None:
    """The cell's status is "inconclusive", because its positive control failed; the report's level is "leak"."""
    raw = json.loads(json.dumps(RAW))
    cell = next(c for c in raw["cells"] if c["id"] == "server/dlg")
    cell["controls"]["positive"]["passed"] = False
    cell |= {"status": "inconclusive", "reason": "its positive control failed"}
    result = read(raw)
    shown = [*_summary(result), *verdicts(result)]
    about = [line for line in shown if "dlg" in line and line.startswith("server")]
    assert len(about) == 1
    assert about[0].startswith("server / dlg:")
    assert "leak" in about[0]
    assert not any("inconclusive" in line and "dlg" in line for line in shown)
    findings = judge_all(result)
    assert "server/dlg" in {line.finding.cell.id for line in attack_matrix(findings)}


@pytest.mark.parametrize(
    ("profile", "origin", "longer"),
    [
        ("quick", "recording", "--profile standard, or full"),
        ("standard", "simulation", "profile: full"),
        ("full", "recording", ", the longest"),
    ],
)
def test_a_profile_says_whether_a_longer_one_exists(profile: str, origin: str, longer: str) -> None:
    said = profile_words(profile, origin)
    assert (said.startswith(profile), said.endswith(longer)) == (True, True)

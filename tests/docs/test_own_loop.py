"""The example of a system's own loop: what recording adds to it, and its way to a report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fdaudit import api
from fdaudit.recording.record import check_record
from fdaudit.spec.card import load_card

from ..helpers.cli_cases import Shell
from ..helpers.docs_pages import ROOT

EXAMPLE = ROOT / "examples" / "own-loop"


def test_recording_adds_eight_lines_to_a_loop_of_sixty() -> None:
    lines = (EXAMPLE / "loop.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 60
    assert sum(line.endswith("# +") for line in lines) == 8


def test_its_card_is_one() -> None:
    assert load_card(EXAMPLE / "card.yaml").stand_in is not None


@pytest.mark.thorough
def test_the_example_leads_to_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(monkeypatch, capsys, tmp_path / "home")
    shell.told(
        "design",
        "digits",
        "--sites",
        3,
        "--public",
        0.1,
        "--test",
        0.1,
        "--auxiliary",
        0.2,
        "--out",
        "DESIGN",
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, EXAMPLE / "loop.py", "DESIGN"], check=True, cwd=shell.home, env=environment
    )
    assert check_record(shell.home / "RECORD").findings == ()
    brought = ("--truth", "TRUTH", "--truth", "DESIGN/truth")
    shell.told(
        "import",
        "RECORD",
        "--card",
        EXAMPLE / "card.yaml",
        *brought,
        "--audit",
        EXAMPLE / "audit.yaml",
        "--out",
        "RUN",
    )
    cells = {name: api.attack(name, api.load(shell.home / "RUN")) for name in ("co-op-lira", "label-answers")}
    assert {cell.status for cell in cells.values()} == {"run"}
    assert all(cell.controls.positive.passed for cell in cells.values())
    page = Path(shell.told("report", "RUN")[0].strip())
    assert "fdaudit did not run this system" in (shell.home / page).read_text(encoding="utf-8")

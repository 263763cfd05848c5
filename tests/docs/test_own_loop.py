"""The example of a loop that is not fdaudit's: recorded, checked and attacked as its text says."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from fdaudit.recording.record import check_record

from ..helpers.docs_pages import ROOT

EXAMPLE = ROOT / "examples" / "own_loop.py"


def test_recording_adds_five_lines_to_the_loop() -> None:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    assert sum(line.endswith("# recorder") for line in lines) == 5


@pytest.mark.thorough
def test_every_image_comes_back_at_thirty_decibels_and_every_label_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    monkeypatch.delitem(sys.modules, "own_loop", raising=False)
    example = runpy.run_path(str(EXAMPLE), run_name="example")
    example["federate"](tmp_path / "record")
    checked = check_record(tmp_path / "record")
    assert checked.findings == checked.notes == ()
    guesses = example["attack"](tmp_path / "record")
    assert [g.target for g in guesses] == ["client/0", "client/1", "client/2"]
    for site, guess in enumerate(guesses):
        assert min(example["recovered"](guess)) >= 30
        assert sorted(guess.labels.tolist()) == sorted(example["private_batch"](site, 0)[1].tolist())

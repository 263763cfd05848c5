"""The profile of an import: `quick` unless the auditor says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import fdaudit
from fdaudit.testing import RecordedFederation

from ..helpers.cli_cases import Shell


@pytest.mark.parametrize(
    ("arguments", "profile"),
    [
        ((), "quick"),
        (("--profile", "standard"), "standard"),
        (("--audit", "audit.yaml"), "full"),
        (("--audit", "audit.yaml", "--profile", "standard"), "standard"),
    ],
)
def test_a_first_audit_is_quick_and_says_so(
    arguments: tuple[str, ...], profile: str, tmp_path: Path, shell: Shell
) -> None:
    first = RecordedFederation(kind="class_counts").run(tmp_path).directory
    (shell.home / "audit.yaml").write_text(yaml.safe_dump({"profile": "full"}))
    card = ("--card", first / "card.yaml")
    truth = ("--truth", tmp_path / "truth", "--truth", tmp_path / "records")
    out, _ = shell.told("import", tmp_path / "record", *card, *truth, "--out", "run", *arguments)
    assert f"profile   {profile}" in out
    assert fdaudit.load(shell.home / "run").case.spec.profile == profile


def test_an_unknown_profile_is_one_error(tmp_path: Path, shell: Shell) -> None:
    first = RecordedFederation(kind="class_counts").run(tmp_path).directory
    line = shell.refused(
        "import",
        tmp_path / "record",
        "--card",
        first / "card.yaml",
        "--out",
        "run",
        "--profile",
        "fast",
    )
    assert "profile" in line
    assert "fast" in line

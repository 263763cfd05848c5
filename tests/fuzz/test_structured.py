"""Changed fields in what strangers send: one clear error, or nothing that means something else than is shown."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from ..helpers.warm import run
from .structured import KINDS
from .structured_templates import make_templates

ROOT = Path(__file__).parents[2]
FEW = 12
MANY = 1000


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_templates(tmp_path_factory.mktemp("structured") / "templates")


def outcomes(kind: str, first: int, last: int, templates: Path) -> Counter[str]:
    """Run cases in a process of bounded memory; return how many had each outcome."""
    env = {**os.environ, "FDAUDIT_FUZZ_TEMPLATES": str(templates), "PYTHONPATH": str(ROOT)}
    command = ["-m", "tests.fuzz.structured", kind, str(first), str(last)]
    done = run(command, env=env, cwd=ROOT)
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    findings = [problem for _, outcome, problem in cases if outcome == "finding"]
    assert not findings, "\n".join([f"{len(findings)} findings, such as", *findings[:20]])
    assert (done.returncode, len(cases)) == (0, last - first + 1), (
        f"after {cases[-1:]}: {done.stderr[-2000:]}"
    )
    return Counter(outcome for _, outcome, _ in cases)


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_field_is_refused_or_shown(kind: str, templates: Path) -> None:
    found = outcomes(kind, 0, FEW - 1, templates)
    assert found["refused"] > 0, "nothing was changed"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_changed_fields_are_refused_or_shown(kind: str, templates: Path) -> None:
    found = outcomes(kind, FEW, FEW + MANY - 1, templates)
    assert min(found["refused"], found["accepted"]) > 0

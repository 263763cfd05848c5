"""Ten thousand damaged files, in processes of bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .test_fuzz import NAMES

CASES = 10_000 // len(NAMES) + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_damage_is_an_error_or_changes_nothing_and_takes_no_memory(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.fuzzing", name, "25", str(24 + CASES)],
        cwd=Path(__file__).parents[2],
        env={k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-200:]}\n{done.stderr[-2000:]}"
    assert len(done.stdout.splitlines()) == CASES

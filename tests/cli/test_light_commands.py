"""Commands load only what they use: libraries that take seconds are absent from the process afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.run_cases import finished

HEAVY = (
    "matplotlib",
    "pandas",
    "scipy.stats",
    "sklearn",
    "sympy",
    "torch",
    "torch._dynamo",
    "torchmetrics",
    "torchvision",
)
"""Libraries that a command waits for."""

_PROGRAM = """
import sys
sys.argv[:1] = ["fdaudit"]
from fdaudit.cli.app import main
try:
    main()
finally:
    print("loaded", *sorted(sys.modules), file=sys.stderr)
"""


def heavy_modules(code: int, *arguments: str) -> set[str]:
    """Run a command in its own process, check its exit code, and return the heavy libraries that it loaded."""
    command = [sys.executable, "-c", _PROGRAM, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == code, run.stderr[-2000:]
    *_, loaded = (line for line in run.stderr.splitlines() if line.startswith("loaded "))
    return set(HEAVY) & set(loaded.split())


def test_a_refused_quickstart_loads_no_heavy_library(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert heavy_modules(2, "quickstart", "--out", str(tmp_path)) == set()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.thorough
def test_commands_on_a_run_load_only_what_they_use(tmp_path: Path) -> None:
    path = str(finished(tmp_path / "run"))
    assert heavy_modules(0, "verify", path) == set()
    assert heavy_modules(0, "report", path) == set()
    assert heavy_modules(0, "ledger", path) == set()
    assert heavy_modules(0, "attack", path, "loss-threshold") == {"torch"}


@pytest.mark.thorough
def test_the_compiler_is_loaded_by_a_command_that_stacks_models(tmp_path: Path) -> None:
    """The rule for `attack` could not fail if nothing did."""
    path = str(finished(tmp_path / "run", strategy="stacked"))
    assert "torch._dynamo" in heavy_modules(0, "attack", path, "loss-threshold")

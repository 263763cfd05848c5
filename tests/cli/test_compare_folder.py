"""`fdaudit compare` on a folder of runs, as the quickstart and sweeps write them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ..helpers.cli_cases import Shell
from ..helpers.run_cases import finished

pytestmark = pytest.mark.usefixtures("forked_processes")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("folder") / "run", attacks=[])


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    return Shell(monkeypatch, capsys, tmp_path / "home")


@pytest.mark.parametrize("below", [".", "runs"])
def test_a_folder_of_runs_is_compared_run_by_run(below: str, original: Path, shell: Shell) -> None:
    for name in ("b", "a"):
        shutil.copytree(original, shell.home / "folder" / below / name)
    (shell.home / "folder" / "shared").mkdir()
    shell.told("compare", "folder")
    rows = json.loads((shell.home / "comparison" / "comparison.json").read_bytes())["runs"]
    assert [row["name"] for row in rows] == ["a", "b"]


def test_a_folder_and_a_run_are_compared_together(original: Path, shell: Shell) -> None:
    shutil.copytree(original, shell.home / "folder" / "a")
    shutil.copytree(original, shell.home / "b")
    shell.told("compare", "b", "folder")
    rows = json.loads((shell.home / "comparison" / "comparison.json").read_bytes())["runs"]
    assert [row["name"] for row in rows] == ["b", "a"]


def test_a_folder_of_one_run_stands_alone(original: Path, shell: Shell) -> None:
    shutil.copytree(original, shell.home / "folder" / "a")
    assert "stands alone. Give two runs or more to compare." in shell.refused("compare", "folder")


def test_a_folder_without_runs_is_refused(shell: Shell) -> None:
    (shell.home / "folder" / "empty").mkdir(parents=True)
    assert "folder" in shell.refused("compare", "folder", "folder")

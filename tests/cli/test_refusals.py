"""Refusals that name the remedy: one line, exit code 2, nothing half-written."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fdaudit.progress as progress_module
from fdaudit.progress import progress, typed_again
from fdaudit.testing.specs import small_spec

from ..helpers.cli_cases import Shell
from ..helpers.run_cases import finished, tree, write_spec

GRID = {"sweep": 1, "base": {"clients": 2}, "protocols": [{"name": "fedavg"}], "seeds": [1]}
KNOWN = "client/0, client/1, eavesdropper, server, world"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("refusals") / "run")


@pytest.mark.parametrize(
    ("command", "content", "field", "remedy"),
    [
        ("run", GRID, "spec", "`fdaudit sweep`"),
        ("sweep", small_spec(), "grid", "`fdaudit run`"),
        ("run", "", "spec", "`protocol` and `dataset`"),
        ("run", "# later\n", "spec", "`protocol` and `dataset`"),
        ("sweep", "", "grid", "`key: value`"),
    ],
)
def test_a_file_of_another_command_or_without_content(
    shell: Shell, command: str, content: Any, field: str, remedy: str
) -> None:
    write_spec(shell.home / "file.yaml", content)
    line = shell.refused(command, "file.yaml", "--out", "out")
    assert line.startswith(f"fdaudit: {field}: 'file.yaml' ")
    assert remedy in line


@pytest.mark.parametrize("command", [("report",), ("verify",), ("attack", "loss-threshold")])
def test_a_path_where_nothing_is(shell: Shell, command: tuple[str, ...]) -> None:
    line = shell.refused(command[0], "nosuch", *command[1:])
    assert line.startswith("fdaudit: run: 'nosuch' ")


@pytest.mark.parametrize("command", [("report",), ("verify",), ("attack", "loss-threshold")])
def test_a_folder_of_runs_names_them(shell: Shell, run: Path, command: tuple[str, ...]) -> None:
    for name in ("fedavg", "fedmd"):
        shutil.copytree(run, shell.home / "audit" / name)
    line = shell.refused(command[0], "audit", *command[1:])
    assert line.startswith("fdaudit: run: 'audit' ")
    assert "2 runs (fedavg, fedmd)" in line
    assert "audit/fedavg" in line


def test_a_long_folder_of_runs_is_shortened(shell: Shell, run: Path) -> None:
    for number in range(21):
        (shell.home / "many" / f"{number:02}").mkdir(parents=True)
        shutil.copy(run / "manifest.json", shell.home / "many" / f"{number:02}")
    line = shell.refused("verify", "many")
    assert "21 runs (00, " in line
    assert "19, …)" in line
    assert "20" not in line.partition("(")[2]


@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_data_that_are_not_there_say_where_they_were_looked_for(shell: Shell, kind: str) -> None:
    spec = shell.spec(dataset={"name": f"{kind}:nope", "root": "records"})
    line = shell.refused("run", spec, "--out", "out")
    assert f"'{kind}:{shell.home.resolve() / 'records' / 'nope'}' names no" in line
    assert "`dataset.root`" in line
    (shell.home / "nope").mkdir()
    line = shell.refused("run", spec, "--out", "out")
    assert "set `dataset.root: .`" in line


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"adversaries": ["servr"]}, "adversaries"),
        ({"attacks": [{"name": "loss-threshold", "adversaries": ["servr"]}]}, "attacks.0.adversaries"),
    ],
)
def test_an_unknown_adversary_lists_those_of_the_protocol(
    shell: Shell, changes: dict[str, Any], field: str
) -> None:
    line = shell.refused("run", shell.spec(**changes), "--out", "out")
    assert line.startswith(f"fdaudit: {field}: 'servr' ")
    assert line.endswith(f"'server'? Valid names: {KNOWN}.\n")


def test_an_unknown_adversary_lists_those_of_the_run(shell: Shell, run: Path) -> None:
    line = shell.refused("attack", run, "loss-threshold", "--adversary", "aggregator")
    assert f"Valid names: {KNOWN}." in line


def test_a_report_on_a_damaged_run_names_the_damage(shell: Shell, run: Path) -> None:
    shutil.copytree(run, shell.home / "run")
    damaged = shell.home / "run" / "utility.csv"
    damaged.write_bytes(damaged.read_bytes() + b"\n")
    line = shell.refused("report", "run", code=3)
    assert line.startswith("fdaudit: utility.csv ")
    assert "digest" in line


@pytest.mark.parametrize(
    ("typed", "added", "again"),
    [
        (["run", "my spec.yaml", "--out", "a b"], ["--resume"], "run 'my spec.yaml' --out 'a b' --resume"),
        (["run", "--resume", "--out", "a"], ["--resume"], "run --resume --out a"),
        (["attack", "run", "--all"], [], "attack run --all"),
    ],
)
def test_an_interrupt_prints_the_command_that_goes_on(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    typed: list[str],
    added: list[str],
    again: str,
) -> None:
    import typer

    monkeypatch.setattr(sys, "argv", ["/a venv/bin/fdaudit", *typed])
    with pytest.raises(typer.Exit), progress(quiet=True, again=typed_again(*added)):
        raise KeyboardInterrupt
    assert capsys.readouterr().err.endswith(f"'/a venv/bin/fdaudit' {again}\n")


def test_the_module_is_called_by_its_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/fdaudit/__main__.py", "quickstart"])
    assert shlex.split(typed_again("--resume")) == [sys.executable, "-m", "fdaudit", "quickstart", "--resume"]


def test_an_interrupted_run_goes_on_with_the_command_that_is_printed(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fdaudit.audit import pipeline

    def interrupted(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    spec = shell.spec()
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "attack_cells", interrupted)
        code, _, err = shell("run", spec, "--out", "my run", "--no-report")
    assert code == 130
    program, *again = shlex.split(err.partition("go on with: ")[2])
    assert program == "fdaudit"
    assert again == ["run", str(spec), "--out", "my run", "--no-report", "--resume"]
    assert shell(*again)[0] == 0
    assert "result.json" in tree(shell.home / "my run")


@pytest.mark.parametrize("quiet", [False, True])
def test_progress_without_a_terminal_is_a_line_each_half_minute(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now))
    with progress(quiet=quiet) as tick:
        for now in (10.0, 29.0, 31.0, 45.0, 60.0, 62.0):
            tick("attacks", int(now), 100)
    lines = ["fdaudit: attacks: 31 of 100", "fdaudit: attacks: 62 of 100"]
    assert capsys.readouterr().err.splitlines() == ([] if quiet else lines)

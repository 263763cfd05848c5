"""What holds for every command: help, usage, exit codes, and an interruption."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdaudit.errors import FdauditError

from ..helpers.cli_cases import Shell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    return Shell(monkeypatch, capsys, tmp_path / "home")


def test_help_is_there_for_every_command(shell: Shell) -> None:
    code, out, _ = shell("--help")
    assert code == 0
    commands = ("quickstart", "run", "attack", "report", "compare", "evidence", "verify", "list", "explain")
    assert all(f"  {name} " in out for name in commands)
    assert "0 done, 1 a gate of the spec or a cell failed, 2 bad input, 3 the record was changed" in " ".join(
        out.split()
    )
    for name in commands:
        code, out, _ = shell(name, "--help")
        assert code == 0
        assert f"{name} [OPTIONS]" in out


@pytest.mark.parametrize(
    "arguments", [(), ("atack",), ("run", "--otu", "x"), ("verify",), ("verify", "a", "b")]
)
def test_wrong_usage_ends_with_2(arguments: tuple[str, ...], shell: Shell) -> None:
    code, out, err = shell(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: ")


def test_every_error_has_its_exit_code() -> None:
    def below(cls: type[FdauditError]) -> Iterator[type[FdauditError]]:
        yield cls
        for inner in cls.__subclasses__():
            yield from below(inner)

    codes = {cls.__name__: cls.exit_code for cls in below(FdauditError)}
    assert {codes[n] for n in ("UsageError", "SpecError", "DataError", "RunError")} == {2}
    assert codes["IntegrityError"] == 3
    assert set(codes.values()) == {1, 2, 3}


@pytest.mark.thorough
def test_an_interrupted_run_says_how_to_go_on(shell: Shell) -> None:
    """Ctrl-C: 130, one line, and a run that can be resumed."""
    spec = shell.spec(protocol__params__rounds=2000)
    process = subprocess.Popen(
        [sys.executable, "-m", "fdaudit", "run", str(spec), "--out", "here", "--no-report"],
        cwd=shell.home,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores the signal that a terminal would send; a test may be one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    checkpoint = shell.home / "here" / "vault" / "round.json"
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert err.startswith("fdaudit: interrupted; go on with: ")
    assert err.endswith(f"run {spec} --out here --no-report --resume\n")
    assert not (shell.home / "here" / "manifest.json").exists()

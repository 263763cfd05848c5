"""What holds for every command: help, usage, exit codes, and an interruption."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

import fdaudit
from fdaudit.cli.app import app
from fdaudit.cli.options import GROUPS
from fdaudit.errors import FdauditError
from fdaudit.spec.schema import load_spec

from ..helpers.cli_cases import Shell

EXAMPLES = Path(__file__).parents[2] / "examples"


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


def test_help_lists_each_command_once_under_its_purpose_with_a_whole_sentence(shell: Shell) -> None:
    named = [name for names in GROUPS.values() for name in names]
    commands = {c.name or c.callback.__name__.rstrip("_"): c.callback for c in app.registered_commands}
    groups = {g.name for g in app.registered_groups}
    assert sorted(named) == sorted([*commands, *groups])
    out, _ = shell.told("-h")
    assert "..." not in out.partition("Audit:")[2]
    assert "More:" not in out
    for name, command in commands.items():
        first = " ".join(command.__doc__.partition("\n\n")[0].split())
        assert first.endswith("."), name
        assert first.partition(". ")[0].rstrip(".") in " ".join(out.split()), name


def test_the_version_is_the_package_s(shell: Shell) -> None:
    out, _ = shell.told("--version")
    assert out == f"fdaudit {version('fdaudit')}\n"
    assert fdaudit.__version__ == version("fdaudit")


@pytest.mark.parametrize("name", ["spec", "grid", "card", "report", "guesses", "scored"])
def test_every_file_has_a_schema(name: str, shell: Shell) -> None:
    out, _ = shell.told("schema", name)
    Draft202012Validator.check_schema(json.loads(out))


def test_the_schemas_of_spec_and_grid_take_what_the_commands_take(shell: Shell) -> None:
    spec, grid = (Draft202012Validator(json.loads(shell.told("schema", n)[0])) for n in ("spec", "grid"))
    examples = [yaml.safe_load(p.read_bytes()) for p in sorted(EXAMPLES.glob("*.yaml"))]
    assert len(examples) > 5
    for given in examples:
        (grid if "sweep" in given else spec).validate(given)
    assert not spec.is_valid({"clients": "many"})
    assert not grid.is_valid({"sweep": 1})


def test_init_writes_a_spec_that_is_not_overwritten(shell: Shell) -> None:
    shell.told("init", "--protocol", "fedmd")
    assert load_spec(shell.home / "spec.yaml").protocol.name == "fedmd"
    assert "exists already" in shell.refused("init")
    assert "Did you mean 'fedmd'" in shell.refused("init", "other.yaml", "--protocol", "fedmdd")


def test_all_mistakes_of_a_spec_are_said_at_once(shell: Shell) -> None:
    spec = shell.spec(clients=0, model__name=7, evaluate_evry=3)
    out, err = shell.told("run", spec, "--out", "here", code=2)
    assert out == ""
    said = [line.removeprefix("fdaudit: ").partition(":")[0] for line in err.splitlines()]
    assert sorted(said) == ["clients", "evaluate_evry", "model.name"]
    found = shell.json("run", spec, "--out", "here", code=2)
    assert found["exit_code"] == 2
    assert sorted(e["field"] for e in found["errors"]) == sorted(said)
    assert [e["error"] for e in found["errors"]] == [x.removeprefix("fdaudit: ") for x in err.splitlines()]
    assert all(e["problem"] and e["remedy"] for e in found["errors"])


def test_settings_of_protocol_and_attacks_are_wrong_together(shell: Shell) -> None:
    spec = shell.spec(
        protocol__params__lr=-1.0, attacks=[{"name": "dlgg"}, {"name": "dlg", "params": {"restarts": "no"}}]
    )
    _, err = shell.told("run", spec, "--out", "here", code=2)
    said = [line.removeprefix("fdaudit: ").partition(":")[0] for line in err.splitlines()]
    assert said == ["protocol.params.lr", "attacks.0.name", "attacks.1.params.restarts"]


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

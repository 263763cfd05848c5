"""What holds for every command: help, usage, exit codes, and an interruption."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from fdaudit.protocols import REGISTRY
from jsonschema import Draft202012Validator

import fdaudit
from fdaudit.cli.app import app
from fdaudit.cli.explain import Explanation, explained, sections, sights, text, when
from fdaudit.cli.options import GROUPS
from fdaudit.errors import FdauditError
from fdaudit.kinds import KINDS
from fdaudit.registry import ProtocolCard
from fdaudit.spec.schema import load_spec
from fdaudit.transcript.messages import role
from tests.helpers.run_cases import finished

from ..helpers.cli_cases import Shell
from ..helpers.protocol_cases import every_case, run, thorough_beyond_defaults

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_help_is_there_for_every_command(shell: Shell) -> None:
    code, out, _ = shell("--help")
    assert code == 0
    commands = ("quickstart", "run", "attack", "report", "compare", "evidence", "verify", "list", "explain")
    assert all(f"  {name} " in out for name in commands)
    assert re.search(r"0\sdone,.*\s1\s.*\s2\s.*\s3\s", out, re.DOTALL), "each exit code is told"
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
    assert "mean 'fedmd'" in shell.refused("init", "other.yaml", "--protocol", "fedmdd")


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
    said, _, again = err.partition(" with: ")
    assert said.startswith("fdaudit: interrupted")
    assert again.split()[-6:] == ["run", str(spec), "--out", "here", "--no-report", "--resume"]
    assert not (shell.home / "here" / "manifest.json").exists()


# -- commands load only what they use ------------------------------------------------------------------------------


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


# -- what is explained of a protocol is what it does ---------------------------------------------------------------


def sees(card: ProtocolCard) -> dict[str, tuple[set[str], set[str], set[str]]]:
    return {s.position: (set(s.receives), set(s.sends), set(s.asks)) for s in sights(card)}


AGGREGATED = ProtocolCard(
    name="aggregated",
    source="none",
    roles=("server", "aggregator", "client"),
    messages=(
        {"kind": "class_counts", "from": "client", "to": "aggregator", "what": "once"},
        {"kind": "logits", "from": "client", "to": "aggregator", "what": "z", "when": {"share": "logits"}},
        {"kind": "ensemble_labels", "from": "aggregator", "to": "server, client", "what": "their mean"},
        {"kind": "ensemble_labels", "from": "aggregator", "to": "server", "what": "again"},
    ),
    trust=("The aggregator does not tell.",),
    oracles=({"name": "crafted", "available_to": ("server",), "answers": ("soft",)},),
    differences=(),
    withholdable=("class_counts",),
    heterogeneous=True,
    needs_public=True,
    pools_data=False,
)


def test_who_sees_what_is_read_off_the_messages() -> None:
    assert sees(AGGREGATED) == {
        "server": ({"ensemble_labels"}, set(), {"crafted"}),
        "aggregator": ({"class_counts", "logits"}, {"ensemble_labels"}, set()),
        "each client": ({"ensemble_labels"}, {"class_counts", "logits"}, set()),
        "eavesdropper": ({"class_counts", "logits", "ensemble_labels"}, set(), set()),
        "world": (set(), set(), set()),
    }


def test_who_sees_what_of_fedavg() -> None:
    uploads = {"sample_count", "gradient", "model_update", "model_parameters", "optimizer_state"}
    assert sees(REGISTRY.describe("fedavg")) == {
        "server": (uploads, {"model_parameters"}, set()),
        "aggregator": ({"sample_count", "model_update"}, {"model_update"}, set()),
        "each client": ({"sample_count", "model_parameters"}, uploads, set()),
        "eavesdropper": (uploads, set(), set()),
        "world": ({"sample_count", "model_parameters"}, set(), {"released-model"}),
    }


@pytest.mark.parametrize("case", thorough_beyond_defaults(every_case()))
def test_nobody_sees_more_than_is_explained(case: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    said = sees(REGISTRY.describe(case[0]))
    for message in run(tmp_path / "run", *case).messages:
        sender = role(message.sender)
        assert message.kind in said["each client" if sender == "client" else sender][1]
        for receiver in {role(r) for r in message.receivers}:
            assert message.kind in said["each client" if receiver == "client" else receiver][0]
        assert message.kind in said["eavesdropper"][0]


@pytest.mark.parametrize("name", REGISTRY.names())
def test_a_protocol_s_text_holds_everything_it_declares(name: str) -> None:
    found = explained(name)
    card, shown = REGISTRY.describe(name), text(found)
    titles = [line for line in shown.splitlines() if line and not line.startswith(" ")]
    assert {"Messages", "Roles", "Needs", "Who sees what", "Trust assumptions", "Source"} <= set(titles)
    for message in card.declared_messages:
        assert KINDS[message["kind"]].text in shown
        assert when(message) in shown
    for key in ("roles", "trust", "differences", "withholdable"):
        assert all(item in shown for item in getattr(card, key))
    assert all(o["name"] in shown for o in card.oracles)
    assert found.plain()["sees"].keys() == sees(card).keys()


def test_conditions_and_needs_are_said() -> None:
    shown = text(Explanation(room="protocol", card=AGGREGATED, doc="A double."))
    for said in ('share: "logits"', "each client; they", "unlabelled samples that"):
        assert said in shown
    assert "Deviations" not in shown
    marked = {s.title: s.items for s in sections(AGGREGATED, "`")}
    assert marked["Can do without"] == ("`class_counts`",)
    (seen,) = (item for item in marked["Who sees what"] if item.startswith("aggregator:"))
    assert re.search("receives.*class_counts.*logits.*sends.*ensemble_labels", seen)

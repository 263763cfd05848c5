"""Files that may be a stranger's name code: every command, every field that can name it, every kind of file.

A network, a protocol, a defence or an attack of the user's own is `import:module:Class`. Here each name is a trap: the
module leaves a mark when it is imported, and a callable leaves one when it is called.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import fdaudit
from fdaudit.errors import FdauditError, SpecError
from fdaudit.planning.simulated import simulated_case
from fdaudit.scoring import run_directory
from fdaudit.spec import trust
from fdaudit.storage.digests import canonical
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.manifest import MANIFEST, write_manifest

from ..helpers.cli_cases import Shell
from ..helpers.rerecorded import card_of, rerecord
from ..helpers.run_cases import tree

TRAP = """
from pathlib import Path
(Path(__file__).parent / "ran").touch()
import torch

class Net(torch.nn.Linear):
    pass
"""
NAMES = ("import:a_trap:Net", "import:subprocess:Popen", "import:os:system")
"""A module that leaves a mark, and callables that are no classes of ours: they leave one when they are called."""


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The mark that code leaves if it runs; its module can be found, and this process has named no code."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "a_trap.py").write_text(TRAP)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(trust, "_named", set())
    monkeypatch.delenv(trust.TRUST_CODE, raising=False)
    yield site / "ran"
    sys.modules.pop("a_trap", None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fdaudit.run(small_spec(), tmp_path_factory.mktemp("trusted") / "run").directory


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fdaudit.run(small_spec(seed=8), tmp_path_factory.mktemp("other") / "run").directory


@pytest.fixture(scope="module")
def recorded(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record with its truth and its card, and the run that it becomes."""
    folder = tmp_path_factory.mktemp("recorded")
    rerecord(fdaudit.Run(finished), folder)
    (folder / "card.yaml").write_text(yaml.safe_dump(card_of(fdaudit.Run(finished))))
    fdaudit.import_record(
        folder / "record", folder / "run", card=folder / "card.yaml", truth=[folder / "truth"]
    )
    return folder


def code(name: str, mark: Path) -> dict[str, Any]:
    params: dict[str, Any] = {"in_features": 1, "out_features": 1}
    if "Popen" in name:
        params = {"args": ["touch", str(mark)]}
    if "system" in name:
        params = {"command": f"touch {mark}"}
    return {"name": name, "params": params}


FIELDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "model": lambda named: {"model": named},
    "client_models": lambda named: {"client_models": [named, named]},
    "protocol": lambda named: {"protocol": named},
    "defenses": lambda named: {"defenses": [{"kind": "model_parameters", **named}]},
    "defenses at training": lambda named: {"defenses": [{"at": "training", **named}]},
    "attacks": lambda named: {"attacks": [named]},
}
"""Every field of a spec that can name code."""
OF_CARDS = ("model", "client_models", "protocol", "defenses", "defenses at training", "stand_in")

COMMANDS: dict[str, tuple[object, ...]] = {
    "ledger": ("ledger", "RUN"),
    "ledger --both-relations": ("ledger", "RUN", "--both-relations"),
    "ledger of two": ("ledger", "RUN", "OTHER"),
    "attack": ("attack", "RUN", "gap"),
    "attack --all": ("attack", "RUN", "--all"),
    "attack --guesses": ("attack", "RUN", "class-means", "--guesses", "guesses"),
    "remedy": ("remedy", "RUN"),
    "twin": ("twin", "RUN"),
    "export-view": ("export-view", "RUN", "server", "--out", "view"),
    "score": ("score", "RUN", "guesses.json"),
    "run --resume": ("run", "--resume", "--out", "RUN"),
    "run SPEC --resume": ("run", "given.yaml", "--resume", "--out", "RUN"),
}
"""Every command that makes a case from a run directory."""
READERS: dict[str, tuple[object, ...]] = {
    "verify": ("verify", "RUN"),
    "report": ("report", "RUN"),
    "report --public": ("report", "RUN", "--public"),
    "evidence": ("evidence", "RUN", "--out", "bundle"),
    "compare": ("compare", "RUN", "OTHER", "--out", "compared"),
}
"""Commands that read a run directory without a case: they work, and import nothing."""


def test_every_command_that_takes_a_run_is_listed() -> None:
    import typer

    from fdaudit.cli.app import app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    places = {
        name: [str(p.metavar or p.name).upper() for p in getattr(command, "params", ())]
        for name, command in commands.items()
    }
    takes_a_run = {name for name, words in places.items() if any(w.startswith("RUN") for w in words)}
    # Others make a run, run a spec of fdaudit's own, or refuse every simulation.
    others = {"import", "active"}
    assert takes_a_run <= {str(c[0]) for c in (*COMMANDS.values(), *READERS.values())} | others


def sealed(run: Path, **changes: Any) -> None:
    """Changes the spec of a run as a stranger would: the manifest fits again."""
    path = run / "spec.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}, sort_keys=False))
    body = json.loads((run / MANIFEST).read_bytes())
    kept = {k: v for k, v in body.items() if k not in ("self", "files", "schema", "status")}
    write_manifest(run, kept)


def _ran(shell: Shell, command: tuple[object, ...], run: Path, other: Path) -> tuple[int, str, str]:
    places: dict[object, object] = {"RUN": run, "OTHER": other}
    (shell.home / "guesses.json").write_text(json.dumps(_shares()))
    (shell.home / "given.yaml").write_text(yaml.safe_dump(small_spec()))
    return shell(*(places.get(word, word) for word in command))


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that were planned from."""
    made: list[str] = []
    monkeypatch.setattr(run_directory, "simulated_case", lambda *a: made.append("case") or simulated_case(*a))
    return made


@pytest.mark.parametrize(
    ("command", "field"),
    [
        pytest.param(
            command, field, marks=() if field == "model" or command == "ledger" else pytest.mark.thorough
        )
        for command in COMMANDS
        for field in FIELDS
    ],
)
def test_a_run_directory_names_code_and_no_command_runs_it(
    shell: Shell,
    trap: Path,
    cases: list[str],
    finished: Path,
    other: Path,
    tmp_path: Path,
    command: str,
    field: str,
) -> None:
    for name in NAMES if command == "ledger" else NAMES[:1]:
        run = Path(shutil.copytree(finished, tmp_path / f"run-{NAMES.index(name)}"))
        sealed(run, **FIELDS[field](code(name, trap)))
        before = tree(run)
        status, _, said = _ran(shell, COMMANDS[command], run, other)
        assert status == 2, said
        assert len(said.splitlines()) == 1
        assert "--trust-code" in said or "SPEC" in command
        assert not trap.exists(), f"{command} ran {name}"
        assert tree(run) == before
    assert "a_trap" not in sys.modules
    assert not cases


@pytest.mark.parametrize("command", COMMANDS)
def test_a_changed_run_is_refused_before_anything_is_planned_from_it(
    shell: Shell, cases: list[str], finished: Path, other: Path, tmp_path: Path, command: str
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    text = (run / "spec.yaml").read_text()
    (run / "spec.yaml").write_text(text.replace("rounds: 2", "rounds: 3"))
    assert text != (run / "spec.yaml").read_text()
    status, _, said = _ran(shell, COMMANDS[command], run, other)
    assert status == 3, said
    assert not cases


@pytest.mark.parametrize("command", READERS)
def test_reading_a_run_imports_nothing(
    shell: Shell, trap: Path, finished: Path, other: Path, tmp_path: Path, command: str
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    sealed(run, model=code(NAMES[0], trap))
    status, _, said = _ran(shell, READERS[command], run, other)
    assert status in (0, 2), said
    assert "a_trap" not in sys.modules
    assert not trap.exists()


@pytest.mark.parametrize("field", FIELDS)
def test_an_unfinished_run_names_code_and_resuming_does_not_run_it(
    shell: Shell, trap: Path, finished: Path, tmp_path: Path, field: str
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    sealed(run, **FIELDS[field](code(NAMES[0], trap)))
    (run / MANIFEST).unlink()
    (run / "result.json").unlink()
    assert "--trust-code" in shell.refused("run", "--resume", "--out", run)
    assert not trap.exists()


def test_an_unfinished_run_is_checked_up_to_its_checkpoint(
    shell: Shell, cases: list[str], finished: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / MANIFEST).unlink()
    (run / "result.json").unlink()
    log = run / "transcript" / "messages.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"round":0', b'"round":1', 1))
    assert "chain" in shell.refused("run", "--resume", "--out", run, code=3)
    assert not cases


def test_trusted_code_of_a_run_is_run(
    shell: Shell, trap: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    sealed(run, model=code(NAMES[0], trap))
    _, _, said = shell("ledger", run, "--trust-code")
    assert trap.exists()
    assert "model.name" in said  # it is no network for these images
    trap.unlink()
    monkeypatch.setattr(trust, "_named", set())
    monkeypatch.setenv(trust.TRUST_CODE, "1")
    sys.modules.pop("a_trap", None)
    shell("ledger", run)
    assert trap.exists()


@pytest.mark.parametrize("name", NAMES[1:])
def test_even_trusted_a_callable_that_is_no_network_is_not_called(
    shell: Shell, trap: Path, finished: Path, tmp_path: Path, name: str
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    sealed(run, model=code(name, trap))
    assert "torch.nn.Module" in shell.refused("ledger", run, "--trust-code")
    assert not trap.exists()


# -- records, cards, designs, grids, guesses ------------------------------------------------------------------------


def _with_code(card: dict[str, Any], field: str, named: dict[str, Any]) -> dict[str, Any]:
    if field == "stand_in":
        return {**card, "protocol": {"name": "acme"}, "stand_in": named}
    return {**card, **FIELDS[field](named)}


@pytest.mark.parametrize("field", OF_CARDS)
@pytest.mark.parametrize("place", ["in the record", "given", "in a scoring site's lines"])
def test_a_card_names_code_and_no_command_runs_it(
    shell: Shell, trap: Path, recorded: Path, tmp_path: Path, field: str, place: str
) -> None:
    record = Path(shutil.copytree(recorded / "record", tmp_path / "record"))
    card = record / "card.yaml" if place != "given" else tmp_path / "card.yaml"
    given = [] if place != "given" else ["--card", card]
    (shell.home / "guesses.json").write_text(json.dumps(_shares()))
    for name in NAMES:
        stated = yaml.safe_load((recorded / "card.yaml").read_text())
        card.write_text(yaml.safe_dump(_with_code(stated, field, code(name, trap))))
        commands: list[tuple[object, ...]] = [
            ("import", record, "--check", *given),
            ("import", record, "--out", "imported", "--truth", recorded / "truth", *given),
        ]
        if place == "in a scoring site's lines":
            commands = [
                ("score", "guesses.json", "--truth", recorded / "truth", "--record", record, "--out", "s")
            ]
        for command in commands:
            said = shell.refused(*command)
            assert "--trust-code" in said, said
            assert not trap.exists()
    assert "a_trap" not in sys.modules


def _shares() -> dict[str, Any]:
    guess = {"target": "client/0", "distribution": [0.1] * 10}
    return {
        "schema": "fdaudit-guesses/1",
        "name": NAMES[0].replace(":", "-").replace("_", "-").lower(),
        "adversary": "server",
        "view": "0" * 64,
        "source": NAMES[0],
        "assumes": list(NAMES),
        "label_distribution": [guess],
    }


@pytest.mark.parametrize("field", ["model", "client_models", "protocol", "defenses"])
def test_the_card_of_an_imported_run_names_code_and_no_command_runs_it(
    shell: Shell, trap: Path, recorded: Path, other: Path, tmp_path: Path, field: str
) -> None:
    run = Path(shutil.copytree(recorded / "run", tmp_path / "run"))
    card = yaml.safe_load((run / "card.yaml").read_text())
    (run / "card.yaml").write_text(yaml.safe_dump(_with_code(card, field, code(NAMES[0], trap))))
    sealed(run)
    for command in COMMANDS.values():
        if command[0] != "run":
            status, _, said = _ran(shell, command, run, other)
            assert (status, "--trust-code" in said) == (2, True), said
    assert not trap.exists()


@pytest.mark.parametrize("field", FIELDS)
def test_a_grid_names_code_and_no_sweep_runs_it(shell: Shell, trap: Path, tmp_path: Path, field: str) -> None:
    for name in NAMES:
        base = small_spec(**FIELDS[field](code(name, trap)))
        (shell.home / "base.yaml").write_text(yaml.safe_dump(base))
        for stated in (base, "base.yaml"):
            grid = {"sweep": "s", "base": stated, "seeds": [1]}
            (shell.home / "grid.yaml").write_text(yaml.safe_dump(grid))
            assert "--trust-code" in shell.refused("sweep", "grid.yaml", "--out", "swept")
    assert not trap.exists()
    assert "a_trap" not in sys.modules


def test_an_audits_settings_design_and_guesses_run_no_code(
    shell: Shell, trap: Path, recorded: Path, tmp_path: Path
) -> None:
    truth = Path(shutil.copytree(recorded / "truth", tmp_path / "truth"))
    (shell.home / "audit.yaml").write_text(yaml.safe_dump({"attacks": [code(NAMES[0], trap)]}))
    importing = (
        "import",
        recorded / "record",
        "--card",
        recorded / "card.yaml",
        "--out",
        "out",
        "--truth",
        truth,
    )
    assert "--trust-code" in shell.refused(*importing, "--audit", "audit.yaml")
    lists = json.loads((truth / "records.json").read_bytes())
    for name in NAMES:
        for changed in (
            {**lists, "design": name},
            {**lists, "clients": {name: lists["clients"]["client/0"]}},
        ):
            (truth / "records.json").write_bytes(canonical(changed) + b"\n")
            status, _, _ = shell(*importing)
            assert status in (2, 3)
    (shell.home / "guesses.json").write_text(json.dumps(_shares()))
    status, _, _ = shell("score", recorded / "run", "guesses.json")
    assert status == 2
    assert not trap.exists()
    assert "a_trap" not in sys.modules


# -- the two gates --------------------------------------------------------------------------------------------------


def test_a_spec_that_is_given_counts_as_named(trap: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        fdaudit.run(small_spec(model=code(NAMES[0], trap)), tmp_path / "run")
    assert trap.exists()
    assert "trust" not in str(caught.value)


def test_the_second_gate_holds_without_the_first(trap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fdaudit import attacks, defenses, protocols
    from fdaudit.models import architecture
    from fdaudit.planning.attacks import plan_attack
    from fdaudit.spec.schema import ModelSpec, Spec

    monkeypatch.setattr(trust, "refuse_code", lambda *a: None)
    name = NAMES[0]
    ways: list[Callable[[], object]] = [
        lambda: architecture(ModelSpec(name=name), (1, 8, 8), 10),
        lambda: plan_attack(name, {}, Spec(), "attack", ("server",)),
        *(lambda room=room: room.REGISTRY.load(name) for room in (attacks, defenses, protocols)),  # type: ignore[misc]
    ]
    for way in ways:
        with pytest.raises(FdauditError, match="--trust-code"):
            way()
    assert "a_trap" not in sys.modules


def test_trust_reaches_workers_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_named", set())
    monkeypatch.delenv(trust.TRUST_CODE, raising=False)
    trust.name_code({"model": {"name": NAMES[0]}, "attacks": [{"name": NAMES[1]}, {"name": "gap"}]})
    told = trust.trusted_code()
    assert told == sorted(NAMES[:2])
    monkeypatch.setattr(trust, "_named", set())
    trust.trust_code(told)
    trust.refuse_untrusted(NAMES[1], "model.name")
    with pytest.raises(SpecError):
        trust.refuse_untrusted(NAMES[2], "model.name")
    monkeypatch.setenv(trust.TRUST_CODE, "1")
    trust.refuse_untrusted(NAMES[2], "model.name")
    assert "*" in trust.trusted_code()

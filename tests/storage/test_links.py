"""Every command against a stranger's directory with a link in it: refused in one line, and nothing outside is touched.

A link stands in the place of each file and folder of a finished run, and under names that commands would write next.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import fdaudit
from fdaudit.audit.red_team import export_view
from fdaudit.quickstart.suite import specs as quickstart_names
from fdaudit.testing.specs import small_spec

from ..helpers.command import Cli
from ..helpers.rerecorded import card_of, rerecord
from ..helpers.run_cases import finished
from ..helpers.sweep_cases import grid

SPEC: Mapping[str, Any] = {
    "dataset__limit": 300,
    "attacks": [{"name": "loss-threshold"}],
    "adversaries": ["server", "client/0"],
    "splits__candidates": 8,
}
PRIVATE = "c0ffee-private-to-the-user"
"""What no command may show or copy."""
ATTACK = ("loss-threshold", "--adversary", "server")

Change = Callable[[Path, Path], object]


def _linked(path: Path, outside: Path) -> None:
    """A link to a copy outside, so that what is read through it would be right."""
    target = outside / "copy"
    shutil.move(path, target) if os.path.lexists(path) else target.mkdir()
    path.symlink_to(target)


def _to(target: Callable[[Path, Path], str | Path]) -> Change:
    """Return a change that leaves a link to the target in the place of a path."""

    def change(path: Path, outside: Path) -> None:
        _gone(path)
        path.symlink_to(target(path, outside))

    return change


_linked_to_a_private_file = _to(lambda path, outside: outside / "private.txt")
_linked_to_a_folder = _to(lambda path, outside: outside / "folder")
_dead = _to(lambda path, outside: outside / "nowhere")
_circular = _to(lambda path, outside: path.name)
_device = _to(lambda path, outside: "/dev/full")


def _hard(path: Path, outside: Path) -> None:
    _gone(path)
    path.hardlink_to(outside / "private.txt")


def _pipe(path: Path, outside: Path) -> None:
    _gone(path)
    os.mkfifo(path)


def _gone(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


CHANGES: tuple[Change, ...] = (
    _linked,
    _linked_to_a_private_file,
    _linked_to_a_folder,
    _dead,
    _circular,
    _device,
    _hard,
    _pipe,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with everything that commands add to it, guesses about it, and a record with its card."""
    home = tmp_path_factory.mktemp("links")
    run = finished(home / "run", **SPEC)
    loaded = fdaudit.load(run)
    fdaudit.report(loaded)
    fdaudit.report(loaded, public=True)
    export_view(loaded, "server", home / "handout")
    view = json.loads((home / "handout" / "card.json").read_bytes())["view_sha256"]
    about = {"schema": "fdaudit-guesses/1", "name": "mine", "adversary": "server", "view": view}
    shares = [{"target": "client/0", "distribution": [0.1] * 10}]
    (home / "guesses.json").write_text(json.dumps({**about, "label_distribution": shares}))
    fdaudit.load(run).opened.vault.note_handed_out(["client/1"])
    (home / "foreign").mkdir()
    rerecord(loaded, home / "foreign")
    (home / "foreign" / "card.yaml").write_text(yaml.safe_dump(card_of(loaded)))
    (home / "spec.yaml").write_text(yaml.safe_dump(small_spec(**SPEC)))
    shutil.copytree(run, home / "other")
    return home


COMMANDS: Mapping[str, Callable[[Path], tuple[object, ...]]] = {
    "attack": lambda home: ("attack", home / "run", *ATTACK),
    "attack --all": lambda home: ("attack", home / "run", "--all"),
    "attack --guesses": lambda home: ("attack", home / "run", *ATTACK, "--guesses", home / "made"),
    "report": lambda home: ("report", home / "run"),
    "report --public": lambda home: ("report", home / "run", "--public"),
    "report --out": lambda home: ("report", home / "run", "--out", home / "run" / "report" / "mine.html"),
    "score": lambda home: ("score", home / "run", home / "guesses.json"),
    "ledger": lambda home: ("ledger", home / "run"),
    "ledger --curve": lambda home: ("ledger", home / "run", "--curve", home / "run" / "report" / "curve"),
    "run --resume": lambda home: ("run", "--resume", "--out", home / "run"),
    "run SPEC --resume": lambda home: ("run", home / "spec.yaml", "--resume", "--out", home / "run"),
    "run --seed-from": lambda home: (
        *("run", home / "spec.yaml", "--out", home / "made", "--seed-from", home / "run"),
    ),
    "evidence": lambda home: ("evidence", home / "run", "--out", home / "made"),
    "export-view": lambda home: ("export-view", home / "run", "server", "--out", home / "made"),
    "compare": lambda home: ("compare", home / "run", home / "other", "--out", home / "made"),
    "verify": lambda home: ("verify", home / "run"),
}
OF_THE_VAULT = ("run --seed-from",)
"""Commands that read the vault and the controls only."""

REPRESENTATIVE = (
    ("attack", "vault/scores", _linked),
    ("attack", "attacks", _linked_to_a_folder),
    ("attack --all", "attacks/controls", _linked),
    ("report", "report", _linked_to_a_folder),
    ("report", "result.json", _hard),
    ("report --out", "report", _linked),
    ("report --public", "vault", _linked),
    ("score", "attacks/.external-mine.json.tmp", _linked_to_a_private_file),
    ("ledger", "spec.yaml", _linked_to_a_private_file),
    ("ledger --curve", "report", _linked_to_a_folder),
    ("run --resume", "utility.csv", _hard),
    ("run --resume", "transcript/messages.jsonl", _pipe),
    ("run --resume", "vault/secrets.json", _linked),
    ("run SPEC --resume", "spec.yaml", _linked_to_a_private_file),
    ("run SPEC --resume", "timings.json", _device),
    ("run --seed-from", "vault/secrets.json", _linked),
    ("evidence", "attacks/server-loss-threshold.json", _circular),
    ("export-view", "vault/handed_out", _linked),
    ("compare", "report/index.html", _linked_to_a_private_file),
    ("verify", "report", _dead),
)


def _state(outside: Path) -> dict[str, Any]:
    """Everything of the directories and files outside that a write would change."""
    found = {}
    for path in sorted([outside, *outside.rglob("*")]):
        status = path.lstat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        found[str(path)] = (status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, digest)
    return found


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    (tmp_path / "outside" / "folder").mkdir(parents=True)
    (tmp_path / "outside" / "folder" / "notes.txt").write_text(PRIVATE)
    (tmp_path / "outside" / "private.txt").write_text(f"{PRIVATE}: 1\n")
    for name in ("run", "other", "foreign"):
        shutil.copytree(made / name, tmp_path / name)
    for name in ("guesses.json", "spec.yaml"):
        shutil.copyfile(made / name, tmp_path / name)
    return tmp_path


def _shown(home: Path) -> Iterator[str]:
    """The files with what is private, outside its own place."""
    for root, _, files in os.walk(home):
        for name in files:
            path = Path(root, name)
            if path.is_symlink() or not path.is_file() or path.is_relative_to(home / "outside"):
                continue
            if path.stat().st_nlink == 1 and PRIVATE.encode() in path.read_bytes():
                yield str(path)


def _refused(command: str, home: Path, cli: Cli) -> None:
    before = _state(home / "outside")
    code, out, error = cli(*COMMANDS[command](home))
    assert _state(home / "outside") == before
    assert PRIVATE not in out + error
    assert not list(_shown(home))
    assert code in (2, 3), error
    assert (error or out).count("\n") == 1


@pytest.mark.parametrize(("command", "place", "change"), REPRESENTATIVE)
def test_a_link_in_a_run_is_refused(command: str, place: str, change: Change, home: Path, cli: Cli) -> None:
    change(home / "run" / place, home / "outside")
    _refused(command, home, cli)


@pytest.mark.thorough
@pytest.mark.parametrize("command", COMMANDS)
def test_a_link_anywhere_in_a_run_is_refused(command: str, home: Path, cli: Cli) -> None:
    run, places = home / "run", _places(home / "run")
    if command in OF_THE_VAULT:
        places = [p for p in places if p.partition("/")[0] in ("attacks", "vault")]
    shutil.move(run, home / "whole")
    # Each place meets every third command, and each time another change.
    first = list(COMMANDS).index(command)
    for number, place in enumerate(places[first % 3 :: 3]):
        change = CHANGES[(first + number) % len(CHANGES)]
        shutil.copytree(home / "whole", run)
        outside = home / "outside" / str(number)
        outside.mkdir()
        shutil.copyfile(home / "outside" / "private.txt", outside / "private.txt")
        (outside / "folder").mkdir()
        change(run / place, outside)
        _refused(command, home, cli)
        shutil.rmtree(run)
        shutil.rmtree(outside)


def _places(run: Path) -> list[str]:
    """Each file and folder of a run, and names that commands write next."""
    there = [p.relative_to(run).as_posix() for p in sorted(run.rglob("*"))]
    written = ("spec.yaml", "result.json", "timings.json", "attacks/server-loss-threshold.json")
    temporary = [str(Path(name).with_name(f".{Path(name).name}.tmp")) for name in written]
    new = ["attacks/external-mine.json", "vault/published.json", "report/mine.html", "anything"]
    return [*there, *temporary, *new]


@pytest.mark.thorough
def test_the_run_directory_itself_may_be_a_link(home: Path, cli: Cli) -> None:
    shutil.move(home / "run", home / "kept")
    (home / "run").symlink_to("kept")
    for name in ("attack", "report", "score", "ledger --curve", "run --resume", "evidence", "verify"):
        code, _, error = cli(*COMMANDS[name](home))
        assert code == 0, (name, error)


# -- directories of several runs, and records -------------------------------------------------------------------


@pytest.mark.parametrize("place", ["fedkd", "fedkd/vault"])
def test_a_quickstart_does_not_go_on_through_a_link(place: str, home: Path, cli: Cli) -> None:
    for name in quickstart_names():
        (home / "audit" / name / "vault").mkdir(parents=True)
    _linked(home / "audit" / place, home / "outside")
    before = _state(home / "outside")
    code, _, error = cli("quickstart", "--resume", "--out", home / "audit")
    assert (code, error.count("\n")) == (3, 1), error
    assert _state(home / "outside") == before


@pytest.mark.parametrize(
    "place", ["runs", "locks", "shared", "scratch", "runs/0123456789abcdef", "runs/x/vault"]
)
def test_a_sweep_does_not_go_on_through_a_link(place: str, home: Path, cli: Cli) -> None:
    wanted = grid()
    (home / "grid.yaml").write_text(yaml.safe_dump(wanted))
    (home / "swept" / place).parent.mkdir(parents=True)
    index = {"schema": "fdaudit-sweep/1", "version": "0", "grid": wanted, "runs": []}
    (home / "swept" / "sweep.json").write_text(json.dumps(index))
    _linked_to_a_folder(home / "swept" / place, home / "outside")
    before = _state(home / "outside")
    out = home / "swept"
    code, _, error = cli("sweep", home / "grid.yaml", "--resume", "--out", out)
    assert (code, error.count("\n")) == (3, 1), error
    assert _state(home / "outside") == before


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "place", ["record.json", "transcript", "transcript/payloads", "transcript/messages.jsonl"]
)
def test_a_link_in_a_record_is_refused(place: str, change: Change, home: Path, cli: Cli) -> None:
    change(home / "foreign" / "record" / place, home / "outside")
    before = _state(home / "outside")
    record, card = home / "foreign" / "record", home / "foreign" / "card.yaml"
    for options in (("--check",), ("--out", home / "made")):
        code, out, error = cli("import", record, "--card", card, *options)
        assert code in (2, 3), error
        assert PRIVATE not in out + error
        assert _state(home / "outside") == before
        assert not (home / "made").exists()

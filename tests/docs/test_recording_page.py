"""The page on recording: its programs are executed as printed, and what they write passes the check."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fdaudit
from fdaudit import api
from fdaudit.kinds import KINDS
from fdaudit.recording.record import check_record
from fdaudit.recording.recorder import Recorder
from fdaudit.spec.card import load_card
from fdaudit.storage.files import decode
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import read_messages

from ..helpers.cli_cases import Shell
from ..helpers.command import Cli
from ..helpers.docs_pages import ROOT, blocks, table

_PAGE = "docs/recording.md"
_LOOP, _READER = blocks(_PAGE, "python")
_WRITER = (ROOT / "examples" / "write_record.py").read_text(encoding="utf-8")

Command = Callable[[str], tuple[int, str, str]]


def _executed(source: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"__name__": "snippet"}
    with torch.random.fork_rng():
        exec(compile(source, _PAGE, "exec"), scope)
    return scope


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def recorded(folder: Path) -> dict[str, Any]:
    """The names that the page's loop leaves, run in an empty directory."""
    return _executed(_LOOP)


@pytest.fixture
def command(folder: Path, cli: Cli) -> Command:
    """`fdaudit verify`: exit code, standard output, standard error."""
    return lambda record: cli("verify", record)


def test_eleven_lines_are_added_and_change_nothing(recorded: dict[str, Any]) -> None:
    lines = _LOOP.splitlines()
    assert sum(line.endswith("# +") for line in lines) == 11
    bare = "\n".join(line for line in lines if not line.endswith("# +"))
    assert "record" not in bare.lower()
    without = _executed(bare)["server"]
    assert without.keys() == recorded["server"].keys()
    for name, value in without.items():
        assert torch.equal(value, recorded["server"][name])


def test_the_record_of_the_loop_passes_the_check(
    recorded: dict[str, Any], folder: Path, command: Command
) -> None:
    code, said, error = command("RECORD")
    assert code == 0, error
    assert said.startswith("intact")
    assert len(said.splitlines()) == 1, "nothing is missing from a closed record"
    *sent, last = read_messages(folder / "RECORD/transcript")
    assert [m.sender for m in sent] == ["server", "client/0", "client/1", "client/2"] * 2
    published = decode(read_payload(folder / "RECORD/transcript", last))
    for name, value in recorded["server"].items():
        assert torch.equal(published[name], value)


def test_a_changed_byte_of_the_record_is_found(
    recorded: dict[str, Any], folder: Path, command: Command
) -> None:
    shard = folder / "RECORD/transcript/payloads/round-000001.shard"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    code, said, error = command("RECORD")
    assert code == 3
    assert "intact" not in said
    assert "digest" in error


def test_the_reader_prints_every_message(
    recorded: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    _executed(_READER)
    assert len(capsys.readouterr().out.splitlines()) == 9


@pytest.mark.parametrize(
    ("heading", "function"), [("### A record", Recorder.__init__), ("### A message", Recorder.send)]
)
def test_the_page_lists_the_arguments(heading: str, function: Callable[..., object]) -> None:
    wanted = [name for name in inspect.signature(function).parameters if name != "self"]
    assert list(table(_PAGE, heading)) == wanted


def test_the_page_lists_the_files_and_the_fields(recorded: dict[str, Any], folder: Path) -> None:
    with Recorder("SITES", ["server"], truth="SITES-TRUTH") as record:
        record.sites({"server": "a"})
    listed = table(_PAGE, "## RECORD")
    found = {p.name + "/" * p.is_dir() for p in (folder / "RECORD").iterdir()}
    assert listed.keys() == found | {"card.yaml"}
    (cell,) = listed["record.json"]
    assert {f"`{field}`" in cell for field in json.loads((folder / "RECORD/record.json").read_bytes())} == {
        True
    }
    truth = {p.name for d in ("TRUTH", "SITES-TRUTH") for p in (folder / d).iterdir()}
    assert {"client-0.npz", "client-1.npz", "client-2.npz"} <= truth
    others = {name for name in truth if not name.startswith("client-")}
    assert table(_PAGE, "## TRUTH").keys() == others | {"client-K.npz"}


def test_the_page_lists_the_kinds_that_clients_send() -> None:
    listed = {
        re.findall(r"`([\w/-]+)`", kind)[0]
        for (kind,) in table(_PAGE, "## Which kind is my message?").values()
    }
    own = {name for name in listed if name not in KINDS}
    assert own == {"acme/features"}
    ways = {"updates", "answers", "ensemble", "prototypes", "counts", "labels"}
    started = {kind.name for kind in KINDS.values() if kind.way in ways and not kind.exact}
    assert started <= listed


def test_the_loop_s_record_is_imported_with_its_truth(recorded: dict[str, Any], folder: Path) -> None:
    card = {
        "name": "the loop",
        "asserted_by": "the page",
        "classes": 3,
        "input_shape": [1, 1, 8],
        "protocol": {"name": "own"},
        "training": {"lr": 0.1, "local_steps": 1, "batch_size": 20},
    }
    case = fdaudit.import_record("RECORD", "RUN", card=card, truth=["TRUTH"]).case
    assert case.system.not_brought.isdisjoint({"records", "images", "uses"})
    for party, rows in recorded["clients"].items():
        split = case.splits.clients[int(party.removeprefix("client/"))]
        assert torch.equal(case.dataset.x[split.train].flatten(1), recorded["x"][rows])
        assert torch.equal(case.dataset.y[split.train], recorded["y"][rows])


def test_what_the_writer_writes_passes_the_check(folder: Path, command: Command) -> None:
    path = folder / "write_record.py"
    path.write_text(_WRITER, encoding="utf-8")
    subprocess.run([sys.executable, str(path)], check=True, cwd=folder)
    code, _, error = command("WRITTEN")
    assert code == 0, error
    checked = check_record(folder / "WRITTEN")
    assert (checked.findings, checked.notes) == ((), ())
    messages = list(read_messages(folder / "WRITTEN/transcript"))
    assert [(m.round, m.step) for m in messages] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    got = decode(read_payload(folder / "WRITTEN/transcript", messages[3]))
    assert torch.equal(got["weight"], torch.tensor([[0.5, -1, 2], [0, 1, 3]]))


def test_the_writer_needs_the_standard_library_alone_and_splits_large_payloads(folder: Path) -> None:
    tree = list(ast.walk(ast.parse(_WRITER)))
    names = {a.name for n in tree if isinstance(n, ast.Import) for a in n.names}
    names |= {str(n.module) for n in tree if isinstance(n, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names
    small, large = {"w": ([1], [1.0])}, {"w": ([1 << 18], [2.0] * (1 << 18))}
    sent = [(0, "server", ["client/0"], "model_parameters", t) for t in (small, large, small)]
    _executed(_WRITER)["write"](folder / "WRITTEN", ["server", "client/0"], sent)
    assert (folder / "WRITTEN/transcript/payloads/00000001.safetensors").exists()
    assert check_record(folder / "WRITTEN").findings == ()


# -- the example of a system's own loop ----------------------------------------------------------------------------


EXAMPLE = ROOT / "examples" / "own-loop"


def test_recording_adds_eight_lines_and_a_card() -> None:
    lines = (EXAMPLE / "loop.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 60
    assert sum(line.endswith("# +") for line in lines) == 8
    assert load_card(EXAMPLE / "card.yaml").stand_in is not None


@pytest.mark.thorough
def test_the_example_leads_to_a_report(tmp_path: Path, shell: Shell) -> None:
    shell.told(
        "design",
        "digits",
        "--sites",
        3,
        "--public",
        0.1,
        "--test",
        0.1,
        "--auxiliary",
        0.2,
        "--out",
        "DESIGN",
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, EXAMPLE / "loop.py", "DESIGN"], check=True, cwd=shell.home, env=environment
    )
    assert check_record(shell.home / "RECORD").findings == ()
    brought = ("--truth", "TRUTH", "--truth", "DESIGN/truth")
    shell.told(
        "import",
        "RECORD",
        "--card",
        EXAMPLE / "card.yaml",
        *brought,
        "--audit",
        EXAMPLE / "audit.yaml",
        "--out",
        "RUN",
    )
    cells = {name: api.attack(name, api.load(shell.home / "RUN")) for name in ("co-op-lira", "label-answers")}
    assert {cell.status for cell in cells.values()} == {"run"}
    assert all(cell.controls.positive.passed for cell in cells.values())
    page = Path(shell.told("report", "RUN")[0].strip())
    assert "did not run" in (shell.home / page).read_text(encoding="utf-8")

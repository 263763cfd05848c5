"""A record is checked whole, and only its closed rounds count."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fdaudit.cli.app import main
from fdaudit.errors import FdauditError, IntegrityError, RunError
from fdaudit.recording.record import check_record, is_record, read_record
from fdaudit.recording.recorder import Recorder
from fdaudit.storage.digests import canonical
from fdaudit.transcript.transcript import LOG

PARTIES = ("server", "client/0", "client/1", "world")


def send_rounds(recorder: Recorder, rounds: int, first: int = 0) -> None:
    for t in range(first, first + rounds):
        recorder.round(t)
        model = recorder.send(
            "server", ["client/0", "client/1"], "model_parameters", {"w": np.arange(6.0) + t}, inputs=[]
        )
        for k in range(2):
            recorder.send(
                f"client/{k}", "server", "gradient", {"w": np.full(6, float(k))}, inputs=["data", model.seq]
            )
        recorder.send("server", [], "acme/prototype-bank", {"p": np.zeros((2, 300_000))})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("whole") / "record"
    with Recorder(place, PARTIES) as recorder:
        send_rounds(recorder, 3)
    return place


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record whose recorder never closed: two closed rounds, and part of a third."""
    place = tmp_path_factory.mktemp("killed") / "record"
    with suppress(KeyboardInterrupt), Recorder(place, PARTIES) as recorder:
        send_rounds(recorder, 3)
        raise KeyboardInterrupt
    return place


@pytest.fixture
def record(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "record"))


def rewrite(record: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    value = json.loads((record / "record.json").read_bytes())
    change(value)
    (record / "record.json").write_bytes(canonical(value) + b"\n")


# -- what is whole ---------------------------------------------------------------------------------------------


def test_a_closed_record_is_intact_with_kinds_of_its_own(whole: Path) -> None:
    assert is_record(whole)
    found = read_record(whole)
    assert (found.parties, found.messages, found.rounds, found.closed) == (PARTIES, 12, 3, True)
    assert check_record(whole) == check_record(whole)
    assert check_record(whole).findings == check_record(whole).notes == ()


@pytest.mark.parametrize("cut", [0, 1, 40, "shard", "own", "all"])
def test_a_kill_loses_the_open_round_and_no_other(killed: Path, tmp_path: Path, cut: int | str) -> None:
    place = Path(shutil.copytree(killed, tmp_path / "record"))
    log = place / "transcript" / LOG
    lines = log.read_bytes().splitlines(keepends=True)
    assert len(lines) == 12
    if isinstance(cut, int) and cut:
        log.write_bytes(b"".join(lines)[:-cut])
    elif cut == "all":
        log.write_bytes(b"".join(lines[:8]))
        (place / ".record.json.tmp").write_bytes(b"half")
    elif cut == "shard":
        (place / "transcript/payloads/round-000002.shard").unlink()
    elif cut == "own":
        (place / "transcript/payloads/00000011.safetensors").write_bytes(b"half")
    checked = check_record(place)
    assert checked.findings == ()
    assert "2 closed rounds" in checked.notes[0]
    assert "8 messages" in checked.notes[0]
    assert len(checked.notes) == 1 + (cut != "all")


# -- what is not -----------------------------------------------------------------------------------------------


def _at(line: int, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def apply(record: Path) -> None:
        log = record / "transcript" / LOG
        lines = log.read_bytes().splitlines(keepends=True)
        lines[line] = change(lines[line])
        log.write_bytes(b"".join(lines))

    return apply


def _in_json(**changes: Any) -> Callable[[Path], None]:
    return lambda record: rewrite(record, lambda value: value.update(changes))


def _swap(record: Path) -> None:
    log = record / "transcript" / LOG
    lines = log.read_bytes().splitlines(keepends=True)
    lines[4], lines[8] = lines[8], lines[4]
    log.write_bytes(b"".join(lines))


def _stray(record: Path) -> None:
    (record / "transcript" / "payloads" / "notes.txt").write_text("x")


DAMAGE: Mapping[str, Callable[[Path], None]] = {
    "a dropped message": _at(5, lambda line: b""),
    "reordered rounds": _swap,
    "another kind": _at(5, lambda line: line.replace(b'"gradient"', b'"model_update"')),
    "a kind of no vocabulary": _at(5, lambda line: line.replace(b'"gradient"', b'"gradients"')),
    "narrower inputs": _at(5, lambda line: line.replace(b'"inputs":["data",4]', b'"inputs":["data"]')),
    "an unknown party": _in_json(parties=["server", "client/0", "world"]),
    "fewer messages": _in_json(messages=11),
    "fewer rounds": _in_json(rounds=2),
    "another head": _in_json(head="0" * 63 + "1"),
    "no payload": lambda record: (record / "transcript/payloads/round-000001.shard").unlink(),
    "a changed payload": lambda record: (record / "transcript/payloads/00000003.safetensors").write_bytes(
        b"x"
    ),
    "a longer payload": lambda record: _longer(record / "transcript/payloads/00000003.safetensors"),
    "no log": lambda record: (record / "transcript" / LOG).unlink(),
    "a file beside": lambda record: _longer(record / "run.sh"),
    "a link for the log": lambda record: _link(record / "transcript" / LOG),
    "a link for a payload": lambda record: _link(record / "transcript/payloads/00000003.safetensors"),
    "a link for record.json": lambda record: _link(record / "record.json"),
}


def _longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def _link(path: Path) -> None:
    elsewhere = path.parents[2] / "elsewhere" / path.name
    elsewhere.parent.mkdir(exist_ok=True)
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found(record: Path, name: str) -> None:
    DAMAGE[name](record)
    assert check_record(record).findings


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "fdaudit-record/9"},
        {"parties": []},
        {"parties": ["server", "server"]},
        {"parties": ["../../etc"]},
        {"messages": -1},
        {"messages": "3"},
        {"messages": True},
        {"status": "half"},
        {"head": "x"},
        {"more": 1},
    ],
    ids=str,
)
def test_a_damaged_description_is_refused(record: Path, change: dict[str, Any]) -> None:
    rewrite(record, lambda value: value.update(change))
    with pytest.raises(IntegrityError, match=r"record\.json is damaged"):
        read_record(record)
    assert check_record(record).findings


def test_what_is_no_record_is_a_usage_error(tmp_path: Path) -> None:
    assert not is_record(tmp_path)
    with pytest.raises(RunError, match=r"has no record\.json"):
        check_record(tmp_path)


@pytest.mark.thorough
def test_two_hundred_mutations_end_no_check(whole: Path, tmp_path: Path) -> None:
    """Bytes, headers, shapes, paths and JSON at random places: a finding, or nothing changed that counts."""
    draw = random.Random(5)
    files = sorted(p.relative_to(whole) for p in whole.rglob("*") if p.is_file())
    hostile = [
        b"../../../etc/passwd",
        b"NaN",
        b"1e400",
        b"\x00",
        b'"',
        b"[" * 500,
        b"99999999999999999999",
        b"\n",
    ]
    found = 0
    for number in range(200):
        place = Path(shutil.copytree(whole, tmp_path / str(number)))
        path = place / draw.choice(files)
        data = bytearray(path.read_bytes())
        at = draw.randrange(min(len(data), 4096))
        data[at : at + draw.choice((0, 1, 8))] = draw.choice([*hostile, bytes([draw.randrange(256)])])
        before = path.read_bytes()
        path.write_bytes(data)
        try:
            findings = check_record(place).findings
        except FdauditError as error:
            findings = (str(error),)
        assert (
            findings
            or bytes(data) == before
            or (path.name == "record.json" and same_but_the_version(before, data))
        )
        found += bool(findings)
        shutil.rmtree(place)
    assert found > 150
    assert not list(tmp_path.iterdir())


def same_but_the_version(before: bytes, after: bytes) -> bool:
    """Whether two descriptions differ in nothing but the version of the recorder, which nothing depends on."""
    one, two = json.loads(before), json.loads(after)
    return bool(one | {"recorder": ""} == two | {"recorder": ""})


def test_an_input_that_the_sender_never_held_is_found(tmp_path: Path) -> None:
    with Recorder(tmp_path / "record", PARTIES) as recorder:
        recorder.round(0)
        private = recorder.send("client/0", "server", "gradient", {"w": np.zeros(3)}, inputs=["data"])
        recorder.send("client/1", "server", "gradient", {"w": np.zeros(3)}, inputs=["data", private.seq])
    (finding,) = check_record(tmp_path / "record").findings
    assert f"line 2: client/1 names message {private.seq}" in finding


# -- the command -----------------------------------------------------------------------------------------------


def asked(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["fdaudit", "verify", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_verify_reads_records(
    whole: Path,
    killed: Path,
    record: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert asked(monkeypatch, str(whole)) == 0
    assert capsys.readouterr().out.startswith("intact: ")
    assert asked(monkeypatch, str(killed)) == 0
    assert "8 messages" in capsys.readouterr().out
    DAMAGE["a dropped message"](record)
    assert asked(monkeypatch, str(record)) == 3
    said = capsys.readouterr()
    assert "line 6" in said.err
    assert said.out == ""
    assert asked(monkeypatch, str(record), "--json") == 3
    value = json.loads(capsys.readouterr().out)
    assert value["intact"] is False
    assert value["findings"]

"""No name or text of a stranger's file makes a line, a field or code: it is refused, and nothing is written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fdaudit.audit.guesses import Guesses, guesses_and_digest
from fdaudit.errors import FdauditError, IntegrityError, SpecError, UsageError
from fdaudit.importing.new_card import new_card
from fdaudit.importing.records import check, import_record
from fdaudit.kinds import KINDS
from fdaudit.recording.record import check_record
from fdaudit.recording.recorder import Recorder, RecordError
from fdaudit.recording.truth import read_sites
from fdaudit.spec.card import Card, load_card
from fdaudit.spec.documents import read_yaml
from fdaudit.spec.schema import Spec, load_spec

from ..helpers.cli_cases import Shell
from ..helpers.hostile_names import LINE, NAMES, NO_NAME, NO_TEXT, a_record, forge, rename_tensor, text_places

CARD: dict[str, Any] = {
    "name": "Acme",
    "asserted_by": "Acme's team",
    "classes": 2,
    "input_shape": [1, 2, 2],
    "protocol": {"name": "acme-avg"},
}


def refused_everywhere(record: Path, out: Path) -> None:
    """Every reader of a record refuses it, in one line each, and writes nothing."""
    (finding, *_) = check_record(record).findings
    assert finding.isprintable()
    assert check(record, card=CARD)[0]
    for read in (
        lambda: new_card(record, out / "card.yaml"),
        lambda: import_record(record, out / "run", card=CARD),
    ):
        with pytest.raises(FdauditError) as error:
            read()
        assert str(error.value).isprintable()
        assert error.value.exit_code in (2, 3)
    assert not out.exists()


# -- the record -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", NO_NAME)
def test_a_tensor_has_a_name(what: str, tmp_path: Path) -> None:
    record = a_record(tmp_path / "record")
    rename_tensor(record, NO_NAME[what])
    refused_everywhere(record, tmp_path / "out")


@pytest.mark.parametrize("what", NO_TEXT)
@pytest.mark.parametrize("place", LINE)
def test_a_line_holds_texts(place: str, what: str, tmp_path: Path) -> None:
    record = a_record(tmp_path / "record")
    forge(record, lambda line: LINE[place](line, NO_TEXT[what]))
    refused_everywhere(record, tmp_path / "out")


@pytest.mark.parametrize("what", NO_NAME)
@pytest.mark.parametrize("place", ["sender", "receivers", "kind", "dtype", "payload"])
def test_a_line_names_what_there_is(place: str, what: str, tmp_path: Path) -> None:
    record = a_record(tmp_path / "record")
    forge(record, lambda line: LINE[place](line, NO_NAME[what]))
    refused_everywhere(record, tmp_path / "out")


@pytest.mark.parametrize("what", NO_NAME)
def test_a_record_names_parties(what: str, tmp_path: Path) -> None:
    record = a_record(tmp_path / "record")
    about = json.loads((record / "record.json").read_bytes())
    about["parties"].append(NO_NAME[what])
    (record / "record.json").write_text(json.dumps(about, sort_keys=True, separators=(",", ":")) + "\n")
    (finding, *_) = check_record(record).findings
    assert finding.isprintable()


@pytest.mark.parametrize("what", NO_NAME)
def test_the_recorder_writes_no_such_name(what: str, tmp_path: Path) -> None:
    with Recorder(tmp_path / "record", ["server", "client/0"], truth=tmp_path / "truth") as recorder:
        recorder.round(0)
        for send in (
            lambda name: recorder.send("client/0", "server", "gradient", {name: np.zeros(1)}),
            lambda name: recorder.send(name, "server", "gradient", {"w": np.zeros(1)}),
            lambda name: recorder.send("client/0", name, "gradient", {"w": np.zeros(1)}),
            lambda name: recorder.send("client/0", "server", name, {"w": np.zeros(1)}),
            lambda name: recorder.sites({"client/0": name}),
        ):
            with pytest.raises(RecordError) as error:
                send(NO_NAME[what])
            assert str(error.value).isprintable()
    assert check_record(tmp_path / "record").findings == ()


# -- the card that is written ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_new_card_says_what_the_record_shows(name: str, tmp_path: Path) -> None:
    record = a_record(tmp_path / "record")
    rename_tensor(record, name)
    card = read_yaml(new_card(record, tmp_path / "card.yaml"), "card")
    assert card.pop("messages") == [
        {"kind": "model_update", "sender": "client", "what": KINDS["model_update"].text}
    ]
    assert card == {
        "name": "FILL IN",
        "asserted_by": "FILL IN",
        "clients": 1,
        "task": "single-label",
        "classes": "FILL IN",
        "input_shape": "FILL IN",
        "protocol": {"name": "FILL IN"},
        "transport": "plain",
        **({"prefix": f"{name.partition('.')[0]}."} if name.startswith(("module.", "_module.")) else {}),
    }


def test_a_name_never_becomes_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    """The attack: a line break in a tensor's name writes `model: import:…` into the card that `card new` makes."""
    (tmp_path / "sentinel.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nNet = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    record = a_record(tmp_path / "record")
    rename_tensor(record, NO_TEXT["a model"])
    for command in (("verify", record), ("card", "new", record), ("import", record, "--check")):
        code, out, err = shell(*command)
        assert code in (2, 3)
        assert all(line.startswith("fdaudit: ") for line in err.splitlines()), err
        assert "intact" not in out
    assert not (record / "card.yaml").exists()
    assert not (tmp_path / "ran").exists()
    assert "sentinel" not in sys.modules


# -- documents -------------------------------------------------------------------------------------------------------


def with_text(document: dict[str, Any], path: tuple[str, ...], text: str) -> dict[str, Any]:
    value: Any = text
    for name in reversed(path[1:]):
        value = [value] if name == "0" else {text: {text: 1}} if name == "*" else {name: value}
    return {**document, path[0]: value}


READERS: dict[str, tuple[type[Any], Callable[[Path], object], dict[str, Any]]] = {
    "card": (Card, load_card, CARD),
    "spec": (Spec, load_spec, {}),
    "guesses": (Guesses, guesses_and_digest, {"schema": "fdaudit-guesses/1"}),
}


@pytest.mark.parametrize("what", NO_TEXT)
@pytest.mark.parametrize("kind", READERS)
def test_every_text_of_a_document_is_one_line(kind: str, what: str, tmp_path: Path) -> None:
    document, read, base = READERS[kind]
    places = text_places(document)
    assert len(places) >= 6
    for place in [*places, ("unknown",)]:
        value = with_text(base, place, NO_TEXT[what])
        path = tmp_path / "document"
        if kind == "guesses":
            path.write_text(json.dumps(value))
        else:
            try:
                path.write_text(yaml.safe_dump(value))
            except UnicodeEncodeError:
                path.write_text(json.dumps(value))  # which is YAML, with the half character escaped
        with pytest.raises(UsageError) as error:
            read(path)
        assert str(error.value).isprintable(), place


@pytest.mark.parametrize("what", NO_NAME)
@pytest.mark.parametrize("place", ["party", "site"])
def test_a_site_has_a_name(place: str, what: str, tmp_path: Path) -> None:
    sites = {NO_NAME[what]: "north"} if place == "party" else {"client/0": NO_NAME[what]}
    (tmp_path / "sites.json").write_text(json.dumps(sites))
    with pytest.raises(UsageError) as error:
        read_sites(tmp_path / "sites.json")
    assert str(error.value).isprintable()


def test_a_card_that_would_mean_something_else_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last defence: whatever a comment held, the card says what was meant, or there is none."""
    record = a_record(tmp_path / "record")
    monkeypatch.setattr("fdaudit.importing.new_card._commented", lambda text: f"# {text}\n")
    monkeypatch.setattr("fdaudit.importing.new_card._tensors", lambda messages: "\nmodel: {name: mlp}\n#")
    with pytest.raises((IntegrityError, SpecError)):
        new_card(record, tmp_path / "card.yaml")
    assert not (tmp_path / "card.yaml").exists()

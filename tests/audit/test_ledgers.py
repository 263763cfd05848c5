"""The terms of a ledger that the vault keeps: the same figures without the case, and nothing that is out of date."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fdaudit.api import load
from fdaudit.audit import ledgers
from fdaudit.audit.ledgers import books_of, kept_books
from fdaudit.errors import IntegrityError, SpecError
from fdaudit.scoring.run_directory import RunDirectory
from tests.helpers.run_cases import finished

PRIVATE = {
    "at": "training",
    "name": "dp-sgd",
    "params": {"clip": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.5},
}
CASES: Mapping[str, Mapping[str, Any]] = {
    "bare": {},
    "private training": {"defenses": [PRIVATE], "withhold": ["sample_count"]},
    "answers of clients": {
        "protocol": {"name": "fedmd", "params": {"rounds": 1, "batch_size": 16, "local_steps": 1}},
        "splits__proxy": 0.2,
        "oracles": True,
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("kept") / "run")


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_kept_terms_give_the_ledger_of_the_case(name: str, tmp_path: Path) -> None:
    path = finished(tmp_path / "run", **CASES[name])
    kept, opened = kept_books(path), books_of(RunDirectory.reopen(path))
    assert kept is not None
    assert kept.views == opened.views
    for view in (*kept.views, "client/0", "eavesdropper"):
        assert kept.ledger(view, pld=False) == opened.ledger(view, pld=False)
        assert kept.accounts(view) == opened.accounts(view)


def test_a_ledger_needs_no_case(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = books_of(RunDirectory.reopen(run)).ledger("server")

    def refuse(path: Path) -> RunDirectory:
        raise AssertionError("the case was opened")

    monkeypatch.setattr(RunDirectory, "reopen", refuse)
    assert load(run).ledger("server") == expected


def altered(run: Path, place: Path, change: Any) -> Path:
    """Return a copy of a run whose kept terms are changed."""
    shutil.copytree(run, place)
    file = place / "vault" / "ledger.json"
    value = json.loads(file.read_text())
    file.write_text(change(value))
    return place


@pytest.mark.parametrize(
    "change",
    [
        lambda value: json.dumps(value)[:-1],
        lambda value: "[]",
        lambda value: json.dumps({**value, "terms": {**value["terms"], "records": 5}}),
        lambda value: json.dumps({k: v for k, v in value.items() if k != "seal"}),
    ],
)
def test_damaged_terms_count_as_missing(run: Path, tmp_path: Path, change: Any) -> None:
    copy = altered(run, tmp_path / "copy", change)
    assert kept_books(copy) is None
    assert load(copy).ledger("server") == load(run).ledger("server")


def test_terms_of_another_version_count_as_missing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept_books(run) is not None
    monkeypatch.setattr(ledgers, "own_digest", lambda: "another")
    assert kept_books(run) is None


def test_terms_do_not_stand_in_for_a_record_that_was_changed(run: Path, tmp_path: Path) -> None:
    copy = altered(run, tmp_path / "copy", json.dumps)
    log = copy / "transcript" / "messages.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"step":0', b'"step":1', 1))
    with pytest.raises(IntegrityError):
        load(copy).ledger("server")


def test_terms_that_follow_from_code_of_others_are_not_kept(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = altered(run, tmp_path / "copy", json.dumps)
    (copy / "vault" / "ledger.json").unlink()
    opened = RunDirectory.reopen(copy)
    monkeypatch.setattr(ledgers.protocols.REGISTRY, "owns", lambda name: False)
    ledgers.keep_terms(opened)
    assert kept_books(copy) is None
    monkeypatch.undo()
    ledgers.keep_terms(opened)
    assert kept_books(copy) is not None


def test_untrusted_code_in_the_spec_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(document: object, field: str) -> None:
        raise SpecError(field, None, "names code", "Read it.")

    monkeypatch.setattr(ledgers, "refuse_code", refuse)
    with pytest.raises(SpecError, match="names code"):
        kept_books(run)

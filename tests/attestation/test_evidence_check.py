"""Acceptance: whatever is changed in evidence, `verify` names it; and no stranger's bundle ends in another error."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fdaudit
from fdaudit.api import attack, load
from fdaudit.attestation.check import Outcome, is_bundle
from fdaudit.attestation.keys import key_id, public_key

from ..helpers import evidence_cases as cases
from ..helpers.command import Cli
from ..helpers.evidence_cases import (
    SPEC,
    STATEMENT,
    Made,
    bundle,
    check,
    dumps,
    files,
    flip,
    made,
    made_to_fit,
    names,
    other,
    restate,
)
from ..helpers.run_cases import finished, secrets_apart

__all__ = ["bundle", "made", "other"]


@pytest.mark.thorough
def test_an_intact_bundle_has_no_findings_wherever_it_lies(made: Made, bundle: Path) -> None:
    assert check(bundle, made, made.run / "vault") == Outcome([], [], key_id(public_key(made.public)))
    outcome = check(bundle)
    assert (outcome.findings, outcome.signed_by) == ([], None)
    assert names(outcome.notes, "Authorship was not")


# -- files --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_changed_byte_in_any_file_is_found(made: Made, bundle: Path) -> None:
    """A bit of each file, with and without the key; what lies beside the statement is covered either way."""
    chosen = random.Random(0)
    for name in files(bundle):
        at, mask = chosen.randrange((bundle / name).stat().st_size), 1 << chosen.randrange(8)
        if name == STATEMENT:
            continue
        flip(bundle / name, at, mask)
        assert names(check(bundle).findings, name), (name, at, mask)
        flip(bundle / name, at, mask)
    assert check(bundle, made).findings == []


@pytest.mark.thorough
def test_a_changed_byte_anywhere_in_the_statement_is_found_with_the_key(made: Made, bundle: Path) -> None:
    size = (bundle / STATEMENT).stat().st_size
    for at in (*range(0, 40, 3), *range(40, size - 280, 1499), *range(size - 280, size, 3)):
        flip(bundle / STATEMENT, at)
        assert names(check(bundle, made).findings, STATEMENT), at
        flip(bundle / STATEMENT, at)
    assert check(bundle, made).findings == []


@pytest.mark.thorough
def test_a_dropped_file_is_named(made: Made, bundle: Path) -> None:
    for name in files(bundle):
        whole = (bundle / name).read_bytes()
        (bundle / name).unlink()
        assert is_bundle(bundle)
        assert names(check(bundle).findings, f"{name} is missing"), name
        (bundle / name).write_bytes(whole)
    assert check(bundle, made).findings == []


ADDED = (
    "stray",
    ".hidden",
    "run/vault/secrets.json",
    "run/attacks/stray.json",
    "run/.x.tmp",
    "a\nb",
    "run/\udcff",
)


@pytest.mark.parametrize("name", ADDED)
def test_anything_added_is_named(name: str, bundle: Path) -> None:
    path = bundle / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    assert names(check(bundle).findings, name)
    path.unlink()
    path.mkdir()
    assert names(check(bundle).findings, name), "an empty folder too"
    path.rmdir()
    os.mkfifo(path)
    assert names(check(bundle).findings, f"{name} is no regular"), "and a pipe is not opened"


@pytest.mark.parametrize(
    "name", [STATEMENT, "files.json", "run/result.json", "run", "run/transcript/payloads"]
)
def test_a_link_in_the_place_of_the_real_thing_is_found(name: str, bundle: Path, tmp_path: Path) -> None:
    (bundle / name).rename(tmp_path / "elsewhere")
    (bundle / name).symlink_to(tmp_path / "elsewhere")
    assert names(check(bundle).findings, f"{name} is a symbolic")


def test_folders_without_end_are_not_followed(bundle: Path) -> None:
    deep = bundle / "run" / "attacks"
    for _ in range(900):
        deep = deep / "d"
    os.makedirs(deep)
    assert names(check(bundle).findings, "lies too deep")


def test_two_swapped_files_are_both_named(bundle: Path) -> None:
    first, second = "run/transcript/payloads/round-000001.shard", "run/attacks/world-loss-threshold.json"
    (bundle / first).rename(bundle / "held")
    (bundle / second).rename(bundle / first)
    (bundle / "held").rename(bundle / second)
    findings = check(bundle).findings
    assert names(findings, first)
    assert names(findings, second)


def test_an_edit_with_all_digests_made_to_fit_lacks_the_signature(made: Made, bundle: Path) -> None:
    """What no digest covers from outside, only the signature does: this is what signing is for."""
    path = bundle / "environment.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "system": "another"}), encoding="utf-8")
    assert names(check(bundle).findings, "environment.json")
    made_to_fit(bundle)
    assert check(bundle).findings == [], "unsigned, it agrees with itself"
    assert names(check(bundle, made).findings, "not signed")


def of_json(**changes: Any) -> Callable[[bytes], bytes]:
    """Return an edit of a document's fields; `a__b` stands for one below."""

    def edit(data: bytes) -> bytes:
        value = json.loads(data)
        for path, new in changes.items():
            *parents, last = path.split("__")
            node = value
            for name in parents:
                node = node[int(name) if name.isdigit() else name]
            node[last] = new
        return json.dumps(value).encode()

    return edit


REPORT = "is not the report"
RESEALED: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("transcript/messages.jsonl", lambda d: d.replace(b'"round":1', b'"round":2'), "messages.jsonl line"),
    ("transcript/messages.jsonl", lambda d: b"\xff\n", "messages.jsonl"),
    ("result.json", of_json(run__profile="full"), "predicate.run.result_sha256"),
    ("result.json", of_json(judgement__level="not-tested"), "level: 'not-tested' contradicts the cells"),
    ("result.json", of_json(ledger__0__delta=math.nan), "result.json is not JSON: NaN is no number of JSON"),
    ("result.json", lambda d: b"[" * 100_000, "result.json"),
    ("result.json", lambda d: b"[]", "result.json"),
    ("result.json", lambda d: b'{"schema":"fdaudit-result/1"}', "result.json"),
    ("attacks/world-loss-threshold.json", of_json(status="failed"), "the cells that lie in attacks/"),
    ("manifest.json", lambda d: b"[" * 100_000, "manifest.json"),
    ("manifest.json", lambda d: b"", "manifest.json"),
    ("spec.yaml", lambda d: b"\xff", "spec.yaml"),
    ("report/index.html", lambda d: d.replace(b"One run", b"Two runs"), f"run/report/index.html {REPORT}"),
    ("report/index.json", lambda d: d.replace(b"One run", b"Two runs"), f"run/report/index.json {REPORT}"),
]


@pytest.mark.parametrize(("name", "edit", "said"), RESEALED)
def test_an_edit_with_all_digests_made_to_fit_is_found(
    name: str, edit: Callable[[bytes], bytes], said: str, made: Made, bundle: Path
) -> None:
    path = bundle / "run" / name
    path.write_bytes(edit(path.read_bytes()))
    made_to_fit(bundle)
    assert names(check(bundle, vault=made.run / "vault").findings, said)


# -- the vault ------------------------------------------------------------------------------------------------------


@pytest.fixture
def vault(made: Made, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.run / "vault", tmp_path / "vault"))


def test_a_changed_or_missing_file_of_a_revealed_vault_is_found(
    made: Made, bundle: Path, vault: Path
) -> None:
    stated = cases.statement_of(bundle)["predicate"]["vault"]["files"]
    assert set(stated) == set(files(vault)) - {".gitignore"}
    for name in stated:
        flip(vault / name, -3)
        assert names(check(bundle, vault=vault).findings, "vault: "), name
        flip(vault / name, -3)
        (vault / name).rename(vault / "held")
        assert names(check(bundle, vault=vault).findings, f"vault: {name} is missing"), name
        (vault / name).symlink_to(vault / "held")
        assert names(check(bundle, vault=vault).findings, f"vault: {name} is missing")
        (vault / name).unlink()
        (vault / "held").rename(vault / name)
    assert check(bundle, made, vault).findings == []


@pytest.mark.thorough
def test_the_vault_of_another_run_is_refused(other: Made, bundle: Path) -> None:
    findings = check(bundle, vault=other.run / "vault").findings
    assert names(findings, "vault: scores/server-loss-threshold/"), "scores belong to another outcome"


def test_a_foreign_vault_that_was_committed_to_contradicts_the_manifest(
    made: Made, other: Made, bundle: Path
) -> None:
    """Who signs a commitment to another run's vault is found out when it is revealed."""
    foreign = cases.statement_of(other.bundle)["predicate"]["vault"]
    restate(bundle, lambda s: s["predicate"].update(vault=foreign), unsigned=True)
    findings = check(bundle, vault=other.run / "vault").findings
    assert names(findings, "vault: its seed")
    assert names(findings, "vault: its split ")


def test_attacks_after_the_evidence_add_scores_that_are_not_committed_to(
    made: Made, bundle: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(made.run, tmp_path / "run"))
    attack("loss-threshold", load(run), adversary="server+client/0")
    added = set(files(run / "vault")) - set(files(made.run / "vault"))
    assert any(name.startswith("scores/") for name in added)
    assert check(bundle, made, run / "vault").findings == []


@pytest.mark.thorough
def test_the_commitment_hides_what_it_commits_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of one seed, with equal splits and models, differ in their secrets, and so in their commitments."""
    secrets_apart(monkeypatch)
    runs = [finished(tmp_path / name, **{**SPEC, "seed": 5, "attacks": []}) for name in ("a", "b")]
    splits = [(run / "vault" / "splits.safetensors").read_bytes() for run in runs]
    assert splits[0] == splits[1]
    bundles = [fdaudit.evidence(load(run), run.with_name(f"{run.name}-bundle")) for run in runs]
    found = [cases.statement_of(b)["predicate"]["vault"]["commitment"] for b in bundles]
    assert found[0] != found[1]
    again = fdaudit.evidence(load(runs[0]), tmp_path / "again")
    assert cases.statement_of(again)["predicate"]["vault"]["commitment"] == found[0]


# -- the command ----------------------------------------------------------------------------------------------------


def test_the_command_names_each_defect_and_ends_with_3(made: Made, bundle: Path, cli: Cli) -> None:
    code, out, err = cli("verify", bundle)
    assert code == 0
    assert out.startswith("intact")
    assert "Authorship was not" in err
    code, out, err = cli("verify", bundle, "--key", made.public, "--vault", made.run / "vault")
    assert (code, err) == (0, "")
    assert f"signed by {key_id(public_key(made.public))}" in out
    assert "the vault is" in out
    (bundle / "run" / "spec.yaml").unlink()
    (bundle / "\x1b[31mred\n").write_bytes(b"")
    code, out, err = cli("verify", bundle, "--key", made.public)
    assert (code, out) == (3, "")
    assert "run/spec.yaml is missing" in err
    assert "\x1b" not in err
    code, out, err = cli("verify", bundle, "--key", made.public, "--json")
    value = json.loads(out)
    assert (code, err, value["intact"]) == (3, "", False)
    assert value["findings"] == check(bundle, made).findings
    assert set(value) == {"evidence", "intact", "findings", "notes", "signed_by"}


def test_bad_arguments_end_with_2(made: Made, bundle: Path, cli: Cli) -> None:
    for arguments in (
        (bundle, "--key", made.private),
        (bundle, "--key", bundle / "absent"),
        (bundle, "--vault", bundle / "absent"),
        (made.run, "--key", made.public),
        (made.run, "--vault", made.run / "vault"),
    ):
        code, out, err = cli("verify", *arguments)
        assert (code, out, len(err.splitlines())) == (2, "", 1), arguments
    assert not is_bundle(made.run)


# -- the report -----------------------------------------------------------------------------------------------


def test_a_report_of_other_libraries_is_said_not_to_be_checked(bundle: Path) -> None:
    path = bundle / "environment.json"
    stated = json.loads(path.read_bytes())
    stated["packages"]["matplotlib"] = "0.0.1"
    path.write_bytes(dumps(stated) + b"\n")
    made_to_fit(bundle)
    found = check(bundle)
    assert found.findings == []
    assert names(found.notes, "report was not")

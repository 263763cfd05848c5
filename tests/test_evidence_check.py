"""Acceptance: whatever is changed in evidence, `verify` names it; and no stranger's bundle ends in another error."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

import fdaudit
from fdaudit.attestation.check import Outcome, is_bundle, verify_bundle
from fdaudit.attestation.keys import key_id, public_key
from fdaudit.runs import attack, load

from . import evidence_cases as cases
from .evidence_cases import STATEMENT, TYPE, envelope_of, flip, keypair, made_to_fit, put, restate
from .run_cases import cli, finished

SPEC: dict[str, Any] = {
    "adversaries": ["server", "world"],
    "attacks": [{"name": "loss-threshold"}],
    "model__params": {"widths": [1]},
    "seed": None,
}


class Made:
    """A run, signed evidence of it, and the keys."""

    def __init__(self, folder: Path) -> None:
        self.run = finished(folder / "run", **SPEC)
        self.private, self.public = keypair(folder)
        self.bundle = fdaudit.evidence(load(self.run), folder / "bundle", sign=self.private)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The same spec, another run."""
    return Made(tmp_path_factory.mktemp("other"))


@pytest.fixture
def bundle(made: Made, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(made.bundle, tmp_path / "bundle"))


def check(bundle: Path, made: Made | None = None, vault: Path | None = None) -> Outcome:
    return verify_bundle(bundle, key=None if made is None else public_key(made.public), vault=vault)


def names(findings: list[str], what: str) -> bool:
    return any(what in finding for finding in findings)


def files(bundle: Path) -> list[str]:
    return sorted(p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file())


def test_an_intact_bundle_has_no_findings_wherever_it_lies(made: Made, bundle: Path) -> None:
    assert check(bundle, made, made.run / "vault") == Outcome([], [], key_id(public_key(made.public)))
    outcome = check(bundle)
    assert (outcome.findings, outcome.signed_by) == ([], None)
    assert names(outcome.notes, "Authorship was not checked")


# -- files --------------------------------------------------------------------------------------------------------


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


def test_a_changed_byte_anywhere_in_the_statement_is_found_with_the_key(made: Made, bundle: Path) -> None:
    size = (bundle / STATEMENT).stat().st_size
    for at in (*range(0, 40, 3), *range(40, size - 280, 1499), *range(size - 280, size, 3)):
        flip(bundle / STATEMENT, at)
        assert names(check(bundle, made).findings, STATEMENT), at
        flip(bundle / STATEMENT, at)
    assert check(bundle, made).findings == []


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
    assert names(check(bundle).findings, f"{name} is no regular file"), "and a pipe is not opened"


@pytest.mark.parametrize(
    "name", [STATEMENT, "files.json", "run/result.json", "run", "run/transcript/payloads"]
)
def test_a_link_in_the_place_of_the_real_thing_is_found(name: str, bundle: Path, tmp_path: Path) -> None:
    (bundle / name).rename(tmp_path / "elsewhere")
    (bundle / name).symlink_to(tmp_path / "elsewhere")
    assert names(check(bundle).findings, f"{name} is a symbolic link")


def test_folders_without_end_are_not_followed(bundle: Path) -> None:
    deep = bundle / "run" / "attacks"
    for _ in range(900):
        deep = deep / "d"
    os.makedirs(deep)
    assert names(check(bundle).findings, "lies too deep")


def test_two_swapped_files_are_both_named(bundle: Path) -> None:
    first, second = "run/transcript/payloads/00000001.safetensors", "run/attacks/world-loss-threshold.json"
    (bundle / first).rename(bundle / "held")
    (bundle / second).rename(bundle / first)
    (bundle / "held").rename(bundle / second)
    findings = check(bundle).findings
    assert names(findings, first)
    assert names(findings, second)


def test_an_edit_with_all_digests_made_to_fit_lacks_the_signature(made: Made, bundle: Path) -> None:
    """What no digest covers from outside, only the signature does: this is what signing is for."""
    path = bundle / "run" / "timings.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "another": 1.0}), encoding="utf-8")
    assert names(check(bundle).findings, "run/timings.json")
    made_to_fit(bundle)
    assert check(bundle).findings == [], "unsigned, it agrees with itself"
    assert names(check(bundle, made).findings, "not signed")


def test_a_changed_transcript_with_all_digests_made_to_fit_is_found_by_its_chain(bundle: Path) -> None:
    log = bundle / "run" / "transcript" / "messages.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"round":1', b'"round":2'))
    made_to_fit(bundle)
    assert names(check(bundle).findings, "messages.jsonl line")


def test_a_changed_result_with_all_digests_made_to_fit_contradicts_the_statement(bundle: Path) -> None:
    result = bundle / "run" / "result.json"
    result.write_bytes(result.read_bytes().replace(b'"profile": "quick"', b'"profile": "full"'))
    made_to_fit(bundle)
    assert names(check(bundle).findings, "predicate.run.result_sha256")


def test_a_changed_outcome_with_all_digests_made_to_fit_contradicts_the_result(bundle: Path) -> None:
    path = bundle / "run" / "attacks" / "world-loss-threshold.json"
    cell = json.loads(path.read_bytes())
    path.write_text(json.dumps({**cell, "status": "failed"}), encoding="utf-8")
    made_to_fit(bundle)
    assert names(check(bundle).findings, "the cells that lie in attacks/")


# -- the statement --------------------------------------------------------------------------------------------------


def test_another_key_is_refused_and_named(made: Made, other: Made, bundle: Path) -> None:
    outcome = check(bundle, other)
    assert outcome.findings == [
        f"{STATEMENT}: no signature is valid for the key {key_id(public_key(other.public))}"
    ]
    assert outcome.signed_by is None
    envelope = envelope_of(bundle)
    envelope["signatures"][0]["keyid"] = key_id(public_key(other.public))
    put(bundle, envelope)
    assert check(bundle, other).findings, "a keyid is a hint, no proof"
    assert names(check(bundle, made).findings, "keyid")


def _signed(payload: bytes, message: bytes, made: Made) -> dict[str, Any]:
    """An envelope whose signature is over `message`, made with the library alone."""
    key = load_pem_private_key(made.private.read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    sig = base64.b64encode(key.sign(message)).decode()
    keyid = key_id(public_key(made.public))
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": TYPE,
        "signatures": [{"keyid": keyid, "sig": sig}],
    }


def test_a_signature_made_without_fdaudit_is_accepted_and_one_over_another_encoding_refused(
    made: Made, bundle: Path
) -> None:
    payload = cases.payload_of(bundle)
    right = f"DSSEv1 {len(TYPE)} {TYPE} {len(payload)} ".encode() + payload
    put(bundle, _signed(payload, right, made))
    assert check(bundle, made).findings == []
    for wrong in (payload, right.replace(b"DSSEv1", b"DSSEv2"), right[:-1], right + b"\n"):
        put(bundle, _signed(payload, wrong, made))
        assert names(check(bundle, made).findings, "no signature is valid")


def test_a_second_signature_is_not_counted_for_the_key(made: Made, other: Made, bundle: Path) -> None:
    envelope = envelope_of(bundle)
    ours = envelope["signatures"][0]
    theirs = {"keyid": key_id(public_key(other.public)), "sig": ours["sig"]}
    put(bundle, {**envelope, "signatures": [theirs, ours]})
    outcome = check(bundle, made)
    assert outcome.findings == []
    assert names(outcome.notes, "1 signatures that name other keys were not checked")
    assert check(bundle, other).findings
    for junk in ("", base64.b64encode(b"short").decode(), base64.b64encode(b"x" * 100_000).decode()):
        put(bundle, {**envelope, "signatures": [{"sig": junk}]})
        assert names(check(bundle, made).findings, "no signature is valid")
    put(bundle, {**envelope, "signatures": [ours, ours]})
    assert names(check(bundle, made).findings, "2 signatures name the key")


def test_a_statement_of_another_run_is_refused_with_what_differs(
    made: Made, other: Made, bundle: Path
) -> None:
    """Its signature is valid: it is the run that is not the one it speaks of."""
    shutil.copy(other.bundle / STATEMENT, bundle / STATEMENT)
    outcome = check(bundle, other)
    assert outcome.signed_by == key_id(public_key(other.public))
    for item in ("run.head", "run.manifest_self", "run.result_sha256"):
        assert names(outcome.findings, f"predicate.{item} is not what the bundled run says")
    assert names(outcome.findings, "run/transcript/messages.jsonl is not the file that the statement lists")


def test_a_statement_of_another_run_about_these_files_is_refused(
    made: Made, other: Made, bundle: Path
) -> None:
    foreign = cases.statement_of(other.bundle)["predicate"]
    restate(bundle, lambda s: s.update(predicate=foreign), unsigned=True)
    findings = check(bundle).findings
    assert names(findings, "predicate.run.head")
    assert not names(findings, "predicate.run.spec_sha256"), "that one is equal: one spec, two runs"


FACTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "run.name": lambda p: p["run"].update(name="Another"),
    "run.spec_sha256": lambda p: p["run"].update(spec_sha256="0" * 64),
    "run.head": lambda p: p["run"].update(head="0" * 64),
    "run.messages": lambda p: p["run"].update(messages=8),
    "run.manifest_self": lambda p: p["run"].update(manifest_self="0" * 64),
    "run.result_sha256": lambda p: p["run"].update(result_sha256="0" * 64),
    "run.more": lambda p: p["run"].update(more=1),
    "run": lambda p: p.update(run=[]),
    "gates": lambda p: p.update(gates=[{"name": "membership_auc", "passed": True}]),
    "verdicts": lambda p: p["verdicts"][0].update(level="leak"),
    "ledger": lambda p: p["ledger"][0].update(epsilon=1.0),
    "checks": lambda p: p["checks"][0].update(verdict="consistent"),
    "auditor_only": lambda p: p.update(auditor_only=False),
}


@pytest.mark.parametrize("item", FACTS)
def test_a_changed_fact_is_named_unsigned_and_unsignable(item: str, made: Made, bundle: Path) -> None:
    restate(bundle, lambda s: FACTS[item](s["predicate"]))
    assert names(check(bundle, made).findings, "no signature is valid")
    restate(bundle, lambda s: None, unsigned=True)
    assert names(check(bundle).findings, f"predicate.{item}")


def test_verdicts_of_another_version_are_a_note_and_no_defect(bundle: Path) -> None:
    """Rules are bettered: another version may judge the same figures otherwise."""
    restate(bundle, lambda s: s["predicate"]["verdicts"][0].update(level="leak"), unsigned=True)
    restate(bundle, lambda s: s["predicate"]["tool"].update(source_sha256="0" * 64), unsigned=True)
    outcome = check(bundle)
    assert outcome.findings == []
    assert names(outcome.notes, "predicate.verdicts")


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "another type": lambda s: s.update(_type="https://in-toto.io/Statement/v0.1"),
    "another predicate type": lambda s: s.update(predicateType="https://slsa.dev/provenance/v1"),
    "a field too many": lambda s: s.update(extra=1),
    "a field too few": lambda s: s.pop("predicate"),
    "subject no list": lambda s: s.update(subject={}),
    "subject empty": lambda s: s.update(subject=[]),
    "subject twice": lambda s: s["subject"].insert(0, s["subject"][0]),
    "subject absolute": lambda s: s["subject"][0].update(name="/etc/passwd"),
    "subject outside": lambda s: s["subject"][0].update(name="../run/vault/secrets.json"),
    "subject of another digest": lambda s: s["subject"][0].update(digest={"md5": "0" * 32}),
    "subject with capitals": lambda s: s["subject"][0]["digest"].update(sha256="A" * 64),
    "subject no text": lambda s: s["subject"][0].update(name=1),
    "predicate no object": lambda s: s.update(predicate=[]),
    "predicate with more": lambda s: s["predicate"].update(more=1),
    "predicate with less": lambda s: s["predicate"].pop("vault"),
    "no time": lambda s: s["predicate"].update(written="yesterday"),
    "vault no commitment": lambda s: s["predicate"].update(vault="x"),
    "vault outside": lambda s: s["predicate"]["vault"].update(files=["../../secrets.json"]),
    "vault twice": lambda s: s["predicate"]["vault"]["files"].append("secrets.json"),
    "tool no object": lambda s: s["predicate"].update(tool=None),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_statement_is_a_finding(what: str, bundle: Path, made: Made) -> None:
    restate(bundle, HOSTILE[what], unsigned=True)
    assert check(bundle, vault=made.run / "vault").findings


RUNS: dict[str, tuple[str, bytes]] = {
    "result deep": ("result.json", b"[" * 100_000),
    "result no object": ("result.json", b"[]"),
    "result without cells": ("result.json", b'{"schema":"fdaudit-result/1"}'),
    "manifest deep": ("manifest.json", b"[" * 100_000),
    "manifest empty": ("manifest.json", b""),
    "spec junk": ("spec.yaml", b"\xff"),
    "log junk": ("transcript/messages.jsonl", b"\xff\n"),
}


@pytest.mark.parametrize("what", RUNS)
def test_a_hostile_run_in_a_bundle_that_fits_is_a_finding(what: str, bundle: Path, made: Made) -> None:
    name, data = RUNS[what]
    (bundle / "run" / name).write_bytes(data)
    made_to_fit(bundle)
    assert names(check(bundle, vault=made.run / "vault").findings, name.rsplit("/", 1)[-1])


def test_a_figure_that_is_no_number_in_a_result_that_fits_is_a_finding(bundle: Path) -> None:
    path = bundle / "run" / "result.json"
    result = json.loads(path.read_bytes())
    result["ledger"][0]["delta"] = float("nan")
    path.write_text(json.dumps(result), encoding="utf-8")
    made_to_fit(bundle)
    assert names(check(bundle).findings, "result.json is malformed")


def test_a_huge_envelope_is_not_read(bundle: Path) -> None:
    with (bundle / STATEMENT).open("r+b") as file:
        file.truncate(65 << 20)  # a hole: it takes no room
    assert names(check(bundle).findings, f"{STATEMENT} has 68,157,440 bytes")


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
        assert names(check(bundle, vault=vault).findings, f"vault: {name} is missing, or no regular file")
        (vault / name).unlink()
        (vault / "held").rename(vault / name)
    assert check(bundle, made, vault).findings == []


def test_the_vault_of_another_run_is_refused(other: Made, bundle: Path) -> None:
    assert names(check(bundle, vault=other.run / "vault").findings, "not those that the statement commits to")


def test_a_foreign_vault_that_was_committed_to_contradicts_the_manifest(
    made: Made, other: Made, bundle: Path
) -> None:
    """Who signs a commitment to another run's vault is found out when it is revealed."""
    foreign = cases.statement_of(other.bundle)["predicate"]["vault"]
    restate(bundle, lambda s: s["predicate"].update(vault=foreign), unsigned=True)
    findings = check(bundle, vault=other.run / "vault").findings
    assert names(findings, "vault: its seed is not the one that the run's manifest commits to")
    assert names(findings, "vault: its split ")


def test_attacks_after_the_evidence_add_scores_that_are_not_committed_to(
    made: Made, bundle: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(made.run, tmp_path / "run"))
    attack("loss-threshold", load(run), adversary="server+client/0")
    added = set(files(run / "vault")) - set(files(made.run / "vault"))
    assert any(name.startswith("scores/") for name in added)
    assert check(bundle, made, run / "vault").findings == []


def test_the_commitment_hides_what_it_commits_to(made: Made, other: Made, tmp_path: Path) -> None:
    """Two runs of one seed, with equal splits and models, differ in their secrets, and so in their commitments."""
    runs = [finished(tmp_path / name, **{**SPEC, "seed": 5, "attacks": []}) for name in ("a", "b")]
    splits = [(run / "vault" / "splits.safetensors").read_bytes() for run in runs]
    assert splits[0] == splits[1]
    bundles = [fdaudit.evidence(load(run), run.with_name(f"{run.name}-bundle")) for run in runs]
    found = [cases.statement_of(b)["predicate"]["vault"]["commitment"] for b in bundles]
    assert found[0] != found[1]
    again = fdaudit.evidence(load(runs[0]), tmp_path / "again")
    assert cases.statement_of(again)["predicate"]["vault"]["commitment"] == found[0]


# -- the command ----------------------------------------------------------------------------------------------------


def test_the_command_names_each_defect_and_ends_with_3(
    made: Made, bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = cli(monkeypatch, capsys, "verify", bundle)
    assert code == 0
    assert out.startswith("intact")
    assert "Authorship was not checked" in err
    code, out, err = cli(
        monkeypatch, capsys, "verify", bundle, "--key", made.public, "--vault", made.run / "vault"
    )
    assert (code, err) == (0, "")
    assert f"signed by {key_id(public_key(made.public))}" in out
    assert "the vault is the one" in out
    (bundle / "run" / "spec.yaml").unlink()
    (bundle / "\x1b[31mred\n").write_bytes(b"")
    code, out, err = cli(monkeypatch, capsys, "verify", bundle, "--key", made.public)
    assert (code, out) == (3, "")
    assert "run/spec.yaml is missing" in err
    assert "\x1b" not in err
    code, out, err = cli(monkeypatch, capsys, "verify", bundle, "--key", made.public, "--json")
    value = json.loads(out)
    assert (code, err, value["intact"]) == (3, "", False)
    assert value["findings"] == check(bundle, made).findings
    assert set(value) == {"evidence", "intact", "findings", "notes", "signed_by"}


def test_bad_arguments_end_with_2(
    made: Made, bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        (bundle, "--key", made.private),
        (bundle, "--key", bundle / "absent"),
        (bundle, "--vault", bundle / "absent"),
        (made.run, "--key", made.public),
        (made.run, "--vault", made.run / "vault"),
    ):
        code, out, err = cli(monkeypatch, capsys, "verify", *arguments)
        assert (code, out, len(err.splitlines())) == (2, "", 1), arguments
    assert not is_bundle(made.run)

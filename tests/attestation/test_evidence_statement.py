"""Acceptance: a statement that is another's, was changed or means harm is refused, and the item is named."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fdaudit.attestation.keys import key_id, public_key

from ..helpers import evidence_cases as cases
from ..helpers.evidence_cases import (
    STATEMENT,
    TYPE,
    Made,
    bundle,
    check,
    envelope_of,
    made,
    names,
    other,
    put,
    restate,
)

__all__ = ["bundle", "made", "other"]


# -- the statement --------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_another_key_is_refused_and_named(made: Made, other: Made, bundle: Path) -> None:
    outcome = check(bundle, other)
    (finding,) = outcome.findings
    assert finding.startswith(f"{STATEMENT}: no signature")
    assert key_id(public_key(other.public)) in finding
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
        assert names(check(bundle, made).findings, "no signature")


def test_a_second_signature_is_not_counted_for_the_key(made: Made, other: Made, bundle: Path) -> None:
    envelope = envelope_of(bundle)
    ours = envelope["signatures"][0]
    theirs = {"keyid": key_id(public_key(other.public)), "sig": ours["sig"]}
    put(bundle, {**envelope, "signatures": [theirs, ours]})
    outcome = check(bundle, made)
    assert outcome.findings == []
    assert names(outcome.notes, "1 signatures that")
    assert check(bundle, other).findings
    for junk in ("", base64.b64encode(b"short").decode(), base64.b64encode(b"x" * 100_000).decode()):
        put(bundle, {**envelope, "signatures": [{"sig": junk}]})
        assert names(check(bundle, made).findings, "no signature")
    put(bundle, {**envelope, "signatures": [ours, ours]})
    assert names(check(bundle, made).findings, "2 signatures name")


def test_a_statement_of_another_run_is_refused_with_what_differs(
    made: Made, other: Made, bundle: Path
) -> None:
    """Its signature is valid: it is the run that is not the one it speaks of."""
    shutil.copy(other.bundle / STATEMENT, bundle / STATEMENT)
    outcome = check(bundle, other)
    assert outcome.signed_by == key_id(public_key(other.public))
    for item in ("run.head", "run.manifest_self", "run.result_sha256"):
        assert names(outcome.findings, f"predicate.{item} is not")
    assert names(outcome.findings, "run/transcript/messages.jsonl is not")


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
    "ledger of those who depart": lambda p: p["ledger"][0].update(against=[{"departs": "server"}]),
    "checks": lambda p: p["checks"][0].update(verdict="consistent"),
    "auditor_only": lambda p: p.update(auditor_only=False),
}


@pytest.mark.parametrize("item", FACTS)
def test_a_changed_fact_is_named_unsigned_and_unsignable(item: str, made: Made, bundle: Path) -> None:
    restate(bundle, lambda s: FACTS[item](s["predicate"]))
    assert names(check(bundle, made).findings, "no signature")
    restate(bundle, lambda s: None, unsigned=True)
    assert names(check(bundle).findings, f"predicate.{item.split(' ')[0]}")


def test_a_statement_of_the_first_version_says_nothing_of_parties_that_depart(bundle: Path) -> None:
    def older(statement: dict[str, Any]) -> None:
        statement["predicateType"] = "urn:fdaudit:evidence:v1"
        for row in statement["predicate"]["ledger"]:
            assert row.pop("against") == []

    restate(bundle, older, unsigned=True)
    assert check(bundle).findings == []
    restate(bundle, lambda s: s["predicate"]["ledger"][0].update(against=[]), unsigned=True)
    assert names(check(bundle).findings, "predicate.ledger")


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


def test_a_huge_envelope_is_not_read(bundle: Path) -> None:
    with (bundle / STATEMENT).open("r+b") as file:
        file.truncate(65 << 20)  # a hole: it takes no room
    assert names(check(bundle).findings, f"{STATEMENT} has 68,157,440 bytes")

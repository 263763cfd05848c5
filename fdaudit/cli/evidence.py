"""The commands that export a run as evidence and check evidence."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from fdaudit.cli.options import AsJson, RunPath
from fdaudit.errors import IntegrityError, UsageError
from fdaudit.progress import say, show

__all__ = ["evidence", "verify"]

_PUBLIC = "to pass on: it holds the public report; give its readers the id of the key by another way"
_SENSITIVE = "auditor only: it holds private records and says who was trained on; treat it like the data"


def evidence(
    run: RunPath,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the bundle; must not exist yet.")],
    sign: Annotated[
        Path | None, typer.Option(metavar="KEY", help="Sign with this Ed25519 private key (PEM, PKCS#8).")
    ] = None,
    public: Annotated[
        bool,
        typer.Option(
            "--public", help="The form to pass on: the public report, signed, by your own key unless --sign."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a run as evidence: its files except the vault, or its public report, under a statement about them."""
    from fdaudit.api import load
    from fdaudit.attestation import bundle as auditors
    from fdaudit.attestation.bundle import STATEMENT
    from fdaudit.attestation.dsse import open_envelope
    from fdaudit.attestation.keys import own_key_path
    from fdaudit.attestation.public import public_evidence

    is_new_key = public and sign is None and not own_key_path().exists()
    write = public_evidence if public else auditors.evidence
    bundle = write(load(run), out, sign=sign, passphrase=_ask)
    envelope = open_envelope((bundle / STATEMENT).read_bytes(), STATEMENT)
    files = len(json.loads(envelope.payload)["subject"])
    signer, signed = None, "unsigned"
    if envelope.signatures:
        signer = envelope.signatures[0].keyid
        signed = f"signed by {signer}"
    if as_json:
        value = {"evidence": str(bundle), "files": files, "signed_by": signer, "auditor_only": not public}
        show(json.dumps(value))
        return
    show(f"evidence  {bundle}", f"{files} files, {signed}")
    if is_new_key:
        show(f"the key is new: keep {own_key_path()}")
    show(_PUBLIC if public else _SENSITIVE)


def _ask() -> str | None:
    """Ask the user at the terminal for a passphrase; None without a terminal."""
    if not sys.stdin.isatty():
        return None
    return str(typer.prompt("Passphrase of the key", hide_input=True, err=True))


def verify(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_BUNDLE",
            help="A run directory, evidence of one, or a record of another system.",
        ),
    ],
    key: Annotated[
        Path | None, typer.Option(metavar="PUB", help="Evidence must be signed by this key (PEM, public).")
    ] = None,
    vault: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A revealed vault, to check against the commitment."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a run's transcript against its manifest, evidence against its statement, or a record of another system."""
    from fdaudit.attestation.check import is_bundle
    from fdaudit.recording.record import is_record

    if is_bundle(run):
        _verify_evidence(run, key, vault, as_json)
        return
    for name, value in (("--key", key), ("--vault", vault)):
        if value is not None:
            remedy = "Leave it out, or give a directory that `fdaudit evidence` wrote."
            raise UsageError(name, str(value), "belongs to evidence, and this is none", remedy)
    if is_record(run):
        _verify_record(run, as_json)
        return
    from fdaudit.audit.run import Run

    findings = Run(run).verify()
    if as_json:
        show(json.dumps({"run": str(run), "intact": not findings, "findings": findings}))
    elif not findings:
        show("intact: every line chains, every payload matches its digest, nothing else lies there")
    _end(findings, as_json)


def _verify_record(record: Path, as_json: bool) -> None:
    from fdaudit.recording.record import check_record

    checked = check_record(record)
    if as_json:
        outcome = {"intact": not checked.findings, "findings": checked.findings, "notes": checked.notes}
        show(json.dumps({"record": str(record), **outcome}))
    else:
        if not checked.findings:
            show("intact: every line of its closed rounds chains, and every payload matches its digest")
        for note in checked.notes:
            show(note)
    _end(list(checked.findings), as_json)


def _verify_evidence(bundle: Path, key: Path | None, vault: Path | None, as_json: bool) -> None:
    from fdaudit.attestation.check import verify_bundle
    from fdaudit.attestation.keys import public_key
    from fdaudit.attestation.public import is_public, verify_public

    if vault is not None and not vault.is_dir():
        raise UsageError("--vault", str(vault), "is no directory", "Give the vault that was revealed.")
    public = None if key is None else public_key(key, field="--key")
    passed_on = is_public(bundle)
    check = verify_public if passed_on else verify_bundle
    outcome = check(bundle, key=public, vault=vault)
    if as_json:
        value = {
            "evidence": str(bundle),
            "intact": not outcome.findings,
            "findings": outcome.findings,
            "notes": outcome.notes,
            "signed_by": outcome.signed_by,
        }
        show(json.dumps(value))
    else:
        if not outcome.findings:
            matches = "the statement matches the run, the record chains"
            if passed_on:
                matches = "and none was added"
            show(f"intact: every file matches the statement, {matches}")
            if vault is not None:
                show("the vault is the one that the statement commits to")
            if outcome.signed_by is not None:
                show(f"signed by {outcome.signed_by}")
        for note in outcome.notes:
            say(note)
    _end(outcome.findings, as_json)


def _end(findings: list[str], as_json: bool) -> None:
    if findings and as_json:
        raise typer.Exit(3)
    if findings:
        raise IntegrityError(findings)

"""Public evidence: the public report of a run under a signed statement, small enough to pass on.

Guarantees:
  * it holds the public report, the signer's public key and the statement, and no other file of the run;
  * what the run's own files hold is stated by salted commitments only: no digest in it confirms a guess of a record, a
    label, a split or an exact score;
  * it is signed, and is one flat directory: no name in it is a path;
  * all public evidence and all public pages of a run show the same outcomes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdaudit.audit.published import publish_once
from fdaudit.errors import FdauditError, IntegrityError, RunError, UsageError
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import written_whole
from fdaudit.storage.locks import writing
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.transcript.manifest import MANIFEST, origin_of, read_manifest, refuse_changed

from .bundle import RESULT, STATEMENT, refuse
from .check import Outcome, check_signature, differences
from .dsse import open_envelope, seal
from .environment import tool
from .listing import digest, survey
from .statement import STATEMENT_TYPE, subjects_of
from .strict import is_digest, parse_canonical, read_bounded

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from fdaudit.audit.run import Run

__all__ = ["KEY", "PREDICATE_TYPE", "is_public", "public_evidence", "verify_public"]

KEY = "key.pub"
"""The file with the signer's public key."""
PREDICATE_TYPE = "urn:fdaudit:public-evidence:v1"
_PAGE, _DATA = "public.html", "public.json"
_COMMITTED = (MANIFEST, RESULT)
"""The run's files that the report stands on."""
_FIELDS = {"auditor_only", "commitments", "run", "stands_on", "tool", "written"}
_MOST_BYTES = 16_000_000
"""Most bytes of a file: the documented check reads no larger one."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def public_evidence(
    run: Run,
    out: Path | str,
    *,
    sign: Path | str | None = None,
    passphrase: Callable[[], str | None] = lambda: None,
) -> Path:
    """Write a finished run's public report with a signed statement, as a directory to pass on.

    Args:
        run: a finished run, with its vault.
        out: a directory that does not exist yet.
        sign: an Ed25519 private key (PEM, PKCS#8); None takes the user's own, which is made at first use.
        passphrase: called for the passphrase of an encrypted key if `FDAUDIT_KEY_PASSPHRASE` is not set.

    Returns:
        The directory.

    Raises:
        UsageError: the run is unfinished, an earlier public page of it had other outcomes, `out` exists or cannot be
            made, or the key is invalid; nothing was written.
        IntegrityError: the run's record was changed; nothing was written.
    """
    from .keys import key_id, own_key, private_key, public_pem

    target, source = Path(out), run.directory
    refuse(source, target)
    secrets = Vault(source / "vault").secrets
    key = own_key(passphrase) if sign is None else private_key(Path(sign), passphrase)
    with writing(source):  # no other process changes its attacks or its result meanwhile
        refuse_changed(source, results=True)
        files = _pages(run, key_id(key.public_key())) | {KEY: public_pem(key.public_key())}
        for name, data in files.items():
            if len(data) > _MOST_BYTES:
                problem = f"has a public report of {len(data):,} bytes ({name})"
                raise RunError("run", str(source), problem, f"At most {_MOST_BYTES:,} are passed on.")
        with written_whole(target) as bundle:
            bundle.chmod(0o755)
            for name, data in files.items():
                (bundle / name).write_bytes(data)
            statement = _statement(bundle, sorted(files), source, secrets)
            (bundle / STATEMENT).write_bytes(seal(statement, key))
    return target


def _pages(run: Run, signer: str) -> dict[str, bytes]:
    """Return the public report by file name, once its outcomes are the ones that may be public."""
    from fdaudit.reports.run.security import public_outcomes, render_report, report_json
    from fdaudit.reports.run.sign_off import Provenance

    result = run.result
    publish_once(run.directory, public_outcomes(result))
    provenance = Provenance(ended=run.ended, signed_by=signer)
    page = render_report(result, run.directory, {}, public=True, provenance=provenance)
    data = report_json(result, {}, public=True, provenance=provenance)
    return {_PAGE: page.encode("utf-8"), _DATA: data.encode("utf-8")}


def _statement(bundle: Path, names: list[str], source: Path, secrets: Secrets) -> bytes:
    manifest = read_manifest(source)
    subjects = list[dict[str, Any]]()
    for name in names:
        subjects.append({"name": name, "digest": {"sha256": digest(bundle, name).sha256}})
    return canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": subjects,
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "auditor_only": False,
                "commitments": manifest["commitments"],
                "run": {
                    "head": manifest["head"],
                    "messages": manifest["messages"],
                    "origin": origin_of(manifest),
                    "spec_sha256": manifest["spec_sha256"],
                },
                "stands_on": _stands_on(source, secrets),
                "tool": tool(),
                "written": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            },
        }
    )


def _stands_on(run: Path, secrets: Secrets) -> dict[str, str]:
    """Return salted commitments to the run's files that the report was made from."""
    return {name: secrets.commit(f"evidence {name}", (run / name).read_bytes()) for name in _COMMITTED}


# -- the check ------------------------------------------------------------------------------------------------


def is_public(bundle: Path) -> bool:
    """Return whether a directory holds a statement of public evidence, or what is left of one."""
    try:
        payload = open_envelope(read_bounded(bundle / STATEMENT), STATEMENT).payload
        value = parse_canonical(payload, STATEMENT, end=b"")
    except IntegrityError:
        return (bundle / KEY).exists() and not (bundle / "run").exists()
    return isinstance(value, dict) and value.get("predicateType") == PREDICATE_TYPE


def verify_public(bundle: Path, *, key: Ed25519PublicKey | None = None, vault: Path | None = None) -> Outcome:
    """Check public evidence: envelope, signature, files, and a revealed run.

    Args:
        bundle: the directory.
        key: the signer's public key; without it the key in the bundle is taken, and the outcome says so.
        vault: the vault of the run, inside the run directory, to be checked against the commitments.

    Raises:
        UsageError: the key is a point of small order, under which anyone can sign.
    """
    if key is not None:
        from .keys import refuse_weak

        refuse_weak(key)
    outcome = Outcome()
    files, folders, odd = survey(bundle, {})
    outcome.findings += odd + [f"{name}/ is a folder" for name in sorted(folders)]
    if outcome.findings:
        return outcome
    try:
        if key is None:
            from .keys import public_key

            try:
                key = public_key(bundle / KEY)
            except UsageError as error:
                raise IntegrityError([f"{KEY} {error.problem}"]) from None
            outcome.notes.append("The key is the one in the evidence. Compare its id with the signer's own.")
        envelope = open_envelope(read_bounded(bundle / STATEMENT), STATEMENT)
        check_signature(envelope, key, outcome)
        subjects, predicate = _read(envelope.payload)
    except IntegrityError as error:
        outcome.findings += error.findings
        return outcome
    digests = dict[str, str]()
    for path, entry in files.items():
        if path != STATEMENT:
            digests[path] = entry.sha256
    outcome.findings += differences(subjects, digests, "the statement")
    if vault is not None:
        outcome.findings += _against_the_run(vault, predicate)
    return outcome


def _read(payload: bytes) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the subjects and the predicate of a statement of public evidence."""
    value = parse_canonical(payload, f"{STATEMENT}: the statement", end=b"")
    fields = {"_type": STATEMENT_TYPE, "predicateType": PREDICATE_TYPE}
    if not isinstance(value, dict) or value.keys() != {*fields, "subject", "predicate"}:
        raise IntegrityError([f"{STATEMENT}: the statement has not the fields of in-toto's"])
    for field, due in fields.items():
        if value[field] != due:
            raise IntegrityError([f"{STATEMENT}: {field} is not {due}"])
    predicate = value["predicate"]
    if not isinstance(predicate, dict) or predicate.keys() != _FIELDS:
        raise IntegrityError([f"{STATEMENT}: predicate does not have just {', '.join(sorted(_FIELDS))}"])
    for field, names in (("commitments", None), ("stands_on", set(_COMMITTED))):
        stated = predicate[field]
        if not isinstance(stated, dict) or not all(map(is_digest, stated.values())):
            raise IntegrityError([f"{STATEMENT}: predicate.{field} holds no commitments"])
        if names is not None and stated.keys() != names:
            raise IntegrityError([f"{STATEMENT}: predicate.{field} does not name {', '.join(sorted(names))}"])
    if not (isinstance(predicate["written"], str) and _TIME.fullmatch(predicate["written"])):
        raise IntegrityError([f"{STATEMENT}: predicate.written is no time"])
    return subjects_of(value["subject"], STATEMENT), predicate


def _against_the_run(vault: Path, predicate: Mapping[str, Any]) -> list[str]:
    """Check a revealed run against the commitments: to its seed, its splits, and the files of the report."""
    from .commitment import check_truth

    findings = check_truth(vault, predicate)
    try:
        there = _stands_on(vault.parent, Vault(vault).secrets)
    except (OSError, ValueError, FdauditError) as error:
        return [*findings, f"vault: {error}"]
    stated = predicate["stands_on"]
    changed = [name for name in _COMMITTED if there[name] != stated[name]]
    return findings + [f"run: {name} is not the file that the statement commits to" for name in changed]

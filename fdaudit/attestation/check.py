"""The check of a bundle: compares its statement with its files.

Guarantees:
  * a file that was changed, added, dropped, swapped or replaced by a link is named, signed or not;
  * a statement of another run is refused, with the item in which it differs;
  * a report that does not match the bundled result is detected by the version that wrote it;
  * with the signer's public key, a statement that was changed in any byte is refused;
  * every malformed bundle ends in a finding, and no file outside it is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdaudit.errors import FdauditError, IntegrityError
from fdaudit.storage.digests import canonical
from fdaudit.transcript.manifest import MANIFEST, read_manifest, verify

from .bundle import ENVIRONMENT, FILES, RUN, STATEMENT
from .commitment import check_vault
from .dsse import Envelope, open_envelope
from .environment import tool
from .listing import ListedFile, read_listing, survey
from .page import check_reports
from .statement import Statement, facts, read_statement
from .strict import read_bounded

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = ["Outcome", "check_signature", "differences", "is_bundle", "verify_bundle"]


@dataclass
class Outcome:
    """The findings of a check.

    Attributes:
        findings: one sentence for each defect; empty when the bundle is intact.
        notes: checks that were not made and limits of the evidence, one sentence each.
        signed_by: the id of the key whose signature is valid; None if authorship was not shown.
    """

    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    signed_by: str | None = None


def is_bundle(directory: Path) -> bool:
    """Return whether a directory is, or was, a bundle and not a run directory."""
    if (directory / STATEMENT).exists() or (directory / STATEMENT).is_symlink():
        return True
    return (directory / FILES).exists() and (directory / RUN).is_dir()


def verify_bundle(bundle: Path, *, key: Ed25519PublicKey | None = None, vault: Path | None = None) -> Outcome:
    """Check a bundle: envelope, signature, files, facts, the run's own record, a revealed vault and the report.

    Args:
        bundle: the directory.
        key: the signer's public key; without it authorship is not checked, and the outcome says so.
        vault: a revealed vault, to be checked against the commitment.

    Raises:
        UsageError: the key is a point of small order, under which anyone can sign.
    """
    outcome = Outcome()
    if key is not None:
        from .keys import refuse_weak

        refuse_weak(key)
    files, folders, odd = survey(bundle, _sizes(bundle))
    outcome.findings += odd
    statement = _statement(bundle, key, outcome)
    _check_files(bundle, files, folders, statement, outcome)
    if odd:
        outcome.notes.append(
            "What the run's files say was not read: something in the bundle is no regular file."
        )
        return outcome
    try:
        outcome.findings += [f"{RUN}: {finding}" for finding in verify(bundle / RUN)]
    except FdauditError as error:
        outcome.findings.append(f"{RUN}: {error}")
    if statement is not None:
        _check_facts(bundle / RUN, statement, outcome)
    if vault is not None:
        _check_vault(bundle / RUN, vault, statement, outcome)
    if not outcome.findings:
        findings, notes = check_reports(bundle, RUN, ENVIRONMENT)
        outcome.findings += findings
        outcome.notes += notes
    return outcome


def _sizes(bundle: Path) -> dict[str, int]:
    """Return the listed size of each file; empty if the listing cannot be read, which a later check reports."""
    try:
        return {path: entry.size for path, entry in read_listing(read_bounded(bundle / FILES), FILES).items()}
    except IntegrityError:
        return {}


# -- the statement --------------------------------------------------------------------------------------------


def _statement(bundle: Path, key: Ed25519PublicKey | None, outcome: Outcome) -> Statement | None:
    try:
        envelope = open_envelope(read_bounded(bundle / STATEMENT), STATEMENT)
        check_signature(envelope, key, outcome)
        return read_statement(envelope.payload, STATEMENT)
    except IntegrityError as error:
        outcome.findings += error.findings
        return None


def check_signature(envelope: Envelope, key: Ed25519PublicKey | None, outcome: Outcome) -> None:
    """Check an envelope's signature under a key, and note in the outcome who signed it."""
    if key is None:
        note = "Give --key to check who signed it." if envelope.signatures else "It is not signed."
        outcome.notes.append(f"Authorship was not checked. {note}")
        return
    from .keys import key_id

    if not envelope.signatures:
        outcome.findings.append(f"{STATEMENT} is not signed, though a key was given")
        return
    ours = key_id(key)
    if not envelope.signed_by(key):
        outcome.findings.append(f"{STATEMENT}: no signature is valid for the key {ours}")
        return
    outcome.signed_by = ours
    matches = sum(s.keyid == ours for s in envelope.signatures)
    if matches != 1:
        outcome.findings.append(
            f"{STATEMENT}: {matches} signatures name the key {ours} by its keyid, not one"
        )
    others = len(envelope.signatures) - matches
    if others > 0:
        outcome.notes.append(f"{others} signatures that name other keys were not checked.")


# -- files ----------------------------------------------------------------------------------------------------


def _check_files(
    bundle: Path,
    files: dict[str, ListedFile],
    folders: set[str],
    statement: Statement | None,
    outcome: Outcome,
) -> None:
    """Compare the tree with the listing, and with the statement's subjects, one of which is the listing."""
    try:
        listing = read_listing(read_bounded(bundle / FILES), FILES)
        there = dict(files)
        there.pop(STATEMENT, None)
        there.pop(FILES, None)
        outcome.findings += differences(listing, there, FILES)
        above = set[str]()
        for path in listing:
            for n in range(1, path.count("/") + 1):
                above.add(path.rsplit("/", n)[0])
        for folder in sorted(folders - above):
            outcome.findings.append(f"{folder}/ holds no listed file")
    except IntegrityError as error:
        outcome.findings += error.findings
    if statement is not None:
        digests = dict[str, str]()
        for path, entry in files.items():
            if path != STATEMENT:
                digests[path] = entry.sha256
        outcome.findings += differences(statement.subjects, digests, "the statement")


def differences(due: Any, found: Any, by: str) -> list[str]:
    """Return a sentence for each path that is missing, was added, or has another value than is due."""
    differences = list[str]()
    for path in sorted(due.keys() - found.keys()):
        differences.append(f"{path} is missing, though {by} lists it")
    for path in sorted(found.keys() - due.keys()):
        differences.append(f"{path} is not listed by {by}")
    for path in sorted(due.keys() & found.keys()):
        if due[path] != found[path]:
            differences.append(f"{path} is not the file that {by} lists")
    return differences


# -- the run --------------------------------------------------------------------------------------------------


def _check_facts(run: Path, statement: Statement, outcome: Outcome) -> None:
    """Compare the statement's facts about a run with the run's files."""
    try:
        due = facts(run, statement.predicate_type)
    except FdauditError as error:
        outcome.findings.append(f"{RUN}: {error}")
        return
    stated = dict(statement.predicate)
    verdicts, judged = stated.pop("verdicts"), due.pop("verdicts")
    if isinstance(stated["run"], dict):
        names = due["run"].keys() | stated["run"].keys()
        due |= {f"run.{name}": due["run"].get(name) for name in names}
        stated |= {f"run.{name}": stated["run"].get(name) for name in names}
        del due["run"]
    for name in sorted(due):
        if canonical(due[name]) != canonical(stated[name]):
            difference = f"predicate.{name} is not what the bundled run says"
            outcome.findings.append(f"{STATEMENT}: {difference}: it was changed, or is of another run")
    if canonical(verdicts) != canonical(judged):
        differ = "predicate.verdicts differs from what this version of fdaudit judges"
        if stated["tool"] == tool():
            outcome.findings.append(f"{STATEMENT}: {differ}")
        else:
            outcome.notes.append(f"{differ}; another version wrote it.")


def _check_vault(run: Path, vault: Path, statement: Statement | None, outcome: Outcome) -> None:
    if statement is None:
        outcome.notes.append("The vault was not checked: there is no statement that commits to one.")
        return
    try:
        outcome.findings += check_vault(vault, statement.predicate["vault"], read_manifest(run))
    except FdauditError as error:
        outcome.findings.append(f"{RUN}/{MANIFEST}: {error}")

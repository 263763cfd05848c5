"""Score guesses where the truth is, and hand back figures without records, signed by the site.

Guarantees:
  * guesses are scored with the lines and the card of the record that they were made from, and without its payloads;
  * what leaves the site are coarse figures (`coarse_scores`): no image, no label, no class share, no score of one
    record;
  * the site answers at most `MOST_ANSWERS` times about any record and goal, whatever names the guesses, the adversary,
    the messages, the record or the card have. An answer is counted on disk before it is computed (`answered`);
  * guesses about a party whose candidates were handed out by the same user are refused;
  * the auditor takes figures over only for guesses, a record and a card that it has itself, and only if the whole
    statement agrees with them (`scored_statement`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fdaudit.attestation.dsse import open_envelope, seal
from fdaudit.attestation.keys import key_id, private_key, public_key
from fdaudit.audit.guesses import GuessFile, guesses_and_digest, to_guesses
from fdaudit.audit.red_team import keep_external, refuse_other_view, refuse_spoilt, submissions
from fdaudit.audit.run import Run
from fdaudit.errors import IntegrityError, RunError, UsageError
from fdaudit.evaluation.stage import Stage
from fdaudit.goals import GOALS, Guess
from fdaudit.importing.coarse_scores import MOST_ANSWERS, coarse_figures, refuse_too_few
from fdaudit.importing.records import scoring_run
from fdaudit.importing.scored_statement import (
    Scored,
    ScoredStatement,
    read_statement,
    refuse_other_guesses,
    scored,
)
from fdaudit.importing.truth_files import home_of_records
from fdaudit.importing.written_guesses import GUESSES, LINES
from fdaudit.limits import JSON_BYTES, read_file
from fdaudit.result import Cell
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.storage.answered import Answered, answered_at
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import write_atomically
from fdaudit.storage.locks import writing
from fdaudit.storage.scratch import scratch
from fdaudit.transcript.manifest import refuse_changed, versions

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from fdaudit.planning.case import Case
    from fdaudit.recording.record import Record

__all__ = ["score_at_site", "take_scores"]


def score_at_site(
    guesses: Path,
    out: Path,
    *,
    truth: Sequence[Path],
    record: Path | None = None,
    card: Path | None = None,
    sign: Path | None = None,
    passphrase: Callable[[], str | None] = lambda: None,
) -> Scored:
    """Score guesses with a site's truth, and write the figures as a statement.

    Only guesses about parties whose records are in the truth are scored.

    Args:
        guesses: the file of guesses, or the directory that `write_guesses` made.
        out: the statement; must not exist yet.
        truth: the site's truth. `answered.json` beside its records counts the answers.
        record: the record that was attacked, whose payloads are not read; default: the lines beside the guesses.
        card: the system's card; default: `card.yaml` beside the lines.
        sign: an Ed25519 private key (PEM, PKCS#8); None leaves the statement unsigned.
        passphrase: called for the passphrase of an encrypted key.

    Returns:
        What the statement says.

    Raises:
        UsageError: the guesses are malformed, of another record, about no one whose records are here or about too few
            records, or the site has answered often enough; nothing was written.
        IntegrityError: the record is damaged, the truth contradicts it, or the count of answers is damaged.
    """
    if out.exists() or out.is_symlink():
        raise RunError("out", str(out), "exists already", "Choose another file.")
    if not out.parent.is_dir():
        raise RunError("out", str(out), "lies in no directory", "Make the directory first.")
    guesses = guesses / GUESSES if guesses.is_dir() else guesses
    key: Ed25519PrivateKey | None = None
    if sign is not None:
        key = private_key(sign, passphrase)
    given, digest = guesses_and_digest(guesses)
    if not GOALS[given.goal].at_sites:
        remedy = "Membership is scored by whoever holds the design's key."
        raise UsageError("GUESSES", given.goal, "is no goal that a site scores", remedy)
    with scratch("score") as folder:
        audit = {"victims": 1, "adversaries": [given.adversary]}
        lines = record or guesses.parent / LINES
        run, about = scoring_run(lines, folder / "run", card=card, truth=truth, audit=audit)
        scorable = _scorable(run, about, given, guesses, lines)
        with answered_at(home_of_records(truth), run.case.system.record_names) as answered:
            counts = _charge(answered, given.goal, run.case, scorable, digest)
            figures = coarse_figures(run, scorable)
            record_and_card = {"head": about.head, "card": _card_digest(run.case)}
            statement = scored(given, digest, figures, versions=versions(), **record_and_card, **counts)
            write_atomically(out, seal(statement.to_bytes(), key))
    return statement.predicate


def take_scores(run: Run, scored: Path, guesses: Path, key: Path | None = None) -> Cell:
    """Take a site's figures over into the run whose guesses they score.

    Args:
        run: the run.
        scored: the site's statement.
        guesses: the guesses that were sent to the site.
        key: the site's public key; None takes an unsigned statement, and the cell says so.

    Raises:
        UsageError: the statement is about other guesses or another record, or the key is no key; nothing was written.
        IntegrityError: it is malformed, not signed by this key, or contradicts the guesses; nothing was written.
    """
    try:
        data = read_file(scored, JSON_BYTES)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise UsageError("SCORED", str(scored), problem, "Give the site's file.") from None
    envelope = open_envelope(data, scored.name)
    signed = "unsigned"
    if key is not None:
        signer = public_key(key)
        if not envelope.signed_by(signer):
            raise IntegrityError([f"{scored.name} is not signed by this key"])
        signed = key_id(signer)
    statement = read_statement(envelope.payload, scored.name)
    given, digest = guesses_and_digest(guesses)
    refuse_other_guesses(statement, given, digest, str(guesses))
    with writing(run.directory):
        refuse_changed(run.directory)
        _refuse_other_run(run, statement, given, str(scored))
        params = {
            "guesses_sha256": digest,
            "scored_by": signed,
            "submission": submissions(run, given, by_site=True) + 1,
            "asked": statement.predicate.asked,
            "asked_elsewhere": statement.predicate.asked_elsewhere,
        }
        return keep_external(run, given, params, *statement.predicate.results())


# -- at the site --------------------------------------------------------------------------------------------------


def _scorable(
    run: RunDirectory, about: Record, given: GuessFile, path: Path, lines: Path
) -> tuple[Guess, ...]:
    """Return the guesses about parties whose records are in the truth, after all checks that need no answer."""
    if given.head not in (None, about.head):
        problem = f"is the end of another record than {lines}"
        raise UsageError("guesses.head", given.head, problem, "Give the record that was attacked.")
    all_guesses = to_guesses(given, path.parent, run.case.dataset.input_shape)
    about_records = []
    for guess in all_guesses:
        if len(run.case.numbered(guess.target)):
            about_records.append(guess)
    scorable = tuple(about_records)
    if not scorable:
        problem = "is about nobody whose records are in the truth"
        raise UsageError("GUESSES", str(path), problem, "Give the truth of the site that it is about.")
    try:
        Stage(run).check(given.adversary, scorable, [g.target for g in scorable])
    except ValueError as error:
        problem = f"cannot be scored: {error}"
        raise UsageError("GUESSES", str(path), problem, "Correct the file.") from None
    refuse_too_few(run, scorable)
    return scorable


def _charge(
    answered: Answered, goal: str, case: Case, guesses: Sequence[Guess], digest: str
) -> dict[str, int]:
    """Count an answer for every record of the guessed parties; return the counts that the statement tells.

    All records of a party are charged, not only those behind the named messages: else refusals would tell which
    messages share records.
    """
    every = list[str]()
    for guess in guesses:
        records = case.system.names_of(guess.target)
        if answered.handed_out(records):
            problem = "had its candidates for membership handed out, which show its classes and images"
            remedy = "Score guesses before candidates are handed out."
            raise UsageError("GUESSES", guess.target, problem, remedy)
        if answered.asked(goal, records) >= MOST_ANSWERS:
            problem = f"has records that {MOST_ANSWERS} answers about {goal} were given for, the most that are given"
            raise UsageError("GUESSES", guess.target, problem, "Leave it out.")
        every += records
    elsewhere = answered.elsewhere(goal, every)
    answered.charge(goal, every, digest)
    return {"asked": answered.asked(goal, every), "asked_elsewhere": elsewhere}


# -- at the auditor -----------------------------------------------------------------------------------------------


def _refuse_other_run(run: Run, statement: ScoredStatement, given: GuessFile, path: str) -> None:
    """Refuse figures of another record or card, of another view, or of a party that they cannot be about here."""
    stated, remedy = statement.predicate, "Give the run that was attacked."
    if stated.head != run.opened.manifest["head"]:
        raise UsageError("SCORED", path, "is about another record", remedy)
    if stated.card != _card_digest(run.case):
        raise UsageError("SCORED", path, "is about another card", remedy)
    refuse_other_view(given, run.opened)
    refuse_spoilt(given, run.opened.vault.handed_out)
    for target in stated.targets:
        if target.target not in run.case.clients:
            problem = f"is about {target.target}, who is no client of the run"
            raise UsageError("SCORED", path, problem, remedy)


def _card_digest(case: Case) -> str:
    """Return the SHA-256 of a recording's card, or of nothing for a simulated run."""
    card = None
    if case.imported is not None:
        card = case.imported.card.model_dump(mode="json")
    return hashlib.sha256(canonical(card)).hexdigest()

"""Score guesses where the truth is, and hand back figures without records, signed by the site.

Guarantees:
  * guesses are scored with the lines and the card of the record that they were made from, and without its payloads;
  * what leaves the site are figures: no image, no label, no class share, no score of a single candidate;
  * the auditor takes figures over only for guesses, a record and a card that it has itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdaudit.attestation.dsse import open_envelope, seal
from fdaudit.attestation.keys import key_id, private_key, public_key
from fdaudit.attestation.statement import STATEMENT_TYPE
from fdaudit.audit.guesses import guesses_and_digest, to_guesses
from fdaudit.audit.red_team import keep_external
from fdaudit.audit.run import Run
from fdaudit.errors import IntegrityError, RunError, UsageError
from fdaudit.evaluation.stage import Stage
from fdaudit.importing.records import scoring_run
from fdaudit.importing.written_guesses import GUESSES, LINES
from fdaudit.limits import JSON_BYTES, read_file
from fdaudit.planning.plan import Plan
from fdaudit.planning.recorded import RecordedPlan
from fdaudit.result import Cell, TargetResult, figure_json, figures_of
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import parse_json, write_atomically
from fdaudit.storage.locks import writing
from fdaudit.storage.scratch import scratch
from fdaudit.transcript.manifest import read_manifest, refuse_changed, versions

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["PREDICATE_TYPE", "score_at_site", "take_scores"]

PREDICATE_TYPE = "https://fdaudit.dev/scored/v1"
_FIELDS = frozenset(
    {
        "adversary",
        "assumes",
        "card",
        "figures",
        "goal",
        "head",
        "name",
        "source",
        "targets",
        "versions",
        "view",
    }
)


def score_at_site(
    guesses: Path,
    out: Path,
    *,
    truth: Sequence[Path],
    record: Path | None = None,
    card: Path | None = None,
    sign: Path | None = None,
    passphrase: Callable[[], str | None] = lambda: None,
) -> Path:
    """Score guesses with a site's truth, and write the figures as a statement.

    Only guesses about parties whose records are in the truth are scored.

    Args:
        guesses: the file of guesses, or the directory that `write_guesses` made.
        out: the statement; must not exist yet.
        truth: the site's truth.
        record: the record that was attacked, whose payloads are not read; default: the lines beside the guesses.
        card: the system's card; default: `card.yaml` beside the lines.
        sign: an Ed25519 private key (PEM, PKCS#8); None leaves the statement unsigned.
        passphrase: called for the passphrase of an encrypted key.

    Raises:
        UsageError: the guesses are malformed, of another record, or about nobody whose records are here; nothing was
            written.
        IntegrityError: the record is damaged, or the truth contradicts it.
    """
    if out.exists() or out.is_symlink():
        raise RunError("out", str(out), "exists already", "Choose another file.")
    guesses = guesses / GUESSES if guesses.is_dir() else guesses
    key: Ed25519PrivateKey | None = None if sign is None else private_key(sign, passphrase)
    given, digest = guesses_and_digest(guesses)
    if given.goal not in ("reconstruction", "label-distribution"):
        remedy = "Membership is scored by whoever holds the design's key."
        raise UsageError("GUESSES", given.goal, "is no goal that a site scores", remedy)
    with scratch("score") as folder:
        audit = {"victims": 1, "adversaries": [given.adversary]}
        lines = record or guesses.parent / LINES
        run, about_record = scoring_run(lines, folder / "run", card=card, truth=truth, audit=audit)
        if given.head not in (None, about_record.head):
            problem = f"is the end of another record than {lines}"
            raise UsageError("guesses.head", given.head, problem, "Give the record that was attacked.")
        stage, plan = Stage(run), run.plan
        made = to_guesses(given, guesses.parent, plan.dataset.input_shape)
        known = [g for g in made if len(plan.numbered(g.target))]
        if not known:
            problem = "is about nobody whose records are in the truth"
            raise UsageError("GUESSES", str(guesses), problem, "Give the truth of the site that it is about.")
        about, cell = [g.target for g in known], f"{given.adversary}/external-{given.name}"
        try:
            figures, targets = stage.score(cell, given.adversary, known, about)
        except ValueError as error:
            said = f"cannot be scored: {error}"
            raise UsageError("GUESSES", str(guesses), said, "Correct the file.") from None
        predicate = {
            "name": given.name,
            "adversary": given.adversary,
            "goal": given.goal,
            "source": given.source,
            "assumes": list(given.assumes),
            "view": given.view,
            "head": about_record.head,
            "card": _card_digest(plan),
            "figures": [figure_json(f) for f in figures],
            "targets": [
                {"target": t.target, "figures": [figure_json(f) for f in t.figures]} for t in targets
            ],
            "versions": versions(),
        }
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": "guesses.json", "digest": {"sha256": digest}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }
    write_atomically(out, seal(canonical(statement), key))
    return out


def take_scores(run: Run, scored: Path, guesses: Path, key: Path | None = None) -> Cell:
    """Take a site's figures over into the run whose guesses they score.

    Args:
        run: the run.
        scored: the site's statement.
        guesses: the guesses that were sent to the site.
        key: the site's public key; None takes an unsigned statement, and the cell says so.

    Raises:
        UsageError: the statement is about other guesses or another record, or the key is no key.
        IntegrityError: it is malformed, or not signed by this key; nothing was written.
    """
    envelope = open_envelope(_read(scored), scored.name)
    signer = None if key is None else public_key(key)
    if signer is not None and not envelope.signed_by(signer):
        raise IntegrityError([f"{scored.name} is not signed by this key"])
    predicate, digest = _predicate(envelope.payload, scored.name)
    given, due = guesses_and_digest(guesses)
    if digest != due:
        raise UsageError("GUESSES", str(guesses), "are not those that the site scored", "Give the same file.")
    with writing(run.directory):
        refuse_changed(run.directory)
        own = read_manifest(run.directory)["head"], _card_digest(run.plan)
        for what, found, wanted in zip(
            ("record", "card"), (predicate["head"], predicate["card"]), own, strict=True
        ):
            if found != wanted:
                problem = f"is about another {what}"
                raise UsageError("SCORED", str(scored), problem, "Give the run that was attacked.")
        signed = "unsigned" if signer is None else key_id(signer)
        params = {"guesses_sha256": digest, "scored_by": signed}
        targets = tuple(
            TargetResult(target=t["target"], figures=figures_of(t["figures"])) for t in predicate["targets"]
        )
        return keep_external(run, given, params, figures_of(predicate["figures"]), targets)


def _card_digest(plan: Plan) -> str:
    """Return the SHA-256 of a recording's card, or of nothing for a simulated run."""
    stated = plan.card.model_dump(mode="json") if isinstance(plan, RecordedPlan) else None
    return hashlib.sha256(canonical(stated)).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return read_file(path, JSON_BYTES)
    except OSError as error:
        raise UsageError(
            "SCORED", str(path), f"cannot be read ({error.strerror})", "Give the site's file."
        ) from None


def _predicate(payload: bytes, name: str) -> tuple[Mapping[str, Any], str]:
    """Return the predicate of a statement about scores, and the digest of the guesses."""
    try:
        value = parse_json(payload)
        (subject,) = value["subject"]
        predicate = value["predicate"]
        right = (value["_type"], value["predicateType"]) == (STATEMENT_TYPE, PREDICATE_TYPE)
        if not right or predicate.keys() != _FIELDS or canonical(value) != payload:
            raise ValueError("it is no statement about scores")
        figures_of(predicate["figures"])
        for target in predicate["targets"]:
            figures_of(target["figures"])
        return predicate, str(subject["digest"]["sha256"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError([f"{name} is malformed: {error}"]) from None

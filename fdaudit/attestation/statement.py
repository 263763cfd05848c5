"""The statement: an in-toto Statement v1 about a run and its files.

Guarantees:
  * all its facts about the run are read from listed files, by `facts`: anyone with the files can check them;
  * a result that does not match the manifest and the attacks' outcomes in the same run is refused, and one whose
    judgement contradicts its cells.

Source: in-toto attestation framework, Statement v1 (github.com/in-toto/attestation).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fdaudit.errors import IntegrityError, UsageError
from fdaudit.result import Part
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import load_json
from fdaudit.transcript.manifest import MANIFEST, origin_of, read_manifest

from .listing import ListedFile, digest, is_safe, refuse_paths
from .strict import is_digest, parse_canonical

__all__ = [
    "PREDICATE_TYPE",
    "STATEMENT_TYPE",
    "Statement",
    "facts",
    "read_statement",
    "subjects_of",
    "write_statement",
]

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:fdaudit:evidence:v2"
_FIRST_TYPE = "urn:fdaudit:evidence:v1"
"""The type of statements whose ledger does not say what is left of ε if parties depart (`against`)."""
_RESULT = "result.json"
_OWN = ("tool", "vault", "written")
_FACTS = ("auditor_only", "checks", "gates", "ledger", "run", "verdicts")
_GATE = ("name", "threshold", "value", "passed", "at_least")
_LEDGER = ("adversary", "epsilon", "delta", "unit", "relation", "victim")
_AGAINST = ("departs", "number", "holds", "epsilon")
_CHECK = ("adversary", "claimed", "verdict")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class Statement:
    """A parsed statement: files by path, and the predicate.

    Attributes:
        subjects: SHA-256 by path.
        predicate: its fields, each of its type.
        predicate_type: with its version.
    """

    def __init__(
        self, subjects: Mapping[str, str], predicate: Mapping[str, Any], predicate_type: str
    ) -> None:
        self.subjects, self.predicate, self.predicate_type = subjects, predicate, predicate_type


def facts(run: Path, predicate_type: str = PREDICATE_TYPE) -> dict[str, Any]:
    """Return the facts about a run that its files state, without its vault.

    Args:
        run: its directory.
        predicate_type: decides what the facts are.

    Returns:
        `run` (name, spec_sha256, head, messages, origin, manifest_self, result_sha256), `gates`, `verdicts` by cell,
        `ledger` by adversary, `checks` by adversary, `auditor_only`.

    Raises:
        RunError: the run has no manifest.
        IntegrityError: manifest or result were changed, or are not of one run.
    """
    from fdaudit.reports.judgement.judgement import findings_of, read_judged

    manifest = read_manifest(run)
    if not (run / _RESULT).is_file():
        raise IntegrityError([f"{_RESULT} is missing, or no regular file"])
    stored = load_json(run / _RESULT)
    try:
        result = read_judged(stored)
        for name in ("head", "messages", "spec_sha256"):
            if getattr(result.run, name) != manifest[name]:
                raise IntegrityError([f"{_RESULT} and {MANIFEST} differ in {name}: they are not of one run"])
        outcomes = sorted(filter(Path.is_file, (run / "attacks").glob("*.json")))
        if stored["cells"] != list(map(load_json, outcomes)):
            raise IntegrityError(
                [f"{_RESULT} does not have the cells that lie in attacks/: conclude the run anew"]
            )
        verdicts = []
        for finding in findings_of(result):
            cell = finding.cell
            verdicts.append({"cell": cell.id, "goal": cell.goal, "level": finding.level})
        ledger = []
        for entry in result.ledger or ():
            row = _some(entry, _LEDGER)
            if predicate_type != _FIRST_TYPE:
                row["against"] = [_some(case, _AGAINST) for case in entry.against]
            ledger.append(row)
        value = {
            "auditor_only": result.auditor_only,
            "run": {
                "name": result.run.name,
                "spec_sha256": manifest["spec_sha256"],
                "head": manifest["head"],
                "messages": manifest["messages"],
                "origin": origin_of(manifest),
                "manifest_self": hashlib.sha256(canonical(manifest)).hexdigest(),
                "result_sha256": digest(run, _RESULT).sha256,
            },
            "gates": [_some(row, _GATE) for row in result.gates],
            "verdicts": verdicts,
            "ledger": ledger,
            "checks": [_some(row, _CHECK) for row in result.checks],
        }
        canonical(value)
        return value
    except (UsageError, LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        reason = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        raise IntegrityError([f"{_RESULT} is malformed: {reason[:300]}"]) from None


def _some(row: Part, names: Iterable[str]) -> dict[str, Any]:
    """Return some members of a part of the result."""
    return {name: getattr(row, name) for name in names}


def write_statement(files: Iterable[ListedFile], said: Mapping[str, Any], own: Mapping[str, Any]) -> bytes:
    """Return the statement's canonical bytes.

    Args:
        files: the files that it covers.
        said: the run's `facts`.
        own: `tool`, `vault` and `written`.
    """
    subjects = list[dict[str, Any]]()
    for entry in sorted(files, key=lambda entry: entry.path):
        subjects.append({"name": entry.path, "digest": {"sha256": entry.sha256}})
    return canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": subjects,
            "predicateType": PREDICATE_TYPE,
            "predicate": dict(said) | {name: own[name] for name in _OWN},
        }
    )


def read_statement(payload: bytes, name: str) -> Statement:
    """Parse a statement's bytes, without comparing them with any files.

    Raises:
        IntegrityError: it is not a statement of this type, or it names a file twice or outside the bundle.
    """
    value = parse_canonical(payload, f"{name}: the statement", end=b"")
    if not isinstance(value, dict) or value.keys() != {"_type", "subject", "predicateType", "predicate"}:
        raise IntegrityError([f"{name}: the statement has not the fields of in-toto's"])
    predicate_type = value["predicateType"]
    if value["_type"] != STATEMENT_TYPE:
        raise IntegrityError([f"{name}: _type is not {STATEMENT_TYPE}"])
    if predicate_type not in (PREDICATE_TYPE, _FIRST_TYPE):
        raise IntegrityError([f"{name}: predicateType is neither {PREDICATE_TYPE} nor {_FIRST_TYPE}"])
    subjects, predicate = subjects_of(value["subject"], name), value["predicate"]
    fields = {*_OWN, *_FACTS}
    if not isinstance(predicate, dict) or predicate.keys() != fields:
        odd = sorted(fields ^ predicate.keys()) if isinstance(predicate, dict) else sorted(fields)
        raise IntegrityError(
            [f"{name}: predicate lacks, or has beside its own fields: {', '.join(odd)[:300]}"]
        )
    if not (isinstance(predicate["written"], str) and _TIME.fullmatch(predicate["written"])):
        raise IntegrityError([f"{name}: predicate.written is no time"])
    vault, tool = predicate["vault"], predicate["tool"]
    if not isinstance(vault, dict) or vault.keys() != {"commitment", "files"} or not _is_committed(vault):
        raise IntegrityError([f"{name}: predicate.vault is no commitment"])
    if not isinstance(tool, dict) or tool.keys() != {"name", "version", "commit", "source_sha256"}:
        raise IntegrityError([f"{name}: predicate.tool does not say which fdaudit it was"])
    return Statement(subjects, predicate, predicate_type)


def subjects_of(listed: Any, name: str) -> dict[str, str]:
    """Return the SHA-256 of each subject by path.

    Raises:
        IntegrityError: it lists something else, a path twice, or one that leaves the directory.
    """
    if not isinstance(listed, list) or not all(map(_is_subject, listed)):
        raise IntegrityError([f"{name}: subject does not list name and digest.sha256 of each file"])
    refuse_paths([s["name"] for s in listed], f"{name}: subject", "name")
    return {s["name"]: s["digest"]["sha256"] for s in listed}


def _is_subject(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"name", "digest"}
        and isinstance(value["name"], str)
        and isinstance(value["digest"], dict)
        and value["digest"].keys() == {"sha256"}
        and is_digest(value["digest"]["sha256"])
    )


def _is_committed(vault: Mapping[str, Any]) -> bool:
    files = vault["files"]
    listed = isinstance(files, list) and all(isinstance(f, str) and is_safe(f) for f in files)
    return listed and files == sorted(set(files)) and is_digest(vault["commitment"])

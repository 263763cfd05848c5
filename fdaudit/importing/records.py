"""Import a record of another system as a run: the same directory, which the same commands read.

Guarantees:
  * the record is checked first, with its card and its truth; a contradiction is refused, and nothing is written;
  * the run appears whole under its name or not at all;
  * nothing of the truth is written outside the vault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from fdaudit.audit.run import Run
from fdaudit.audit.summary import conclude
from fdaudit.errors import IntegrityError, RunError, SpecError
from fdaudit.importing.frozen_check import ModelsOnRecord, frozen_that_moved, never_moved
from fdaudit.importing.record_check import asserted, contradictions, not_finite, oddities, refuse_false_card
from fdaudit.importing.truth_check import doubts, refuted_rates
from fdaudit.importing.truth_files import TruthFiles, truth_files
from fdaudit.limits import DATA_BYTES, JSON_BYTES, read_file
from fdaudit.planning.brought import ARRAYS, BroughtRecords
from fdaudit.planning.ladder import LADDER
from fdaudit.planning.recorded import BROUGHT, recorded_case, recorded_spec
from fdaudit.planning.recorded import USES as KEPT_USES
from fdaudit.recording.record import (
    Record,
    check_record,
    closed_part,
    held_messages,
    read_lines_only,
    read_record,
    write_lines_only,
)
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.scoring.unused_members import unused_members
from fdaudit.spec.card import Card, load_card
from fdaudit.spec.documents import read_yaml
from fdaudit.spec.schema import Spec
from fdaudit.spec.trust import importable, name_code, refuse_code
from fdaudit.storage.files import write_atomically, written_whole
from fdaudit.storage.scratch import scratch
from fdaudit.storage.tree import refuse_links
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.transcript.manifest import versions, write_manifest
from fdaudit.transcript.messages import Message

__all__ = ["audit_settings", "check", "import_record", "scoring_run"]

CARD = "card.yaml"
_MOST_SHOWN = 10
"""Messages that notes name one by one."""


def import_record(
    record: Path | str,
    out: Path | str,
    *,
    card: Card | Path | str | dict[str, Any] | None = None,
    truth: Sequence[Path | str] = (),
    audit: Path | dict[str, Any] | None = None,
    seed_from: Path | str | None = None,
    loss: str | None = None,
) -> Run:
    """Import a record of a system that fdaudit did not run, as a run.

    Args:
        record: the directory that a recorder wrote.
        out: the run directory; must not exist yet.
        card: the system's card, or its YAML file; default: `card.yaml` in the record.
        truth: directories with what the recorder wrote beside the record, and with the records that you bring.
        audit: settings of the audit, by their names in a spec, or a YAML file of them; `profile` is `quick` if they
            do not say.
        seed_from: a run directory whose seed and secret are used again.
        loss: the clients' loss, if the card cannot state it: `import:module:function`, or `file.py:function`. Naming it
            here trusts it.

    Raises:
        UsageError: an argument, the card or a file of the truth is wrong, or names untrusted code; nothing was written.
        IntegrityError: the record is damaged, or the truth contradicts it; nothing was written.
    """
    source, target = Path(record), Path(out)
    if target.exists() or target.is_symlink():
        raise RunError("out", str(out), "exists already", "Choose another directory.")
    checked = check_record(source)
    if checked.findings:
        raise IntegrityError(list(checked.findings))
    about, stated = read_record(source), _card_of(source, card)
    if not about.messages:
        raise RunError("record", str(record), "has no closed round", "Record at least one whole round.")
    settings = audit_settings(audit) if isinstance(audit, Path) else audit or {}
    refuse_code(settings, "audit")
    spec = recorded_spec(stated, about.parties, {**settings, **_named_by_user(loss)})
    if seed_from is None:
        secrets = Secrets.draw(spec.seed)
    else:
        refuse_links(Path(seed_from), ("vault",))
        secrets = Vault(Path(seed_from) / "vault").secrets
    with (
        truth_files([Path(t) for t in truth], stated, about.parties) as files,
        written_whole(target) as folder,
    ):
        compared = _RecordWithTruth(about, stated, spec, secrets, files, folder / "transcript")
        if compared.defects:
            raise IntegrityError(compared.defects)
        compared.case.execution.begin()
        run = RunDirectory(folder, compared.case)
        _fill(run, stated, secrets, files, compared.uses)
        notes = [*checked.notes, *files.notes, *compared.notes()]
        _seal(run, about, compared.messages, notes, compared.left_out)
        conclude(run)
    return Run(target)


def audit_settings(file: Path) -> dict[str, Any]:
    """Return the settings of an audit from a YAML file.

    Raises:
        SpecError: it is no mapping.
    """
    settings = read_yaml(file, "audit") or {}
    if not isinstance(settings, dict):
        raise SpecError("audit", str(file), "is no mapping", "Write `key: value` lines.")
    return settings


def check(
    record: Path,
    *,
    card: Card | Path | str | dict[str, Any] | None = None,
    truth: Sequence[Path] = (),
    loss: str | None = None,
) -> tuple[list[str], list[str]]:
    """Check a record, and its card and truth where they are given, without writing a run.

    Returns:
        Defects, one sentence each, and what is missing or odd without being a defect.

    Raises:
        UsageError: the card or a file of the truth is wrong.
    """
    checked = check_record(record)
    if checked.findings:
        return list(checked.findings), list(checked.notes)
    if card is None and not (record / CARD).exists():
        return [], [*checked.notes, "There is no card: write one with `fdaudit card new`."]
    about, stated = read_record(record), _card_of(record, card)
    spec = recorded_spec(stated, about.parties, _named_by_user(loss))
    with truth_files(truth, stated, about.parties) as files, scratch("import") as folder:
        compared = _RecordWithTruth(about, stated, spec, Secrets.draw(0), files, folder / "transcript")
        case, defects = compared.case, compared.defects
        notes = [*checked.notes, *files.notes, *compared.notes()]
        if not defects:
            for member in unused_members(case, compared.messages, compared.uses):
                words = member.words
                notes.append(words)
    notes += [f"Not brought: {what}." for what in case.not_brought.values()]
    return defects, notes


def scoring_run(
    lines: Path,
    out: Path,
    *,
    card: Path | None = None,
    truth: Sequence[Path] = (),
    audit: dict[str, Any] | None = None,
) -> tuple[RunDirectory, Record]:
    """Return a run directory that can score guesses, from a record's lines and a site's truth.

    It has no payloads, so nothing can be attacked in it.

    Args:
        lines: a record's lines, as `write_lines_only` writes them, with the system's card.
        out: the run directory; must not exist yet.
        card: the same card; default: the one beside the lines.
        truth: the directories of the truth.
        audit: settings of the audit.

    Raises:
        UsageError: the card or a file of the truth is wrong.
        IntegrityError: the lines are damaged, or the truth contradicts them.
    """
    (about, messages), stated = read_lines_only(lines), _card_of(lines, card)
    spec, secrets = recorded_spec(stated, about.parties, audit or {}), Secrets.draw(0)
    with truth_files(truth, stated, about.parties) as files:
        owned, uses = files.brought(), files.uses()
        _refuse_other_design(stated, owned)
        case = recorded_case(stated, spec, secrets, about.parties, messages, owned, uses=uses is not None)
        if false := contradictions(case, messages, uses):
            raise IntegrityError(false)
        case.execution.begin()
        write_lines_only(about, out)
        run = RunDirectory(out, case)
        _fill(run, stated, secrets, files, uses)
    return run, about


# -- details ------------------------------------------------------------------------------------------------------


class _RecordWithTruth:
    """A record beside its card and its truth, which it may contradict.

    Args:
        about: the record.
        card: its card.
        spec: the spec of its run.
        secrets: of its run.
        files: its truth.
        transcript: where its closed rounds are copied to.

    Attributes:
        messages: the messages of its closed rounds.
        left_out: the number of lines after them.
        uses: the records behind messages, if the truth names them.
        case: record, card and truth together.
        defects: what the truth refutes in the lines, or else in the payloads, one sentence each.

    Raises:
        SpecError: the record contradicts the card.
        IntegrityError: a line is no message, or the coins are of another design.
    """

    def __init__(
        self,
        about: Record,
        card: Card,
        spec: Spec,
        secrets: Secrets,
        files: TruthFiles,
        transcript: Path,
    ) -> None:
        records, self.uses = files.brought(), files.uses()
        _refuse_other_design(card, records)
        self.left_out = closed_part(about, transcript)
        self.messages = held_messages(transcript)
        self._not_finite = not_finite(transcript, self.messages)
        self.case = recorded_case(
            card,
            spec,
            secrets,
            about.parties,
            self.messages,
            records,
            uses=self.uses is not None,
            not_finite=self._not_finite.keys(),
        )
        refuse_false_card(self.case, transcript, self.messages)
        self._models = ModelsOnRecord(self.case, transcript, self.messages)
        self.defects = (
            contradictions(self.case, self.messages, self.uses)
            or frozen_that_moved(self._models)
            or refuted_rates(self._models, self.uses or {})
        )

    def notes(self) -> list[str]:
        """Return what is odd without being a defect, one sentence each."""
        notes = list(self._not_finite.values())[:_MOST_SHOWN]
        more = len(self._not_finite) - _MOST_SHOWN
        if more > 0:
            notes.append(f"{more} more messages are not finite and left out.")
        notes += oddities(self.case, self.messages)
        if not self.defects:
            notes += never_moved(self._models)
            notes += doubts(self._models, self.uses or {})
        return notes


def _named_by_user(loss: str | None) -> dict[str, str]:
    """Return the setting of a loss that the user named, and trust it; empty without one."""
    if loss is None:
        return {}
    setting = {"loss": importable(loss, "loss")}
    name_code(setting)
    return setting


def _card_of(record: Path, card: Card | Path | str | dict[str, Any] | None) -> Card:
    """Return the given card, or the one that came with the record.

    Raises:
        UsageError: it is wrong, missing or a link, or names code that is not trusted: it may be a stranger's.
    """
    path = record / CARD
    if card is None and (path.is_symlink() or not path.is_file()):
        problem = "is a link, no regular file" if path.is_symlink() else "is missing"
        raise RunError("card", str(path), problem, "Give --card; `fdaudit card new` writes one to fill in.")
    stated = load_card(path if card is None else card)
    refuse_code(stated.model_dump(mode="json"), "card")
    return stated


def _refuse_other_design(card: Card, records: BroughtRecords | None) -> None:
    """Refuse coins other than those that the card's commitment was made for."""
    if card.design is None or records is None or records.design is None:
        return
    commitment = records.design.commitment
    if commitment != card.design:
        problem = "records.json has coins of another design than the card names"
        raise IntegrityError([f"{problem}: {commitment[:12]}…, not {card.design[:12]}…"])


def _fill(
    run: RunDirectory,
    card: Card,
    secrets: Secrets,
    files: TruthFiles,
    uses: Mapping[int, Sequence[int]] | None,
) -> None:
    """Write the vault, the spec and the card."""
    vault: Vault = run.vault
    vault.create(secrets)
    folder = vault.directory / BROUGHT
    folder.mkdir()
    for name, path in files.files.items():
        limit = DATA_BYTES if name == ARRAYS else JSON_BYTES
        write_atomically(folder / name, read_file(path, limit))
    vault.save("splits", run.case.splits.to_dict())
    if uses is not None:
        numbers = {}
        for seq, records in uses.items():
            numbers[str(seq)] = torch.tensor(list(records), dtype=torch.int64)
        vault.save(KEPT_USES, numbers)
    public_spec = run.case.spec.public(run.commitments["seed"])
    for name, value in (("spec.yaml", public_spec), (CARD, card.model_dump(mode="json"))):
        write_atomically(run.path / name, yaml.safe_dump(value, sort_keys=False).encode("utf-8"))


def _seal(
    run: RunDirectory, about: Record, messages: Sequence[Message], notes: Sequence[str], left_out: int
) -> None:
    """Write the manifest."""
    case = run.case
    ladder = []
    for what, parts, buys in LADDER:
        ladder.append({"bring": what, "buys": buys, "there": not case.missing(*parts)})
    recording = {
        "system": case.system.card.name,
        "asserted_by": case.system.card.asserted_by,
        "parties": list(case.parties),
        "rounds": about.rounds,
        "closed": about.closed,
        "left_out": left_out,
        "notes": list(notes),
        "not_finite": sorted(case.system.not_finite),
        "asserted": asserted(case, messages),
        "ladder": ladder,
        "design": case.design,
    }
    manifest = {
        "origin": case.origin,
        "head": about.head,
        "messages": about.messages,
        "commitments": run.commitments,
        "spec_sha256": case.spec.digest(),
        "versions": versions(),
        "recording": recording,
    }
    write_manifest(run.path, manifest)

"""Import a record of another system as a run: the same directory, which the same commands read.

Guarantees:
  * the record is checked first, with its card and its truth; a contradiction is refused, and nothing is written;
  * the run appears whole under its name or not at all;
  * nothing of the truth is written outside the vault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from fdaudit.audit.run import Run
from fdaudit.audit.summary import conclude
from fdaudit.errors import IntegrityError, RunError, SpecError
from fdaudit.importing.record_check import asserted, contradictions, oddities, refuse_false_card
from fdaudit.importing.truth_check import doubts, refuted_rates
from fdaudit.limits import DATA_BYTES, JSON_BYTES, read_file
from fdaudit.planning.brought import ARRAYS, LISTS, BroughtRecords, read_records
from fdaudit.planning.ladder import LADDER
from fdaudit.planning.recorded import BROUGHT, RecordedPlan, by_party, recorded_plan, recorded_spec
from fdaudit.planning.recorded import USES as KEPT_USES
from fdaudit.planning.run_directory import RunDirectory
from fdaudit.recording.record import (
    Record,
    check_record,
    closed_part,
    held_messages,
    read_lines_only,
    read_record,
    write_lines_only,
)
from fdaudit.recording.truth import SITES, USES, read_sites, read_uses
from fdaudit.spec.card import Card, load_card
from fdaudit.spec.documents import read_yaml
from fdaudit.spec.trust import refuse_code
from fdaudit.storage.files import write_atomically, written_whole
from fdaudit.storage.tree import refuse_links
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.transcript.manifest import versions, write_manifest
from fdaudit.transcript.messages import Message

__all__ = ["check", "import_record", "scoring_run"]

CARD = "card.yaml"


@dataclass(frozen=True)
class _Truth:
    """The files of the truth, from one directory or several."""

    files: Mapping[str, Path]

    @classmethod
    def of(cls, directories: Sequence[Path]) -> _Truth:
        found: dict[str, Path] = {}
        for directory in directories:
            if not directory.is_dir():
                raise RunError("truth", str(directory), "is no directory", "Give the directory of a truth.")
            for name in (USES, SITES, LISTS, ARRAYS):
                path = directory / name
                if not path.exists():
                    continue
                if name in found:
                    problem = f"holds {name}, which {found[name].parent} holds as well"
                    raise RunError("truth", str(directory), problem, "Give each file once.")
                found[name] = path
        for one, other in ((LISTS, ARRAYS), (ARRAYS, LISTS)):
            if one in found and other not in found:
                problem = f"has {one} and no {other}"
                raise RunError("truth", str(found[one].parent), problem, "Give both: see docs/import.md.")
        return cls(found)

    def brought(self) -> BroughtRecords | None:
        """Return the records that were brought, by the record's parties."""
        sites = self.sites()
        if LISTS not in self.files:
            return None
        return by_party(read_records(self.files[LISTS], self.files[ARRAYS]), sites)

    def uses(self) -> dict[int, tuple[int, ...]] | None:
        """Return the records behind messages."""
        return read_uses(self.files[USES]) if USES in self.files else None

    def sites(self) -> Mapping[str, str | int]:
        """Return the site behind each party."""
        return read_sites(self.files[SITES]) if SITES in self.files else {}


def import_record(
    record: Path | str,
    out: Path | str,
    *,
    card: Card | Path | str | dict[str, Any] | None = None,
    truth: Sequence[Path | str] = (),
    audit: Path | dict[str, Any] | None = None,
    seed_from: Path | str | None = None,
) -> Run:
    """Import a record of a system that fdaudit did not run, as a run.

    Args:
        record: the directory that a recorder wrote.
        out: the run directory; must not exist yet.
        card: the system's card, or its YAML file; default: `card.yaml` in the record.
        truth: directories with what the recorder wrote beside the record, and with the records that you bring.
        audit: settings of the audit, by their names in a spec, or a YAML file of them.
        seed_from: a run directory whose seed and secret are used again.

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
    about, files = read_record(source), _Truth.of([Path(t) for t in truth])
    stated = _card_of(source, card)
    settings = read_yaml(audit, "audit") if isinstance(audit, Path) else audit
    if not isinstance(settings or {}, dict):
        raise SpecError("audit", str(audit), "is no mapping", "Write `key: value` lines.")
    refuse_code(settings or {}, "audit")
    spec = recorded_spec(stated, about.parties, settings or {})
    known = None if seed_from is None else _secrets_of(Path(seed_from))
    drawn = known or Secrets.draw(spec.seed)
    brought, uses = files.brought(), files.uses()
    _refuse_other_design(stated, brought)
    with written_whole(target) as scratch:
        left = closed_part(about, scratch / "transcript")
        messages = held_messages(scratch / "transcript")
        if not messages:
            raise RunError("record", str(record), "has no closed round", "Record at least one whole round.")
        plan = recorded_plan(stated, spec, drawn, about.parties, messages, brought, uses=uses is not None)
        refuse_false_card(plan, scratch / "transcript", messages)
        if false := _refuted(plan, scratch / "transcript", messages, uses):
            raise IntegrityError(false)
        plan.execution.begin()
        run = RunDirectory(scratch, plan)
        _fill(run, stated, drawn, files, uses)
        doubtful = doubts(plan, scratch / "transcript", messages, uses)
        notes = [*checked.notes, *oddities(plan, messages), *doubtful]
        _seal(run, plan, about, messages, notes, left)
        conclude(run)
    return Run(target)


def check(
    record: Path, *, card: Card | Path | str | dict[str, Any] | None = None, truth: Sequence[Path] = ()
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
    from fdaudit.storage.scratch import scratch

    about, files, stated = read_record(record), _Truth.of(truth), _card_of(record, card)
    brought, uses = files.brought(), files.uses()
    _refuse_other_design(stated, brought)
    with scratch("import") as folder:
        closed_part(about, folder / "transcript")
        messages = held_messages(folder / "transcript")
        spec = recorded_spec(stated, about.parties, {})
        plan = recorded_plan(
            stated, spec, Secrets.draw(0), about.parties, messages, brought, uses=uses is not None
        )
        refuse_false_card(plan, folder / "transcript", messages)
        found = _refuted(plan, folder / "transcript", messages, uses)
        doubtful = [] if found else doubts(plan, folder / "transcript", messages, uses)
    missing = [f"Not brought: {what}." for what in plan.lacks.values()]
    return found, [*checked.notes, *oddities(plan, messages), *doubtful, *missing]


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
    (about, messages), files = read_lines_only(lines), _Truth.of(truth)
    stated = _card_of(lines, card)
    spec, drawn = recorded_spec(stated, about.parties, audit or {}), Secrets.draw(0)
    brought, uses = files.brought(), files.uses()
    _refuse_other_design(stated, brought)
    plan = recorded_plan(stated, spec, drawn, about.parties, messages, brought, uses=uses is not None)
    if false := contradictions(plan, messages, uses):
        raise IntegrityError(false)
    plan.execution.begin()
    write_lines_only(about, out)
    run = RunDirectory(out, plan)
    _fill(run, stated, drawn, files, uses)
    return run, about


# -- details ------------------------------------------------------------------------------------------------------


def _secrets_of(run: Path) -> Secrets:
    refuse_links(run, ("vault",))
    return Vault(run / "vault").secrets


def _card_of(record: Path, card: Card | Path | str | dict[str, Any] | None) -> Card:
    """Return the given card, or the one that came with the record.

    Raises:
        UsageError: it is wrong, missing or a link, or names code that is not trusted: it may be a stranger's.
    """
    path = record / CARD
    if card is None and (path.is_symlink() or not path.is_file()):
        problem = "is a link, no regular file" if path.is_symlink() else "is missing"
        raise RunError("card", str(path), problem, "Give --card; `fdaudit card new` writes one to fill in.")
    found = load_card(path if card is None else card)
    refuse_code(found.model_dump(mode="json"), "card")
    return found


def _refuted(
    plan: RecordedPlan,
    transcript: Path,
    messages: Sequence[Message],
    uses: Mapping[int, tuple[int, ...]] | None,
) -> list[str]:
    """Return what the truth refutes in the lines, or else in the payloads."""
    return contradictions(plan, messages, uses) or refuted_rates(plan, transcript, messages, uses or {})


def _refuse_other_design(card: Card, brought: BroughtRecords | None) -> None:
    """Refuse coins other than those that the card's commitment was made for."""
    made = None if brought is None or brought.design is None else brought.design.commitment
    if card.design is not None and made is not None and made != card.design:
        said = "records.json has coins of another design than the card names"
        raise IntegrityError([f"{said}: {made[:12]}…, not {card.design[:12]}…"])


def _fill(
    run: RunDirectory, card: Card, secrets: Secrets, files: _Truth, uses: Mapping[int, Sequence[int]] | None
) -> None:
    """Write the vault, the spec and the card."""
    vault: Vault = run.vault
    vault.create(secrets)
    held = vault.directory / BROUGHT
    held.mkdir()
    for name, path in files.files.items():
        write_atomically(held / name, read_file(path, DATA_BYTES if name == ARRAYS else JSON_BYTES))
    vault.save("splits", run.plan.splits.to_dict())
    if uses is not None:
        vault.save(KEPT_USES, {str(seq): torch.tensor(list(n), dtype=torch.int64) for seq, n in uses.items()})
    for name, value in (
        ("spec.yaml", run.plan.spec.public(run.commitments["seed"])),
        (CARD, card.model_dump(mode="json")),
    ):
        write_atomically(run.path / name, yaml.safe_dump(value, sort_keys=False).encode("utf-8"))


def _seal(
    run: RunDirectory,
    plan: RecordedPlan,
    about: Record,
    messages: Sequence[Message],
    notes: Sequence[str],
    left: int,
) -> None:
    write_manifest(
        run.path,
        {
            "origin": plan.origin,
            "head": about.head,
            "messages": about.messages,
            "commitments": run.commitments,
            "spec_sha256": plan.spec.digest(),
            "versions": versions(),
            "recording": {
                "system": plan.card.name,
                "asserted_by": plan.card.asserted_by,
                "parties": list(plan.parties),
                "rounds": about.rounds,
                "closed": about.closed,
                "left_out": left,
                "notes": list(notes),
                "asserted": asserted(plan, messages),
                "ladder": [
                    {"bring": what, "buys": buys, "there": not plan.lacks.keys() & set(parts)}
                    for what, parts, buys in LADDER
                ],
                "design": plan.design,
            },
        },
    )

"""The commands for systems that fdaudit did not run: import a record, and write a card for one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fdaudit.cli.options import AsJson, TrustCode
from fdaudit.errors import IntegrityError, UsageError
from fdaudit.progress import show

__all__ = ["card", "import_", "new"]

card = typer.Typer(no_args_is_help=True, help="Cards of systems that fdaudit did not run.")

RecordPath = Annotated[Path, typer.Argument(metavar="RECORD", help="A directory that a recorder wrote.")]


def import_(
    record: RecordPath,
    out: Annotated[
        Path | None, typer.Option(metavar="RUN", help="The run directory; it must not exist yet.")
    ] = None,
    card_file: Annotated[
        Path | None,
        typer.Option("--card", metavar="FILE", help="The system's card; default: card.yaml in the record."),
    ] = None,
    truth: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="What the recorder wrote beside the record, and the records that you bring; may be given again.",
        ),
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings of the audit (YAML): adversaries, profile, gates, …"),
    ] = None,
    seed_from: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Reuse the seed and secret of that run's vault.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the record, its card and its truth; write nothing.")
    ] = False,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Import a record of another system as a run, which `attack`, `ledger`, `report` and `evidence` read."""
    from fdaudit.importing import records

    if check == (out is not None):
        problem = "is given beside --check" if check else "is missing"
        raise UsageError("--out", None if out is None else str(out), problem, "Give --out, or --check.")
    if out is None:
        findings, notes = records.check(record, card=card_file, truth=truth or [])
        if as_json:
            show(json.dumps({"record": str(record), "findings": findings, "notes": notes}))
        else:
            show(*([] if findings else ["nothing contradicts the record"]), *notes)
        if findings:
            raise IntegrityError(findings)
        return
    run = records.import_record(
        record, out, card=card_file, truth=truth or [], audit=audit, seed_from=seed_from
    )
    about = run.result.run
    said = () if about.recording is None else about.recording.notes
    lacks = run.plan.lacks
    if as_json:
        show(json.dumps({"run": str(out), "notes": said, "lacks": dict(lacks)}))
        return
    show(f"run       {out}", f"messages  {about.messages} in {about.rounds} rounds")
    show(*(f"note      {note}" for note in said), *(f"bring     {what}" for what in lacks.values()))
    show("", f"Next: fdaudit attack {out} --all, then fdaudit report {out}")


@card.command("new")
def new(
    record: RecordPath,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The card; default: card.yaml in the record.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a card to fill in, with what the record shows."""
    from fdaudit.importing.new_card import new_card

    path = new_card(record, record / "card.yaml" if out is None else out)
    show(json.dumps({"card": str(path)}) if as_json else f"{path}: fill in the lines marked FILL IN")

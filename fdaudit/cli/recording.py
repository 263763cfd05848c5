"""The commands for systems that fdaudit did not run: import a record, and write a card for one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fdaudit.cli.options import AsJson, TrustCode
from fdaudit.cli.verdicts import profile_words
from fdaudit.errors import IntegrityError, UsageError
from fdaudit.progress import answer, show

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
    profile: Annotated[
        str | None,
        typer.Option(help="How much attacks may spend: quick (default), standard or full; as in --audit."),
    ] = None,
    seed_from: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Reuse the seed and secret of that run's vault.")
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The clients' loss, if no card can state it: file.py:function or import:module:function, which takes"
            " network, images and labels. Naming it here trusts it.",
        ),
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
        findings, notes = records.check(record, card=card_file, truth=truth or [], loss=loss)
        if as_json:
            show(json.dumps({"record": str(record), "findings": findings, "notes": notes}))
        else:
            lines = list(notes) if findings else ["nothing contradicts the record", *notes]
            show(*lines)
        if findings:
            raise IntegrityError(findings)
        return
    settings = {} if audit is None else records.audit_settings(audit)
    if profile is not None:
        settings["profile"] = profile
    run = records.import_record(
        record, out, card=card_file, truth=truth or [], audit=settings, seed_from=seed_from, loss=loss
    )
    about = run.result.run
    comments = list[str]()
    if about.recording is not None:
        comments += [*about.recording.notes, *(one.words for one in about.recording.unused)]
    lacks = run.case.not_brought
    if as_json:
        show(json.dumps({"run": str(out), "notes": comments, "lacks": dict(lacks)}))
        return
    show(f"run       {out}", f"messages  {about.messages} in {about.rounds} rounds")
    show(f"profile   {profile_words(run.case.spec.profile, run.case.origin)}")
    show(*(f"note      {note}" for note in comments), *(f"bring     {what}" for what in lacks.values()))
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

    path = new_card(record, out or record / "card.yaml")
    answer({"card": str(path)}, f"{path}: fill in the lines marked FILL IN", as_json=as_json)

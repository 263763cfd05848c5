"""The commands for an external red team: export a view, and score the guesses about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fdaudit.cli.options import AsJson, RunPath, TrustCode
from fdaudit.errors import UsageError
from fdaudit.progress import show

__all__ = ["export_view", "score"]


def export_view(
    run: RunPath,
    adversary: Annotated[str, typer.Argument(help="server, client/3, eavesdropper, world, or a+b.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A directory that does not exist yet.")],
    challenges: Annotated[
        bool,
        typer.Option(
            "--challenges",
            help="Add the candidates for membership inference. From then on, guesses about classes and images of "
            "these victims are not scored.",
        ),
    ] = False,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Export an adversary's view and assumed knowledge, without the truth, for an external attack."""
    from fdaudit import api
    from fdaudit.audit import red_team
    from fdaudit.storage.files import load_json

    path = red_team.export_view(api.load(run), adversary, out, challenges=challenges)
    card = load_json(path / red_team.CARD)
    if as_json:
        show(json.dumps({"view": str(path), "card": card}))
        return
    show(
        f"view       {path}", f"sha256     {card['view_sha256']}", f"victims    {', '.join(card['victims'])}"
    )
    show(*(f"candidates {k}: {c['candidates']}" for k, c in card["challenges"].items()))


def score(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory; with --truth, the GUESSES.")],
    second: Annotated[
        Path | None,
        typer.Argument(
            metavar="GUESSES", help="JSON file; an exported view has its schema, guesses.schema.json."
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="RECORD", help="At a site: the record, if its lines are not beside the guesses."
        ),
    ] = None,
    card: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="At a site: the card, if it is not beside the lines."),
    ] = None,
    truth: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="At a site: its truth, instead of RUN; may be given again."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="At a site: the statement with the figures.")
    ] = None,
    sign: Annotated[
        Path | None, typer.Option(metavar="KEY", help="At a site: sign with this Ed25519 key (PEM).")
    ] = None,
    scored: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Take a site's statement about these guesses over.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="PUB", help="The statement must be signed by this key (PEM).")
    ] = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Score guesses: a red team's in a run, or where the truth may not leave, at the site that holds it."""
    if truth:
        _score_at_site(first, second, record, card, truth, out, sign, as_json)
        return
    for name, path in (("--card", card), ("--record", record), ("--out", out), ("--sign", sign)):
        if path:
            raise UsageError(name, str(path), "belongs to a site's score", "Add --truth, or leave it out.")
    if second is None:
        raise UsageError("GUESSES", None, "is missing", "Give RUN and GUESSES, or GUESSES and --truth.")
    from fdaudit import api
    from fdaudit.audit import red_team

    if key is not None and scored is None:
        raise UsageError("--key", str(key), "is given without --scored", "Leave it out, or add --scored.")
    if scored is not None:
        from fdaudit.importing.site_score import take_scores

        cell = take_scores(api.load(first), scored, second, key)
    else:
        cell = red_team.score(api.load(first), second)
    if as_json:
        show(json.dumps(cell.plain()))
        return
    show(cell.id)
    for figure in cell.figures:
        value, interval = figure.unavailable, ""
        if figure.value is not None:
            value = f"{figure.value:.4g} {figure.unit}".rstrip()
        if figure.low is not None:
            interval = f"  [{figure.low:.4g}, {figure.high:.4g}]"
        show(f"{figure.name:<28} {value}{interval}")


def _score_at_site(
    guesses: Path,
    second: Path | None,
    record: Path | None,
    card: Path | None,
    truth: list[Path],
    out: Path | None,
    sign: Path | None,
    as_json: bool,
) -> None:
    from fdaudit.importing.coarse_scores import MOST_ANSWERS
    from fdaudit.importing.site_score import score_at_site
    from fdaudit.storage.answered import LEDGER

    if second is not None:
        raise UsageError("GUESSES", str(second), "is given beside RUN and --truth", "Leave RUN out.")
    if out is None:
        raise UsageError("--out", None, "is missing", "Name the file of the statement.")
    answer = score_at_site(guesses, out, truth=truth, record=record, card=card, sign=sign)
    if as_json:
        counted = {"asked": answer.asked, "asked_elsewhere": answer.asked_elsewhere}
        show(json.dumps({"scored": str(out), "signed": sign is not None, **counted}))
        return
    signed = "unsigned" if sign is None else "signed"
    show(f"{out}: {signed}, no record in it")
    show(f"answer {answer.asked} of {MOST_ANSWERS} about these records")
    if answer.asked_elsewhere:
        show(
            f"{answer.asked_elsewhere} answers are not in the {LEDGER} beside the truth: was it removed, or copied?"
        )

"""The commands for an external red team: export a view, and score the guesses about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fdaudit.cli.directories import open_directory
from fdaudit.cli.options import AsJson, RunPath
from fdaudit.progress import show

__all__ = ["export_view", "score"]


def export_view(
    run: RunPath,
    adversary: Annotated[str, typer.Argument(help="server, client/3, eavesdropper, world, or a+b.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="A directory that does not exist yet, or a URL.")],
    challenges: Annotated[
        bool,
        typer.Option(
            "--challenges",
            help="Add the candidates for membership inference. From then on, guesses about classes and images of "
            "these victims are not scored.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Export an adversary's view and assumed knowledge, without the truth, for an external attack."""
    from fdaudit import api
    from fdaudit.audit import red_team
    from fdaudit.storage.files import load_json

    with (
        open_directory(run, "change" if challenges else "read", need="but_reports", quiet=as_json) as source,
        open_directory(out, "new", field="out", quiet=as_json) as place,
    ):
        path = red_team.export_view(api.load(source.path), adversary, place.path, challenges=challenges)
        if challenges:
            source.push()  # first the note of what is handed out, then the hand-out
        card, made = load_json(path / red_team.CARD), place.shown(path)
    if as_json:
        show(json.dumps({"view": made, "card": card}))
        return
    show(
        f"view       {made}", f"sha256     {card['view_sha256']}", f"victims    {', '.join(card['victims'])}"
    )
    show(*(f"candidates {k}: {c['candidates']}" for k, c in card["challenges"].items()))


def score(
    run: RunPath,
    guesses: Annotated[
        Path, typer.Argument(metavar="GUESSES", help="JSON file; its schema is docs/guesses.schema.json.")
    ],
    as_json: AsJson = False,
) -> None:
    """Score a red team's guesses from an exported view, and store the outcome in the run."""
    from fdaudit import api
    from fdaudit.audit import red_team

    with open_directory(run, "change", need="but_reports", quiet=as_json) as place:
        cell = red_team.score(api.load(place.path), guesses)
    if as_json:
        show(json.dumps(cell.to_json()))
        return
    show(cell.id)
    for figure in cell.figures:
        interval = "" if figure.low is None else f"  [{figure.low:.4g}, {figure.high:.4g}]"
        value = figure.unavailable if figure.value is None else f"{figure.value:.4g} {figure.unit}".rstrip()
        show(f"{figure.name:<28} {value}{interval}")

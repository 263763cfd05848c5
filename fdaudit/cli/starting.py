"""The commands with which a user begins: a spec to fill in, and the JSON schemas of files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fdaudit.cli.options import AsJson
from fdaudit.errors import UsageError, nearest
from fdaudit.progress import show

__all__ = ["init", "schema", "schemas"]


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The spec; it must not exist yet.")] = Path(
        "spec.yaml"
    ),
    protocol: Annotated[str, typer.Option(help="The protocol; see `fdaudit list`.")] = "fedavg",
    as_json: AsJson = False,
) -> None:
    """Write a spec with comments, which runs as it is: every field with its default and what it means."""
    from fdaudit import protocols
    from fdaudit.spec.draft import draft

    known = protocols.REGISTRY.names()
    if protocol not in known:
        raise UsageError("--protocol", protocol, "is not a known protocol", nearest(protocol, known))
    text = draft(protocol, protocols.REGISTRY.load(protocol).Config)
    try:
        with file.open("x", encoding="utf-8") as made:
            made.write(text)
    except FileExistsError:
        raise UsageError("FILE", str(file), "exists already", "Name another file.") from None
    show(json.dumps({"spec": str(file)}) if as_json else f"{file}: run it with `fdaudit run {file}`")


def schemas() -> Mapping[str, Callable[[], Mapping[str, Any]]]:
    """Return the JSON schemas of files by name, each made when it is called."""
    from fdaudit.audit.guesses import schema as guesses
    from fdaudit.importing.scored_statement import schema as scored
    from fdaudit.reports.document import json_schema
    from fdaudit.spec.card import Card
    from fdaudit.spec.schema import Spec
    from fdaudit.sweeps.grid import Grid

    return {
        "card": Card.model_json_schema,
        "grid": Grid.model_json_schema,
        "guesses": guesses,
        "report": json_schema,
        "scored": scored,
        "spec": Spec.model_json_schema,
    }


def schema(
    name: Annotated[str, typer.Argument(help="spec, grid, card, report, guesses or scored.")],
) -> None:
    """Print the JSON schema of a file: editors complete a spec, a grid or a card from it."""
    known = schemas()
    if name not in known:
        raise UsageError("NAME", name, "is no file with a schema", nearest(name, known))
    show(*json.dumps(known[name](), indent=1, sort_keys=True).split("\n"))

"""The commands with which a user begins: a spec to fill in, and the JSON schemas of files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fdaudit.cli.options import AsJson
from fdaudit.errors import UsageError, nearest
from fdaudit.progress import answer, show

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

    names = protocols.REGISTRY.names()
    if protocol not in names:
        raise UsageError("--protocol", protocol, "is not a known protocol", nearest(protocol, names))
    text = draft(protocol, protocols.REGISTRY.load(protocol).Config)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError("FILE", str(file), "exists already", "Name another file.") from None
    answer({"spec": str(file)}, f"{file}: run it with `fdaudit run {file}`", as_json=as_json)


def schemas() -> Mapping[str, Callable[[], Mapping[str, Any]]]:
    """Return the JSON schemas of files by name, each made when it is called."""
    from fdaudit.audit.guesses import schema as guesses
    from fdaudit.importing.scored_statement import schema as scored
    from fdaudit.reports.run.document import json_schema
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
    by_name = schemas()
    if name not in by_name:
        raise UsageError("NAME", name, "is no file with a schema", nearest(name, by_name))
    show(*json.dumps(by_name[name](), indent=1, sort_keys=True).split("\n"))

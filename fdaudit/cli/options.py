"""The terminal: output, refusals and progress of commands; options that several share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    pass

__all__ = ["Address", "AsJson", "ExecutorName", "RunPath", "RunWorkers"]

Address = Annotated[
    str | None,
    typer.Option(
        help="Of a Ray cluster: HOST:PORT or auto; default: one of this machine's own, for this command."
    ),
]
ExecutorName = Annotated[
    str, typer.Option(help="Where work is done: local (processes) or ray (a Ray cluster; extra `scale`).")
]
RunWorkers = Annotated[
    int | None,
    typer.Option(min=1, max=1024, help="Of Ray, at a time; default: one a processor of the cluster."),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or the URL of one.")]

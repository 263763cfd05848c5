"""The terminal: output, refusals and progress of commands; options that several share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fdaudit.spec.trust import trust_code

__all__ = ["Address", "AsJson", "ExecutorName", "RunPath", "RunWorkers", "TrustCode", "Verbose"]

Address = Annotated[
    str | None,
    typer.Option(
        help="Ray cluster: HOST:PORT or auto; default: a cluster on this machine, for this command only."
    ),
]
ExecutorName = Annotated[
    str,
    typer.Option(
        help="The machines that do the work: local (processes) or ray (a Ray cluster; extra `scale`)."
    ),
]
RunWorkers = Annotated[
    int | None,
    typer.Option(min=1, max=1024, help="Ray workers at a time; default: one per processor of the cluster."),
]

Verbose = Annotated[
    bool, typer.Option("--verbose", help="Also print a line for each attack by each adversary.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def _trusted(given: bool) -> bool:
    if given:
        trust_code()
    return given


TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        callback=_trusted,
        help="Run code that the files name by import:module:Class. Read it first: it may be a stranger's.",
    ),
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]

"""The commands of sweeps: run a grid of specs, and draw its results."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdaudit.cli.options import Address, AsJson, ExecutorName, TrustCode
from fdaudit.cluster.backends import refuse_misfit
from fdaudit.progress import progress, say, show, typed_again

if TYPE_CHECKING:
    from fdaudit.sweeps.index import Index
    from fdaudit.sweeps.sweep import Executor

__all__ = ["curve", "sweep"]


def sweep(
    grid: Annotated[Path, typer.Argument(metavar="GRID", help="A grid (YAML).")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The sweep's directory.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted sweep; try failed runs again.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Runs at a time; default: one per processor.")
    ] = None,
    executor: ExecutorName = "local",
    address: Address = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Run a grid of protocols x defences x ε x seeds, in parallel."""
    from fdaudit.sweeps import sweep as engine

    chosen = _executor(executor, workers, address)
    # Ray prints worker failures; they are not part of this command's output.
    with (
        redirect_stdout(sys.stderr),
        progress(quiet=as_json, again=typed_again("--resume")) as tick,
    ):
        index = engine.sweep(grid, out, resume=resume, executor=chosen, tick=tick)
    gone = [e for e in index.runs if not e.in_grid]
    if as_json:
        show(json.dumps({"sweep": str(out), **index.model_dump(mode="json", by_alias=True)}))
    else:
        show(*_table(index), "", f"sweep   {out}")
    if gone:
        say(f"{len(gone)} runs of an earlier grid are kept, and are not part of this one")
    _end(index)


def curve(
    path: Annotated[Path, typer.Argument(metavar="SWEEP", help="A sweep's directory.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the files.")],
    width: Annotated[
        str, typer.Option(help="Width of the figures: column (3.5 in) or text (7 in).")
    ] = "text",
    adversary: Annotated[
        str | None,
        typer.Option(help="The adversary whose ledger ε is on the axis; default: the grid's, else server."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw a sweep: utility against the ledger's ε, leakage and bytes, as SVG, PDF, PNG, CSV and one page."""
    from fdaudit.sweeps.curves import curve as draw

    made = [str(file) for file in draw(path, out, width=width, adversary=adversary)]
    show(json.dumps({"files": made, "page": made[-1]}) if as_json else made[-1])


def _executor(name: str, workers: int | None, address: str | None) -> Executor:
    """Return the executor of the runs, by its name."""
    from fdaudit.sweeps.sweep import local

    refuse_misfit(name, address)
    if name == "ray":
        from fdaudit.cluster.sweeps import ray_cluster

        return ray_cluster(workers, address)
    return local(workers)


def _table(index: Index) -> list[str]:
    """Return lines that count the runs of each protocol and defence by status."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for entry in index.runs:
        if entry.in_grid:
            found.setdefault((entry.protocol, entry.defence), Counter())[entry.status] += 1
    width = max(len(protocol) + len(defence) for protocol, defence in found) + 2
    return [
        f"{f'{protocol}, {defence}':<{width}}  {', '.join(f'{n} {s}' for s, n in sorted(counts.items()))}"
        for (protocol, defence), counts in sorted(found.items())
    ]


def _end(index: Index) -> None:
    """Print a line for each failed run, and then exit with 1."""
    failed = [
        e for e in index.runs if e.in_grid and (e.status == "failed" or (e.status == "done" and e.reason))
    ]
    for entry in failed:
        say(f"{entry.called} ({entry.key}): {entry.reason}")
    if failed:
        raise typer.Exit(1)

"""The commands of sweeps: run a grid of specs, and draw its results."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fdaudit.cli.options import Address, AsJson, ExecutorName, Latex, TrustCode, answer_with_latex
from fdaudit.cli.verdicts import over_seeds_lines
from fdaudit.cluster.backends import refuse_misfit
from fdaudit.errors import UsageError
from fdaudit.progress import progress, say, show, typed_again

if TYPE_CHECKING:
    from fdaudit.result import Result
    from fdaudit.sweeps.index import Index
    from fdaudit.sweeps.sweep import Executor

__all__ = ["curve", "repeat", "sweep"]


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
        show(*_table(index), *_choice(index), "", f"sweep   {out}")
    if gone:
        say(f"{len(gone)} runs of an earlier grid are kept, and are not part of this one")
    some_failed = False
    for entry in index.runs:
        if entry.in_grid and (entry.status == "failed" or (entry.status == "done" and entry.reason)):
            say(f"{entry.called} ({entry.key}): {entry.reason}")
            some_failed = True
    if some_failed:
        raise typer.Exit(1)


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
    latex: Latex = False,
    as_json: AsJson = False,
) -> None:
    """Draw a sweep: utility against the ledger's ε, leakage and bytes, as SVG, PDF, PNG, CSV and one page."""
    from fdaudit.reports.curves.curves import summary_latex
    from fdaudit.sweeps.curves import curve as draw
    from fdaudit.sweeps.curves import drawable

    files = list(map(str, draw(path, out, width=width, adversary=adversary)))
    tables = summary_latex(drawable(path, adversary)) if latex else ""
    answer_with_latex({"files": files, "page": files[-1]}, files[-1], tables, as_json=as_json)


def repeat(
    spec: Path | None,
    seeds: int,
    out: Path | None,
    resume: bool,
    with_report: bool,
    where: tuple[str, int | None, str | None],
    as_json: bool,
) -> dict[str, Result]:
    """Run a spec with several seeds, as a sweep of one point; draw it and print figures over the seeds.

    Args:
        spec: the spec's file.
        seeds: their number.
        out: the directory; by default beside the one of a single run.
        resume: continue, or add seeds.
        with_report: also draw it, into `report` below the directory.
        where: executor, workers and address, as options have them.
        as_json: print one JSON object.

    Returns:
        The results of the finished runs, by the seed in words.
    """
    from fdaudit.api import default_directory
    from fdaudit.spec.schema import load_spec
    from fdaudit.sweeps import sweep as engine
    from fdaudit.sweeps.curves import curve as draw
    from fdaudit.sweeps.curves import drawable
    from fdaudit.sweeps.seeds import seed_grid
    from fdaudit.sweeps.sweep import run_directory

    if spec is None:
        raise UsageError("SPEC", None, "is missing", "Give the spec; with --seeds, also where you resume.")
    settings = load_spec(spec)
    if out is None:
        usual = default_directory(settings)
        out = usual.with_name(f"{usual.name}-seeds")
    chosen = _executor(*where)
    with (
        redirect_stdout(sys.stderr),
        progress(quiet=as_json, again=typed_again("--resume")) as tick,
    ):
        index = engine.sweep(seed_grid(settings, seeds), out, resume=resume, executor=chosen, tick=tick)
    page: Path | None = None
    if with_report:
        *_, page = draw(out, out / "report")
    sweep_of_seeds = drawable(out)
    in_grid = [entry for entry in index.runs if entry.in_grid]
    if as_json:
        figures: dict[str, Any] = {}
        for point in sweep_of_seeds.points:
            for name, spread in point.spreads.items():
                figures[name] = asdict(spread)
        report = None if page is None else str(page)
        show(json.dumps({"sweep": str(out), "report": report, "seeds": seeds, "over_seeds": figures}))
    else:
        show(*over_seeds_lines(sweep_of_seeds.points), "")
        show(*(f"seed {entry.seed}  {run_directory(out, entry.key)}, {entry.status}" for entry in in_grid))
        if page is not None:
            show(f"report  {page}")
    for entry in in_grid:
        if entry.status == "failed":
            say(f"{entry.called} ({entry.key}): {entry.reason}")
    runs = [row.run for row in sweep_of_seeds.rows]
    return {f"seed {run.seed}": run.result for run in runs if run.result is not None}


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
    table: dict[tuple[str, str], Counter[str]] = {}
    for entry in index.runs:
        if entry.in_grid:
            table.setdefault((entry.protocol, entry.defence), Counter())[entry.status] += 1
    width = max(len(protocol) + len(defence) for protocol, defence in table) + 2
    lines = []
    for (protocol, defence), counts in sorted(table.items()):
        statuses = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
        lines.append(f"{f'{protocol}, {defence}':<{width}}  {statuses}")
    return lines


def _choice(index: Index) -> list[str]:
    """Return lines about the run that was chosen by its results, with the price of the choice."""
    choice = index.chosen
    if choice is None:
        return []
    run = next(e for e in index.runs if e.key == choice.key)
    lines = ["", f"chosen  {run.called} ({choice.key}): {choice.by} {choice.value:.3f}"]
    for entry in choice.ledger:
        if entry.epsilon is None:
            lines.append(f"        {entry.adversary}: no ε ({entry.cause})")
        else:
            all_runs = "the run" if choice.runs == 1 else f"all {choice.runs} runs together"
            lines.append(
                f"        {entry.adversary}: ε {entry.epsilon:.3g} of {all_runs} at δ {entry.delta:g}"
            )
    return lines

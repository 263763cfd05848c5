"""The command line. What a command needs is imported when it runs: `--help` stays quick."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from fdaudit.errors import FdauditError, IntegrityError, UsageError, nearest
from fdaudit.events import Relation, Unit

if TYPE_CHECKING:
    from fdaudit.audit import Tick
    from fdaudit.runs import Run

__all__ = ["main"]

app = typer.Typer(
    name="fdaudit",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Audit what federated learning and distillation leak: run a protocol with every message on record, attack "
    "the record with what each adversary saw, report what leaked next to what was learnt.",
    epilog="Exit codes: 0 done, 1 a gate of the spec or a cell failed, 2 bad input, 3 the record was changed.",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]


def main() -> None:
    """Entry point: every refusal is one line on standard error and its exit code."""
    # OpenMP reads this once, when torch is first imported. Its threads would otherwise spin while they wait for
    # each other, and next to another busy process an operation of microseconds takes milliseconds.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app(standalone_mode=True)
    except FdauditError as error:
        _say_error(error)
        sys.exit(error.exit_code)
    except OSError as error:
        # A full disk, a directory that may not be written: nothing that a traceback would explain better.
        _say(f"{error.strerror or type(error).__name__}: {error.filename or 'no file named'}")
        sys.exit(1)


def _say_error(error: FdauditError) -> None:
    lines = error.findings if isinstance(error, IntegrityError) else (str(error),)
    for line in lines:
        _say(line)


def _say(line: str) -> None:
    print(f"fdaudit: {_visible(line)}", file=sys.stderr)  # noqa: T201


def _visible(text: str) -> str:
    """Text with control characters and directional marks written out: it may come from a stranger's file."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _print(*lines: str) -> None:
    """Prints lines; a line break inside one is written out, so that no name can pass for a line of ours."""
    print("\n".join(_visible(line) for line in lines))  # noqa: T201


@contextmanager
def _progress(quiet: bool) -> Iterator[Tick]:
    """One bar for what is under way, on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as progress:
        bar = progress.add_task("preparing", total=None)

        def tick(what: str, done: int, total: int) -> None:
            progress.update(bar, description=what, completed=done, total=total)

        try:
            yield tick
        except KeyboardInterrupt:
            progress.stop()
            _say("interrupted; go on with --resume")
            raise typer.Exit(130) from None


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="Where the runs and their comparison go.")] = Path("audit"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it was interrupted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run five protocols on digits, which ship with scikit-learn; write their reports and a page to compare them."""
    from fdaudit import suite
    from fdaudit.storage import load_json

    with _progress(quiet=as_json) as tick:
        finished, page = suite.quickstart(out, resume=resume, tick=tick)
    if as_json:
        made = [
            {"run": str(r.directory), "report": str(r.directory / "report" / "index.html")} for r in finished
        ]
        comparison = load_json(page.with_name("comparison.json"))
        _print(json.dumps({"runs": made, "page": str(page), "comparison": comparison}))
    else:
        _print(*suite.table(page), "", *(f"run     {r.directory}" for r in finished), f"page    {page}")
    _end({r.directory.name: r.result for r in finished})


@app.command()
def run(
    spec: Annotated[Path | None, typer.Argument(help="A spec (YAML); left out with --resume.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; default: runs/NAME-DIGEST.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last whole round.")] = False,
    seed_from: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Use the seed and secret in that run's vault again.")
    ] = None,
    with_report: Annotated[bool, typer.Option("--report/--no-report", help="Write the report too.")] = True,
    as_json: AsJson = False,
) -> None:
    """Run a spec: federation, transcript, attacks, result, report."""
    if spec is None and not (resume and out is not None):
        raise UsageError("SPEC", None, "is missing", "Give a spec, or --resume with --out.")
    _run(spec, out, resume=resume, seed_from=seed_from, as_json=as_json, then_report=with_report)


def _run(
    spec: Path | None,
    out: Path | None,
    *,
    resume: bool,
    seed_from: Path | None,
    as_json: bool,
    then_report: bool,
) -> None:
    from fdaudit import runs

    with _progress(quiet=as_json) as tick:
        finished = runs.run(spec, out, resume=resume, seed_from=seed_from, tick=tick)
    path = runs.report(finished) if then_report else None
    _conclude(finished, path, as_json)


def _conclude(finished: Run, path: Path | None, as_json: bool) -> None:
    result = finished.result
    if as_json:
        value = {
            "run": str(finished.directory),
            "report": None if path is None else str(path),
            "result": result,
        }
        _print(json.dumps(value))
    else:
        _print(*_summary(result), "", f"run     {finished.directory}")
        if path is not None:
            _print(f"report  {path}")
    _end({"": result})


def _end(results: Mapping[str, dict[str, Any]]) -> None:
    """Says which cells and gates failed, each under its run's name where there are several, and exits with 1 then."""
    failed = []
    for name, result in results.items():
        head = f"{name}: " if name else ""
        failed += [
            f"{head}cell {c['id']} failed: {c['reason']}" for c in result["cells"] if c["status"] == "failed"
        ]
        failed += [
            f"{head}gate {g['name']} failed: {g['value']} > {g['threshold']}"
            for g in result["gates"]
            if not g["passed"]
        ]
    for line in failed:
        _say(line)
    if failed:
        raise typer.Exit(1)


def _summary(result: dict[str, Any]) -> list[str]:
    """Accuracy, or mAUC, by line; then one line a cell."""
    lines = []
    several = any(row["figure"]["name"] == "mean_auc" for row in result["utility"]["final"])
    best: dict[str, list[float]] = {}
    for row in result["utility"]["final"]:
        shared = any(r["line"] == row["line"] and r["party"] == "server" for r in result["utility"]["final"])
        if not shared or row["party"] == "server":
            best.setdefault(row["line"], []).append(row["figure"]["value"])
    for name, values in best.items():
        lines.append(f"{'mAUC' if several else 'accuracy':<9} {name:<14} {sum(values) / len(values):6.1%}")
    for cell in result["cells"]:
        if cell["status"] in ("not-requested",):
            continue
        figure = next(
            (f for f in cell["figures"] if f["name"] in ("psnr", "auc") and f["value"] is not None), None
        )
        shown = (
            cell["reason"] if figure is None else f"{figure['name']} {figure['value']:.3g} {figure['unit']}"
        )
        lines.append(f"{cell['status']:<15} {cell['id']:<36} {shown}")
    return lines


@app.command()
def attack(
    run: RunPath,
    name: Annotated[str | None, typer.Argument(metavar="ATTACK", help="See `fdaudit list`.")] = None,
    adversary: Annotated[
        str, typer.Option(help="Whose view: server, client/3, eavesdropper, world, a+b.")
    ] = "server",
    every: Annotated[bool, typer.Option("--all", help="All attacks against the spec's adversaries.")] = False,
    param: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the attack; VALUE is JSON."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Attack a finished run; the outcome is kept in it."""
    from fdaudit import runs

    if every == (name is not None):
        problem = "and --all exclude each other" if every else "is missing"
        raise UsageError("ATTACK", name, problem, "Name one attack, or give --all.")
    loaded, settings = runs.load(run), dict(_setting(p) for p in param or [])
    with _progress(quiet=as_json) as tick:
        if name is None:
            cells = runs.attack_all(loaded, tick)
        else:
            cells = [runs.attack(name, loaded, adversary, tick, **settings)]
    if as_json:
        _print(json.dumps([c.to_json() for c in cells]))
    else:
        _print(*_summary({"utility": {"final": []}, "cells": [c.to_json() for c in cells]}))
    if any(c.status == "failed" for c in cells):
        raise typer.Exit(1)


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError("--set", text, "is not KEY=VALUE", "Write, for example, --set restarts=4.")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


@app.command()
def report(
    run: RunPath,
    out: Annotated[
        Path | None, typer.Option(help="HTML file; default: report/index.html in the run.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the security report of a run: one HTML file, nothing else needed to read it."""
    from fdaudit import runs

    path = runs.report(runs.load(run), out)
    _print(json.dumps({"report": str(path)}) if as_json else str(path))


@app.command()
def compare(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Two run directories or more.")],
    out: Annotated[Path, typer.Option(help="Directory of the page.")] = Path("comparison"),
    as_json: AsJson = False,
) -> None:
    """Compare finished runs: one HTML file with what each learnt, sent, showed to whom, and what leaked."""
    from fdaudit import runs

    path = runs.compare([runs.load(p) for p in paths], out)
    _print(json.dumps({"page": str(path)}) if as_json else str(path))


@app.command()
def verify(run: RunPath, as_json: AsJson = False) -> None:
    """Check a run's record: every byte of the transcript against the manifest."""
    from fdaudit.manifest import verify as check

    findings = check(run)
    if as_json:
        _print(json.dumps({"run": str(run), "intact": not findings, "findings": findings}))
    elif not findings:
        _print("intact: every line chains, every payload matches its digest, nothing else lies there")
    if findings:
        raise typer.Exit(3) if as_json else IntegrityError(findings)


@app.command()
def ledger(
    run: RunPath,
    adversary: Annotated[
        list[str] | None,
        typer.Option(help="Whose view; repeat for several. Default: the spec's and every server."),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="δ; default: the spec's.")] = None,
    unit: Annotated[str | None, typer.Option(help="record or client; default: the spec's.")] = None,
    relation: Annotated[
        str | None, typer.Option(help="add-or-remove or replace-one; default: what the run's events suit.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what ε each adversary's view costs the worst client, or why none can be claimed."""
    from fdaudit.bookkeeping import table, views_of
    from fdaudit.runs import load

    opened = load(run)
    found = [
        opened.ledger(
            view,
            delta=delta,
            unit=_one_of("unit", unit, Unit),
            relation=_one_of("relation", relation, Relation),
        )
        for view in adversary or views_of(opened.plan)
    ]
    if as_json:
        _print(json.dumps([entry.to_json() for entry in found]))
        return
    _print(*table(found))
    for warning in dict.fromkeys(w for entry in found for w in entry.warnings):
        _say(f"warning: {warning}")


@app.command()
def calibrate(
    defence: Annotated[
        str, typer.Argument(help="dp-sgd, gnmax, sanitized-gradients, …; see --help of the options.")
    ],
    epsilon: Annotated[float, typer.Option(help="ε to keep to.")],
    delta: Annotated[float, typer.Option(help="δ.")] = 1e-5,
    releases: Annotated[int, typer.Option(help="Messages, or PATE queries, that are noised.")] = 1,
    steps: Annotated[int, typer.Option(help="Steps of DP-SGD, or of FedIOD's generator, in the run.")] = 1,
    samples: Annotated[int, typer.Option(help="Generated samples a step.")] = 1,
    sample_rate: Annotated[float, typer.Option(help="q of DP-SGD.")] = 1.0,
    sensitivity: Annotated[float, typer.Option(help="Of noise on a message: twice its clip.")] = 1.0,
    answered: Annotated[int | None, typer.Option(help="Confident-GNMax: the cap on answers.")] = None,
    threshold_noise: Annotated[float, typer.Option(help="Confident-GNMax: σ1 over σ.")] = 2.0,
    drawn_from: Annotated[int, typer.Option(help="Of how many clients one is drawn a step.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Find the least noise with which a defence, used so often, keeps to an ε."""
    from fdaudit.accounting.calibration import SHAPES, Shape, noise_for
    from fdaudit.config import validate

    if not 0 < delta < 1:
        raise UsageError("--delta", delta, "is no probability of failure", "Give a δ between 0 and 1.")
    given = {
        "releases": releases, "steps": steps, "samples": samples, "sample_rate": sample_rate,
        "sensitivity": sensitivity, "answered": answered, "threshold_noise": threshold_noise, "drawn_from": drawn_from,
    }  # fmt: skip
    noise, reached = noise_for(defence, validate(Shape, given), epsilon, delta)
    setting = SHAPES[defence][0]
    if as_json:
        found = {"defence": defence, "setting": setting, "value": noise, "epsilon": reached, "delta": delta}
        _print(json.dumps(found))
        return
    # Noise is rounded up, so of its inverse more digits are shown than could round it up in turn.
    name, value = (setting[2:], f"{1 / noise:.8g}") if setting.startswith("1/") else (setting, f"{noise:.5g}")
    _print(f"{defence}: {name} = {value}, ε = {reached:.4g} at δ = {delta:g}")


def _one_of(field: str, value: str | None, names: Any) -> Any:
    """A word of a closed list, or None."""
    known = get_args(names)
    if value is not None and value not in known:
        raise UsageError(field, value, "is not known", nearest(value, known))
    return value


@app.command(name="list")
def list_(as_json: AsJson = False) -> None:
    """List protocols, attacks and defences."""
    from fdaudit import attacks, defenses, protocols

    rooms = {"protocols": protocols.REGISTRY, "attacks": attacks.REGISTRY, "defences": defenses.REGISTRY}
    found = {room: {n: _first_line(r.describe(n)["doc"]) for n in r.names()} for room, r in rooms.items()}
    if as_json:
        _print(json.dumps(found))
        return
    for room, entries in found.items():
        _print(room)
        for name, line in entries.items():
            _print(f"  {name:<20} {line}")
    _print("", "`fdaudit explain NAME` says more.")


def _first_line(doc: str) -> str:
    return doc.strip().split("\n")[0]


@app.command()
def explain(
    name: Annotated[str, typer.Argument(help="See `fdaudit list`.")], as_json: AsJson = False
) -> None:
    """Explain a protocol, an attack or a defence: what it does, who sees what, what it assumes."""
    from fdaudit.explain import card, text

    found = card(name)
    _print(*([json.dumps(found)] if as_json else text(found).split("\n")))

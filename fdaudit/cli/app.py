"""The command line. A command imports its dependencies when it runs, so `--help` stays fast."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fdaudit.cli.design import design
from fdaudit.cli.evidence import evidence, verify
from fdaudit.cli.machine import doctor, weights
from fdaudit.cli.options import (
    Address,
    AsJson,
    Budget,
    ExecutorName,
    Latex,
    PurposeGroup,
    RunPath,
    RunWorkers,
    TrustCode,
    Verbose,
    answer_with_latex,
)
from fdaudit.cli.privacy import calibrate, ledger
from fdaudit.cli.recording import card, import_
from fdaudit.cli.red_team import export_view, score
from fdaudit.cli.starting import init, schema
from fdaudit.cli.sweeps import curve, repeat, sweep
from fdaudit.cli.verdicts import beside_twin, compared, outcome, profile_words, tried_remedies, verdicts
from fdaudit.cluster.backends import elsewhere
from fdaudit.errors import FdauditError, IntegrityError, UsageError, plugin_line
from fdaudit.names import visible
from fdaudit.parallel.memory import VARIABLE, set_ceiling
from fdaudit.progress import answer, printer, progress, say, show, terminable, typed_again
from fdaudit.storage.locks import together

if TYPE_CHECKING:
    from fdaudit.audit.run import Run
    from fdaudit.parallel.pool import Workers
    from fdaudit.progress import Tick
    from fdaudit.result import Cell, Gate, Result

__all__ = ["main"]

_UNMEASURED = {
    "epsilon": "the ledger leaves no ε to claim",
    "utility": "no model was evaluated on test records",
    "utility_drop": "no client was trained alone; add standalone to references",
}
"""Why a gate that no attack's figure decides has no value."""

app = typer.Typer(
    name="fdaudit",
    cls=PurposeGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Audit the leakage of federated learning and distillation: run a protocol and record every message, attack "
    "the view of each adversary, and report leakage with utility.",
    epilog="Exit codes: 0 done, 1 a gate of the spec or a cell failed, 2 bad input, 3 the record was changed.",
)


def _version(asked: bool) -> None:
    if asked:
        show(f"fdaudit {version('fdaudit')}")
        raise typer.Exit


@app.callback()
def _options(
    shown: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; every mistake is one line on standard error, and decides the exit code."""
    # OpenMP reads this once, when torch is first imported. Its threads would otherwise spin while they wait for
    # each other, and next to another busy process an operation of microseconds takes milliseconds.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        set_ceiling()
        app(standalone_mode=True)
    except FdauditError as error:
        _say_error(error)
        sys.exit(error.exit_code)
    except OSError as error:
        # A full disk or a read-only directory: a traceback would not explain it better.
        say(f"{error.strerror or type(error).__name__}: {error.filename or 'no file named'}")
        sys.exit(1)
    except Exception as error:
        of_memory = isinstance(error, RuntimeError) and "allocate memory" in str(error)
        if of_memory or isinstance(error, MemoryError):
            remedy = f"Ask for smaller networks, batches or images, or give more gigabytes by {VARIABLE}."
            say(f"there is not enough memory. {remedy}")
            sys.exit(1)
        place = plugin_line(error)
        if not place:
            raise
        say(f"a plug-in failed: {type(error).__name__}: {error}{place}")
        sys.exit(1)


def _say_error(error: FdauditError) -> None:
    """Print a line for each mistake or defect, and with `--json` one object on standard output as well."""
    errors = error.all if isinstance(error, UsageError) else (error,)
    lines = error.findings if isinstance(error, IntegrityError) else tuple(map(str, errors))
    if "--json" in sys.argv[1:]:
        entries = [{"error": line} for line in lines]
        for entry, each in zip(entries, errors, strict=False):
            for name in ("field", "problem", "remedy"):
                if hasattr(each, name):
                    entry[name] = visible(str(getattr(each, name)))
        show(json.dumps({"errors": entries, "exit_code": error.exit_code}))
    for line in lines:
        say(line)


@app.command()
def quickstart(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of the runs and their comparison.")
    ] = Path("audit"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    executor: ExecutorName = "local",
    workers: RunWorkers = None,
    address: Address = None,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Run five protocols on digits, which ship with scikit-learn; write their reports and a page to compare them."""
    from fdaudit.evaluation import attack_pool
    from fdaudit.quickstart.place import refuse_occupied

    if not resume:
        refuse_occupied(out, resume)
    if executor == "local":
        attack_pool.stand_by()  # they load their libraries while this process loads its own
    from fdaudit.quickstart import suite
    from fdaudit.storage.files import load_json

    print_lines = printer()

    def reported(run: Run, page: Path) -> None:
        if not as_json:
            print_lines(
                [f"== {run.directory.name}", *outcome(run.result, verbose=verbose), f"report  {page}", ""]
            )

    with _at_work(as_json, executor, workers, address, "--resume") as (tick, remote):
        finished, page = suite.quickstart(out, resume=resume, workers=remote, tick=tick, reported=reported)
    comparison = load_json(page.with_name("comparison.json"))
    if as_json:
        pages = {r.directory: r.page for r in finished}
        runs = [{"run": str(run), "report": str(report)} for run, report in pages.items()]
        show(json.dumps({"runs": runs, "page": str(page), "comparison": comparison}))
    else:
        show(*compared(comparison), "", f"page    {page}")
    _end({run.directory.name: run.result for run in finished})


@app.command()
def run(
    spec: Annotated[Path | None, typer.Argument(help="A spec (YAML); omit it with --resume.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run directory; default: runs/NAME-DIGEST.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue after the last complete round.")] = False,
    seed_from: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Reuse the seed and secret of that run's vault.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=2, max=1000, help="Run it with so many seeds, from the spec's on (else 1, 2, …)."),
    ] = None,
    with_report: Annotated[bool, typer.Option("--report/--no-report", help="Also write the report.")] = True,
    remedies: Annotated[
        bool,
        typer.Option(
            "--remedies",
            help="Then try the remedies of its findings for as long again: see `fdaudit remedy`.",
        ),
    ] = False,
    twin: Annotated[
        bool,
        typer.Option("--twin", help="Then run it again without its deviations: see `fdaudit twin`."),
    ] = False,
    budget: Budget = None,
    executor: ExecutorName = "local",
    workers: RunWorkers = None,
    address: Address = None,
    trust_code: TrustCode = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Run a spec: federation, transcript, attacks, result, report."""
    from fdaudit import api

    if seeds is not None:
        excluded = {"--seed-from": seed_from, "--budget": budget, "--remedies": remedies, "--twin": twin}
        for name, value in excluded.items():
            if value:
                raise UsageError(name, str(value), "does not go with --seeds", "Leave one of them out.")
        results = repeat(spec, seeds, out, resume, with_report, (executor, workers, address), as_json)
        _end(results)
        if len(results) < seeds:
            raise typer.Exit(1)
        return
    if spec is None and not (resume and out is not None):
        raise UsageError("SPEC", None, "is missing", "Give a spec, or --resume with --out.")
    if twin and spec is not None:
        from fdaudit.spec.schema import load_spec
        from fdaudit.twin import refuse_honest

        refuse_honest(load_spec(spec), str(spec))
    with together():  # no other process writes between the run and its report
        with _at_work(as_json, executor, workers, address, "--resume") as (tick, remote):
            finished = api.run(
                spec,
                out,
                resume=resume,
                seed_from=seed_from,
                workers=remote,
                tick=tick,
                budget=budget,
                provisional=with_report,
            )
        path = api.report(finished) if with_report else None
    if remedies:
        with _at_work(as_json, "local", None, None) as (tick, _):
            path = _remedied(finished, None, 8.0, budget, tick)
    if twin:
        with _at_work(as_json, "local", None, None) as (tick, _):
            path = _with_twin(finished, None, tick)
    _conclude(finished, path, as_json, verbose)


@contextmanager
def _at_work(
    as_json: bool, executor: str, workers: int | None, address: str | None, *resuming: str
) -> Iterator[tuple[Tick, Workers | None]]:
    """Yield the progress callback and the other machines that run attack cells, if any.

    `resuming` are the flags with which the same command goes on after an interrupt.
    """
    # Ray prints worker failures; they are not part of a command's output.
    with (
        redirect_stdout(sys.stderr),
        terminable(),
        progress(quiet=as_json, again=typed_again(*resuming)) as tick,
        elsewhere(executor, workers, address) as remote,
    ):
        yield tick, remote


def _conclude(finished: Run, path: Path | None, as_json: bool, verbose: bool) -> None:
    result = finished.result
    if as_json:
        report = None if path is None else str(path)
        show(json.dumps({"run": str(finished.directory), "report": report, "result": result.plain()}))
    else:
        show(
            *_summary(result),
            "",
            *outcome(result, verbose=verbose),
            *beside_twin(result),
            "",
            f"run     {finished.directory}",
        )
        if path is not None:
            show(f"report  {path}")
    _end({"": result})


def _end(results: Mapping[str, Result]) -> None:
    """Print all failures, under their run's name if there are several runs, and then exit with 1.

    Failures are cells, gates, and claims of ε that the attacks contradict.
    """
    failed = []
    for name, result in results.items():
        head = f"{name}: " if name else ""
        failed += [f"{head}cell {c.id} failed: {c.reason}" for c in result.failed_cells]
        failed += [f"{head}gate {g.name} failed: {_broken(g)}" for g in result.failed_gates]
        failed += [
            f"{head}the ε claimed for {c.adversary} is contradicted: {c.reason}" for c in result.contradicted
        ]
    for line in failed:
        say(line)
    if failed:
        raise typer.Exit(1)


def _broken(gate: Gate) -> str:
    """Return how a gate's figure misses its threshold, or why it shows nothing."""
    if gate.exceeded:
        return f"{gate.value} {'<' if gate.at_least else '>'} {gate.threshold}"
    if gate.inconclusive_for:
        return f"every cell that measured it is inconclusive for {', '.join(gate.inconclusive_for)}"
    if gate.left_out_for:
        return f"the budget left out attacks of {', '.join(gate.left_out_for)}"
    return _UNMEASURED.get(gate.name, "no cell could measure it")


def _summary(result: Result) -> list[str]:
    """Return lines with accuracy, mAUC or Dice by line of the utility table, and its warnings."""
    lines = []
    words = {"mean_auc": "mAUC", "dice": "Dice"}
    best: dict[str, list[float]] = {}
    final = result.utility.final
    measured = "accuracy"
    for row in final:
        if row.figure.name in words:
            measured = words[row.figure.name]
            break
    shared = {row.line for row in final if row.party == "server"}
    for row in final:
        if row.figure.value is not None and (row.line not in shared or row.party == "server"):
            best.setdefault(row.line, []).append(row.figure.value)
    for name, values in best.items():
        lines.append(f"{measured:<9} {name:<14} {sum(values) / len(values):6.1%}")
    lines += [f"warning   {warning}" for warning in result.utility.warnings]
    return lines


@app.command()
def attack(
    run: RunPath,
    name: Annotated[str | None, typer.Argument(metavar="ATTACK", help="See `fdaudit list`.")] = None,
    adversary: Annotated[
        str, typer.Option(help="The adversary: server, client/3, eavesdropper, world, a+b.")
    ] = "server",
    every: Annotated[bool, typer.Option("--all", help="Every attack against every adversary.")] = False,
    param: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the attack; VALUE is JSON."),
    ] = None,
    guesses: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the guesses there, for a site that scores them; no truth is needed."
        ),
    ] = None,
    budget: Budget = None,
    executor: ExecutorName = "local",
    workers: RunWorkers = None,
    address: Address = None,
    trust_code: TrustCode = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Attack a finished run and store the outcome in it, or write the guesses for a site that holds the truth."""
    from fdaudit import api, attacks
    from fdaudit.evaluation import attack_pool

    if guesses is not None and name is None:
        raise UsageError("ATTACK", None, "is missing beside --guesses", "Name one attack.")
    if every == (name is not None):
        problem = "and --all exclude each other" if every else "is missing"
        raise UsageError("ATTACK", name, problem, "Name one attack, or give --all.")
    if budget is not None and not every:
        raise UsageError("budget", budget, "is for several attacks", "Give --all, or leave it out.")
    settings = dict(map(_setting, param or []))
    if guesses is not None and name is not None:
        from fdaudit.importing.written_guesses import write_guesses

        path = write_guesses(api.load(run), name, adversary, guesses, **settings)
        answer({"guesses": str(path)}, f"{path}: send its folder to the site", as_json=as_json)
        return
    if name is not None and attacks.REGISTRY.owns(name) and (run / "manifest.json").is_file():
        attack_pool.fork_attacker()  # before this process reads anything of the run
    loaded = api.load(run)
    interrupted: typer.Exit | None = None
    cells: Sequence[Cell] = ()
    try:
        with _at_work(as_json, executor, workers, address) as (tick, remote):
            if name is None:
                cells = api.attack_all(loaded, tick, remote, budget)
            else:
                cells = [api.attack(name, loaded, adversary, tick, remote, **settings)]
    except typer.Exit as error:
        interrupted = error
        if name is not None or loaded.result.unfinished is None:
            raise
        cells = loaded.result.cells
    if as_json:
        show(json.dumps([cell.plain() for cell in cells]))
    else:
        result = loaded.result
        say(f"profile {profile_words(result.run.profile, result.run.origin)}")
        if name is None:
            show(*outcome(result, verbose=verbose))
        else:
            show(*verdicts(result, {cell.id for cell in cells}))
    if interrupted is not None:
        raise interrupted
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
def remedy(
    run: RunPath,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory of the remedied runs; default: RUN-remedies."),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="ε of remedies with noise, for what they protect.")] = 8.0,
    budget: Budget = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Try the remedies of a run's findings: run it again with each, attack it again, and report what changed."""
    from fdaudit import api

    loaded = api.load(run)
    with _at_work(as_json, "local", None, None) as (tick, _):
        path = _remedied(loaded, out, epsilon, budget, tick)
    if as_json:
        show(json.dumps([one.plain() for one in loaded.result.remedies]))
    else:
        show(*tried_remedies(loaded.result), "", f"report  {path}")


def _remedied(run: Run, out: Path | None, epsilon: float, budget: str | None, tick: Tick) -> Path:
    """Try a run's remedies and write its report again; return the report's page."""
    from fdaudit import api
    from fdaudit.remedies import try_remedies

    try_remedies(run, out or _beside(run, "remedies"), epsilon=epsilon, budget=budget, tick=tick)
    return api.report(run)


@app.command()
def twin(
    run: RunPath,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of the twin; default: RUN-twin.")
    ] = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Run a deviating run's spec without its deviations, on the same records, and report what they gained and cost.

    An interrupted twin goes on with the same command.
    """
    from fdaudit import api

    loaded = api.load(run)
    with _at_work(as_json, "local", None, None) as (tick, _):
        path = _with_twin(loaded, out, tick)
    if as_json:
        comparison = loaded.result.twin
        show(json.dumps(None if comparison is None else comparison.plain()))
    else:
        show(*beside_twin(loaded.result), "", f"report  {path}")


def _with_twin(run: Run, out: Path | None, tick: Tick) -> Path:
    """Make a run's honest twin and write the run's report again; return the report's page."""
    from fdaudit import api
    from fdaudit.twin import make_twin

    make_twin(run, out or _beside(run, "twin"), tick=tick)
    return api.report(run)


def _beside(run: Run, ending: str) -> Path:
    """Return the directory beside a run's with an ending to its name; the run may be given as `.`."""
    directory = run.directory
    if directory.name in ("", ".."):
        directory = directory.resolve()
    return directory.with_name(f"{directory.name}-{ending}")


@app.command()
def active(
    run: RunPath, budget: Budget = None, trust_code: TrustCode = False, as_json: AsJson = False
) -> None:
    """Measure on a stand-in what parties that depart from the protocol would learn of a recorded system."""
    from fdaudit import api
    from fdaudit.importing.untried import measure_untried
    from fdaudit.reports.untried import untried_lines

    loaded = api.load(run)
    with _at_work(as_json, "local", None, None) as (tick, _):
        measured = measure_untried(loaded, budget=budget, tick=tick)
        path = api.report(loaded)
    if as_json:
        show(json.dumps([one.plain() for one in measured]))
        return
    for one in measured:
        show(*untried_lines(one))
    show("", f"report  {path}")


@app.command()
def report(
    run: RunPath,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="HTML file; default: report/index.html or report/public.html in the run."
        ),
    ] = None,
    public: Annotated[
        bool,
        typer.Option("--public", help="Leave out data that identify records: images, shares, exact scores."),
    ] = False,
    dpia: Annotated[
        bool,
        typer.Option("--dpia", help="Write a draft of a data protection impact assessment (Art. 35 GDPR)."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the security report of a run: one self-contained HTML file, and the same content as JSON."""
    from fdaudit import api

    path = api.report(api.load(run), out, public=public, dpia=dpia)
    files = {"report": str(path)}
    if not dpia:
        files["json"] = str(path.with_suffix(".json"))
    answer(files, str(path), as_json=as_json)


@app.command()
def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Two or more run directories, or a folder of runs."),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the page.")] = Path("comparison"),
    latex: Latex = False,
    as_json: AsJson = False,
) -> None:
    """Compare finished runs in one HTML file and one CSV file: accuracy, traffic, visible messages, leakage of each.

    The runs of a sweep that differ only in their seeds are one row, with intervals over the seeds.
    """
    from fdaudit import api
    from fdaudit.reports import render_latex

    runs = _rows(paths)
    page = api.compare(runs, out)
    tables = render_latex(api.compared_runs(runs, out)) if latex else ""
    answer_with_latex({"page": str(page)}, str(page), tables, as_json=as_json)


def _rows(paths: Sequence[Path]) -> Sequence[Run] | Mapping[str, Run | Sequence[Run]]:
    """Return the runs of a comparison: by name if a path is a sweep, whose seeds are rows together."""
    from fdaudit import api
    from fdaudit.sweeps.index import INDEX
    from fdaudit.sweeps.seeds import over_seeds

    if not any((path / INDEX).is_file() for path in paths):
        return list(map(api.load, chain.from_iterable(map(_runs_below, paths))))
    rows: dict[str, list[Run]] = {}
    for path in paths:
        if (path / INDEX).is_file():
            groups = over_seeds(path)
        else:
            groups = {run.resolve().name: [run] for run in _runs_below(path)}
        for name, directories in groups.items():
            unique = name if name not in rows else f"{name} in {path.as_posix()}"
            rows.setdefault(unique, []).extend(map(api.load, directories))
    return rows


def _runs_below(path: Path) -> list[Path]:
    """Return the run directories in a folder of runs, as the quickstart or a sweep writes it; else the path itself."""
    from fdaudit.transcript.manifest import MANIFEST

    if not path.is_dir() or (path / MANIFEST).is_file():
        return [path]
    manifests = (*path.glob(f"*/{MANIFEST}"), *path.glob(f"runs/*/{MANIFEST}"))
    return sorted(manifest.parent for manifest in manifests) or [path]


app.command()(init)
app.command()(verify)
app.command()(evidence)
app.command()(ledger)
app.command()(calibrate)
app.command()(design)
app.command(name="export-view")(export_view)
app.command()(score)
app.command(name="import")(import_)
app.add_typer(card, name="card")
app.command()(sweep)
app.command()(curve)
app.command()(schema)
app.command()(weights)
app.command()(doctor)


@app.command(name="list")
def list_(as_json: AsJson = False) -> None:
    """List protocols, attacks, defences and deviations."""
    from fdaudit import attacks, defenses, deviations, protocols

    rooms = {"protocols": protocols.REGISTRY, "attacks": attacks.REGISTRY, "defences": defenses.REGISTRY}
    rooms["deviations"] = deviations.REGISTRY
    listing: dict[str, dict[str, str]] = {}
    for room, registry in rooms.items():
        listing[room] = {}
        for name in registry.names():
            listing[room][name] = registry.doc(name).strip().split("\n")[0]
    if as_json:
        show(json.dumps(listing))
        return
    for room, entries in listing.items():
        show(room)
        for name, line in entries.items():
            show(f"  {name:<20} {line}")
    show("", "`fdaudit explain NAME` says more.")


@app.command()
def explain(
    name: Annotated[str, typer.Argument(help="See `fdaudit list`.")], as_json: AsJson = False
) -> None:
    """Explain a protocol, an attack, a defence or a deviation: what it does, who sees what, what it assumes."""
    from fdaudit.cli.explain import explained, text

    explanation = explained(name)
    answer(explanation.plain(), *text(explanation).split("\n"), as_json=as_json)

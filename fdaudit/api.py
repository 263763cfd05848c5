"""A run as an object: the Python counterpart of the commands.

The module loads no PyTorch. A function imports what takes long when it is called.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fdaudit.adversary.view import EAVESDROPPER
from fdaudit.audit.published import publish_once
from fdaudit.audit.run import Run
from fdaudit.errors import RunError, UsageError
from fdaudit.evaluation.budget import seconds_of
from fdaudit.evaluation.clock import kept_budget
from fdaudit.evaluation.unfinished import AttackStage, unfinished
from fdaudit.planning.attacks import plan_attack
from fdaudit.progress import Tick, no_progress
from fdaudit.result import Cell
from fdaudit.spec.schema import Spec, load_spec
from fdaudit.spec.trust import name_code
from fdaudit.storage.locks import writing
from fdaudit.storage.tree import refuse_links
from fdaudit.storage.vault import Vault
from fdaudit.transcript.manifest import refuse_changed, refuse_no_run
from fdaudit.transcript.messages import role

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.parallel.pool import Workers
    from fdaudit.reports.comparison.comparison import ComparedRun
    from fdaudit.scoring.run_directory import RunDirectory

__all__ = [
    "attack",
    "attack_all",
    "compare",
    "compared_runs",
    "default_directory",
    "every_adversary",
    "load",
    "report",
    "run",
]


def run(
    spec: Spec | Path | str | dict[str, Any] | None,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    seed_from: Path | str | None = None,
    workers: Workers | None = None,
    tick: Tick = no_progress,
    budget: str | None = None,
    provisional: bool = False,
) -> Run:
    """Run a spec: federation, transcript, attacks, result.

    Args:
        spec: a `Spec`, a mapping, or the path of a YAML file; None with `resume` takes the run's own.
        out: the run directory; by default `runs/NAME-DIGEST` from the spec's name and content.
        resume: continue after the last complete round.
        seed_from: a run directory whose seed and secret are used again.
        workers: other machines that run attack cells; see `fdaudit.cluster.backends`. None: this one alone.
        tick: called with the current activity, the steps done, and the total.
        budget: how long it may take, such as `90s`, `10m` or `2h`; attacks are reduced or left out to fit.
        provisional: run the quick attacks first, and then write a report that is marked as provisional.

    Raises:
        UsageError: the spec or the budget is wrong, or the directory occupied; nothing was written.
    """
    from fdaudit.audit.pipeline import perform

    seconds = None if budget is None else seconds_of(budget)
    if out is None:
        if spec is None:
            raise RunError("out", None, "is missing", "Give the run directory to resume.")
        out = default_directory(load_spec(spec))
    source = Path(seed_from) if seed_from is not None else None
    directory = Path(out)
    perform(
        spec,
        directory,
        resume=resume,
        seed_from=source,
        workers=workers,
        tick=tick,
        budget=seconds,
        provisional=(lambda line: tick(line, 0, 0)) if provisional else None,
    )
    return Run(directory)


def load(path: Path | str) -> Run:
    """Open a finished run.

    Raises:
        RunError: the directory holds no finished run.
        IntegrityError: it holds a link, or something else that is no file of its own.
    """
    directory = Path(path)
    if not (directory / "manifest.json").is_file():
        refuse_no_run(directory)
        problem = "is not a finished run" if (directory / "vault").is_dir() else "is not a run directory"
        raise RunError("run", str(path), problem, "Finish it with `fdaudit run --resume`, or give another.")
    refuse_links(directory)
    run = Run(directory)
    _count_done(run)
    return run


def _count_done(run: Run) -> None:
    """Conclude a run again if its attack stage was killed, so that its result has all cells that are done."""
    if not (run.directory / "vault").is_dir():
        return
    found = unfinished(Vault(run.directory / "vault"))
    if found is None or found == run.result.unfinished:
        return
    from fdaudit.audit.summary import conclude

    with (
        suppress(RunError, OSError),
        writing(run.directory),
    ):  # another process may be at work, or it is read-only
        refuse_changed(run.directory)
        conclude(run.opened)


def attack(
    name: str,
    run: Run,
    adversary: str = "server",
    tick: Tick = no_progress,
    workers: Workers | None = None,
    **params: Any,
) -> Cell:
    """Run one attack against one adversary's view of a finished run, and keep the outcome in the run.

    Args:
        name: the attack's public name, or `import:module:Class`.
        run: the run.
        adversary: the adversary whose view is attacked.
        tick: called with progress.
        workers: other machines; a single cell runs on this one all the same.
        **params: settings of the attack, which override those of the run's profile.

    Raises:
        SpecError: the attack or a setting is unknown.
    """
    from fdaudit.audit.summary import conclude
    from fdaudit.evaluation.runner import attack_cells

    with writing(run.directory):
        if run.is_open:  # opening checks the record
            refuse_changed(run.directory)
        name_code(name)
        wanted = plan_attack(name, params, run.case.spec, "attack", (adversary,))
        run.view(adversary)  # an unknown party is refused before anything is written
        (cell,) = attack_cells(
            _with(run, (wanted,)),
            only=lambda a, b: (a, b) == (adversary, wanted.name),
            again=True,
            workers=workers,
            tick=tick,
        )
        run.concluded(conclude(run.opened))
    return cell


def _with(run: Run, wanted: tuple[AttackPlan, ...]) -> RunDirectory:
    """Return an opened run with these attacks, and their adversaries, alone."""
    adversaries = dict[str, None]()
    for plan in wanted:
        adversaries.update(dict.fromkeys(plan.adversaries))
    spec = run.case.spec.model_copy(update={"adversaries": tuple(adversaries)})
    return replace(run.opened, case=replace(run.case, spec=spec, attacks=wanted))


def attack_all(
    run: Run, tick: Tick = no_progress, workers: Workers | None = None, budget: str | None = None
) -> list[Cell]:
    """Run every attack against every adversary again, including those that the spec does not ask for.

    A call that is interrupted leaves a result that says how many cells are done. The next call goes on after them.

    Adversaries are the spec's and those of every federation: see `every_adversary`. An attack that the spec asks for
    keeps the spec's settings; other attacks use those of the run's profile. With a `budget`, such as `90s`, `10m` or
    `2h`, settings that the spec does not name are reduced, or slow attacks left out, so that the call takes no longer.

    Raises:
        UsageError: the budget is no duration.
    """
    from fdaudit.audit.summary import conclude
    from fdaudit.evaluation.runner import attack_cells, budgeted

    seconds = None if budget is None else seconds_of(budget)
    case, adversaries = run.case, every_adversary(run)
    wanted = []
    for plan in case.attacks:
        if plan.params is not None:
            wanted.append(replace(plan, adversaries=adversaries))
        else:
            wanted.append(plan_attack(plan.name, {}, case.spec, "attack", adversaries))
    with writing(run.directory):
        refuse_changed(run.directory)
        vault = run.opened.vault
        kept = kept_budget(vault)
        same = kept is not None and seconds in (None, kept.budget.seconds)
        allotted, clock = budgeted(
            _with(run, tuple(wanted)),
            seconds,
            go_on=same and unfinished(vault) is not None,
            workers=workers,
        )
        stage = AttackStage.begin(vault, allotted.case.attacks)
        try:
            attack_cells(
                allotted,
                only=lambda adversary, attack: f"{adversary}/{attack}" not in stage.done,
                again=True,
                workers=workers,
                tick=tick,
                stored=lambda cell: stage.note(cell.id),
                clock=clock,
            )
            stage.end()
        finally:
            result = conclude(run.opened)
    by_id = {cell.id: cell for cell in result.cells}
    return [by_id[cell] for cell in stage.cells]


def every_adversary(run: Run) -> tuple[str, ...]:
    """Return the spec's adversaries, all non-client parties, the first client, an eavesdropper, and server with client.

    A protocol's aggregator, if any, is among the parties. One client stands for all clients. The coalition of the
    server with that client stands for all such coalitions.
    """
    case = run.case
    asked = [a for p in case.attacks for a in p.adversaries]
    others = [p for p in case.parties if role(p) != "client"]
    coalition = ["server+client/0"] if "server" in others else []
    return tuple(
        dict.fromkeys([*case.spec.adversaries, *asked, *others, "client/0", EAVESDROPPER, *coalition])
    )


def report(run: Run, path: Path | str | None = None, *, public: bool = False, dpia: bool = False) -> Path:
    """Write the security report of a run as one HTML file, and the same content as JSON in the same folder.

    Args:
        run: the run.
        path: the HTML file; by default `report/index.html` in the run, `report/public.html`, or `report/dpia.html`.
        public: leave out content that itself leaks: images, class counts, exact scores, and figures of single victims.
        dpia: write a data protection impact assessment instead, made from the public report; there is no JSON of it.

    Returns:
        The HTML file; the JSON has its name and the ending `.json`.

    Raises:
        RunError: the file cannot be written, or an earlier public page of this run had other outcomes.
    """
    from fdaudit.reports.run.security import public_outcomes, write_dpia, write_report
    from fdaudit.reports.run.sign_off import Provenance

    usual = run.page
    if dpia or public:
        usual = run.page.with_name("dpia.html" if dpia else "public.html")
    target = usual if path is None else Path(path)
    if target.is_dir() or target.suffix == ".json":
        problem = "is a directory" if target.is_dir() else "is the name of the JSON beside the page"
        raise RunError("out", str(target), problem, "Give the path of an HTML file.")
    inside = target.resolve().is_relative_to(run.directory.resolve())
    with writing(run.directory) if inside or public or dpia else nullcontext():
        refuse_changed(run.directory)
        result, timings = run.result, run.timings
        _make(target.parent, target)
        if public or dpia:
            publish_once(run.directory, public_outcomes(result))
        provenance = Provenance(ended=run.ended)
        if dpia:
            write_dpia(result, target, provenance)
            return target
        write_report(result, run.directory, target, timings, public=public, provenance=provenance)
    return target


def compare(runs: Sequence[Run] | Mapping[str, Run | Sequence[Run]], out: Path | str) -> Path:
    """Write `index.html`, `comparison.json` and `comparison.csv` to a directory: finished runs side by side.

    Args:
        runs: two or more, in the order of their rows; each is named after its directory. Or a mapping from names to
            runs: several runs under one name differ only in their seeds, and are a row with intervals over seeds.
        out: the directory; it links to the runs' existing reports.

    Raises:
        UsageError: a run has no result, is given twice, there is only one, or runs under one name differ in more than
            their seeds; nothing was written.
    """
    from fdaudit.reports import write_comparison

    directory = Path(out)
    entries = compared_runs(runs, directory)
    _make(directory, directory)
    return write_comparison(entries, directory)


def compared_runs(
    runs: Sequence[Run] | Mapping[str, Run | Sequence[Run]], directory: Path
) -> list[ComparedRun]:
    """Return runs with their results, as a comparison in a directory takes them.

    Raises:
        UsageError: as `compare` says.
    """
    groups = _named(runs)
    given = [run for group in groups.values() for run in group]
    if len(given) < 2:
        found = str(given[0].directory) if given else None
        raise RunError("run", found, "stands alone", "Give two runs or more to compare.")
    places = [r.directory.resolve() for r in given]
    for place, run in zip(places, given, strict=True):
        if places.count(place) > 1:
            raise RunError("run", str(run.directory), "is given twice", "Give each run once.")
    for each in given:
        refuse_changed(each.directory, results=True)
    return [_entry(group, name, directory) for name, group in groups.items()]


def _named(runs: Sequence[Run] | Mapping[str, Run | Sequence[Run]]) -> dict[str, list[Run]]:
    """Return the runs of each row by its name."""
    by_name: dict[str, list[Run]] = {}
    if isinstance(runs, Mapping):
        for name, group in runs.items():
            by_name[name] = [group] if isinstance(group, Run) else list(group)
        return by_name
    short = [r.directory.resolve().name for r in runs]
    names = short if len(set(short)) == len(short) else [r.directory.as_posix() for r in runs]
    for name, run in zip(names, runs, strict=True):
        if names.count(name) > 1:
            raise RunError("run", name, "is given twice", "Give each run once.")
        by_name[name] = [run]
    return by_name


def _entry(group: Sequence[Run], name: str, directory: Path) -> ComparedRun:
    from fdaudit.reports.comparison.comparison import ComparedRun

    if not group:
        raise RunError("run", name, "has no runs", "Give one run or more under each name.")
    try:
        results = [run.result for run in group]
    except UsageError as error:
        raise UsageError(f"{name}: {error.field}", error.value, error.problem, error.remedy) from None
    settings = list[dict[str, Any]]()
    for result in results:
        spec = dict(result.run.spec)
        for free in ("seed", "name", "limits"):
            spec.pop(free, None)
        settings.append(spec)
    for other in settings[1:]:
        differing = list[str]()
        for key in sorted({*other, *settings[0]}):
            if other.get(key) != settings[0].get(key):
                differing.append(key)
        if differing:
            problem = f"has runs that differ in {', '.join(differing)}"
            raise RunError("run", name, problem, "Give runs under one name that differ in their seeds alone.")
    if len({r.run.head for r in results}) < len(results):
        raise RunError("run", name, "has two copies of one run", "Give each seed once.")
    page, link = group[0].page, None
    if page.is_file() and len(group) == 1:
        relative = Path(os.path.relpath(page.resolve(), directory.resolve()))
        link = quote(relative.as_posix())
    seconds = sum(sum(run.timings.values()) for run in group) / len(group)
    return ComparedRun(
        name=name, result=results[0], report=link, seconds=seconds or None, repeats=tuple(results[1:])
    )


def _make(folder: Path, target: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise RunError("out", str(target), problem, "Give another path.") from None


def default_directory(spec: Spec) -> Path:
    """Return where a run goes if no directory is given, from its spec's name and content."""
    slug = re.sub(r"[^a-z0-9]+", "-", spec.name.lower()).strip("-")[:40] or "run"
    return Path("runs") / f"{slug}-{spec.digest()[:8]}"

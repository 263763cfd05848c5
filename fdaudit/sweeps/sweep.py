"""A sweep: carry out the runs of a grid side by side, each in a process.

Guarantees:
  * a run's result equals, bit for bit, that of `fdaudit run` on its spec with the sweep's seed and secret;
  * a killed sweep can resume: finished runs are not run again, an unfinished one continues from its last complete
    round;
  * a failed run is recorded with its error, and other runs continue;
  * no process outlives its parent.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fdaudit.errors import IntegrityError, RunError, SpecError
from fdaudit.evaluation.controls.kept import take_controls
from fdaudit.parallel.pool import Answer, Pool
from fdaudit.progress import Tick, no_progress
from fdaudit.result import read
from fdaudit.spec.schema import Spec
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import load_json, save_json
from fdaudit.storage.locks import make_private, writing
from fdaudit.storage.timings import read_timings
from fdaudit.storage.tree import refuse_links
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.sweeps.chosen import choose
from fdaudit.sweeps.grid import Grid, GridRun, expand, load_grid
from fdaudit.sweeps.index import ACCOUNTS, INDEX, SCHEMA, Choice, Index, SweepEntry, read_index, write_index
from fdaudit.sweeps.levels import UNDEFENDED
from fdaudit.transcript.manifest import MANIFEST

__all__ = ["KEPT", "Executor", "local", "run_directory", "shared_directory", "sweep"]

KEPT = ("spec.yaml", MANIFEST, "result.json", "utility.csv", "timings.json", ACCOUNTS, "run.json")
"""Files of a finished run that stay with `keep: results`."""
_OWN = ("locks", "runs", "scratch", "shared")
"""Folders of a sweep."""
_WORKER = "fdaudit.sweeps.worker"
_DONE = "run.json"
_ALIKE = (
    "seed",
    "dataset",
    "public_dataset",
    "partition",
    "splits",
    "canaries",
    "clients",
    "model",
    "client_models",
    "profile",
    "queries",
    "device",
    "threads",
    "strategy",
    "memory_format",
    "precision",
    "compile",
)
"""Fields of a spec that are equal in runs that share a secret and outcomes of controls."""

Executor = Callable[[Sequence[Mapping[str, Any]]], Generator[Answer, None, None]]
"""Carries out runs: maps tasks to lines about them, as `Pool.work` does."""


def local(workers: int | None = None) -> Executor:
    """Return an executor on this machine: one process with one thread for each processor by default."""
    size = os.cpu_count() or 1
    if workers:
        size = workers
    elif hasattr(os, "sched_getaffinity"):
        size = len(os.sched_getaffinity(0))

    def work(pieces: Sequence[Mapping[str, Any]]) -> Generator[Answer, None, None]:
        pool = Pool(_WORKER, size)
        try:
            yield from pool.work(pieces)
        finally:
            pool.close()

    return work


def run_directory(out: Path, key: str) -> Path:
    """Return the directory of a run."""
    return out / "runs" / key


def shared_directory(out: Path, spec: Spec) -> Path:
    """Return the directory of the seed, secret and control outcomes that runs on the same records share."""
    fields = spec.model_dump(mode="json", include=set(_ALIKE))
    return out / "shared" / hashlib.sha256(canonical(fields)).hexdigest()[:16]


def sweep(
    source: Path | str | Mapping[str, Any],
    out: Path | str,
    *,
    resume: bool = False,
    executor: Executor | None = None,
    tick: Tick = no_progress,
) -> Index:
    """Carry out every run of a grid that has no result yet.

    Args:
        source: the grid: a YAML file, or a mapping.
        out: the sweep's directory; must be empty or absent, unless `resume`.
        resume: continue an interrupted sweep. Failed runs are tried again. The grid may have changed: new runs are
            added, runs that it no longer has are kept and marked.
        executor: where runs are carried out; default: `local()`.
        tick: called with the current activity, the number of finished runs, and their total.

    Returns:
        The index, as written to `sweep.json`.

    Raises:
        UsageError: the grid is wrong, or the directory is occupied; nothing was written.
    """
    grid, directory = load_grid(source), Path(out)
    runs = expand(grid)
    _refuse_occupied(directory, resume)
    refuse_links(directory, _OWN)
    before = read_index(directory) if (directory / INDEX).is_file() else None
    runs = _known_not_to_apply(runs, before)
    if before is None or before.grid != grid.model_dump(mode="json"):
        runs = _checked(runs, tick)
    make_private(directory)
    with writing(directory):
        shutil.rmtree(directory / "scratch", ignore_errors=True)
        before = read_index(directory) if (directory / INDEX).is_file() else None
        book = _Book(directory, grid, runs, before)
        book.write()
        waiting: list[GridRun] = []
        for run in runs:
            if book.entries[run.key].status in ("pending", "failed"):
                waiting.append(run)
        due = _staggered(waiting)
        with closing((executor or local())([_piece(directory, c) for c in due])) as answers:
            _listen(book, due, answers, tick)
        book.choose()
        shutil.rmtree(directory / "scratch", ignore_errors=True)
        return book.index


def _point(run: GridRun) -> str:
    """Return the settings that runs share when they differ only in their seeds."""
    return f"{run.protocol}, {run.defence}, {run.epsilon}"


def _staggered(runs: Iterable[GridRun]) -> list[GridRun]:
    """Return the runs point by point; each point begins with a later seed than the one before.

    Controls depend on the seed. Two workers that begin with two points then begin with different controls.
    """
    points: dict[str, list[GridRun]] = {}
    for run in runs:
        points.setdefault(_point(run), []).append(run)
    turned = []
    for number, point in enumerate(points.values()):
        first = number % len(point)
        turned += point[first:] + point[:first]
    return turned


def _listen(book: _Book, due: Sequence[GridRun], answers: Generator[Answer, None, None], tick: Tick) -> None:
    """Record each run's outcome as it arrives."""
    finished = 0
    for number, line in answers:
        run = due[number]
        if line is not None and "tick" in line:
            what, step, of = line["tick"]
            if of:
                tick(f"{run.called}: {what} {step}/{of}", finished, len(due))
            continue
        if line is None:
            line = {"status": "failed", "reason": "the process that ran it ended before it was done"}
        book.note(run, str(line["status"]), str(line["reason"]))
        finished += 1
        tick(run.called, finished, len(due))


# -- the directory ---------------------------------------------------------------------------------------------


def _refuse_occupied(out: Path, resume: bool) -> None:
    if not out.is_dir():
        if out.exists() or out.is_symlink():
            raise RunError("out", str(out), "is not a directory", "Choose another directory.")
        return
    names = {p.name for p in out.iterdir()}
    if not names:
        return
    if not resume:
        raise RunError("out", str(out), "exists already", "Choose another directory, or add --resume.")
    if INDEX not in names and not names <= {f".{INDEX}.tmp"}:
        raise RunError("out", str(out), "holds no sweep", "Choose another directory.")


def _piece(out: Path, run: GridRun) -> dict[str, Any]:
    """Return a run as a task for a process. Seed and secret are drawn when the first run needs them."""
    if run.spec is None:
        raise ValueError("a run without a spec is not carried out")
    shared = shared_directory(out, run.spec)
    for folder in (out / "runs", out / "locks", out / "scratch", out / "shared", shared):
        make_private(folder)
    if not (shared / "vault" / "secrets.json").is_file():
        Vault(shared / "vault").create(Secrets.draw(run.seed))
    return {
        "run": str(run_directory(out, run.key).resolve()),
        "lock": str((out / "locks" / run.key).resolve()),
        "scratch": str((out / "scratch").resolve()),
        "shared": str(shared.resolve()),
        "records": shared.name,
        "spec": run.spec.model_dump(mode="json"),
        "defended": run.defence != UNDEFENDED,
        "like": _point(run),
    }


# -- what does not apply ---------------------------------------------------------------------------------------


def _known_not_to_apply(runs: Sequence[GridRun], before: Index | None) -> tuple[GridRun, ...]:
    """Return the runs; those that the index already marks as impossible have no spec."""
    if before is None:
        return tuple(runs)
    reasons: dict[str, str] = {}
    for entry in before.runs:
        if entry.status == "not-applicable":
            reasons[entry.key] = entry.reason
    marked = []
    for run in runs:
        bare = replace(run, spec=None)
        if run.spec is not None and bare.key in reasons:
            run = replace(bare, reason=reasons[bare.key])
        marked.append(run)
    return tuple(marked)


def _checked(runs: Sequence[GridRun], tick: Tick) -> tuple[GridRun, ...]:
    """Return the runs; where a defence does not fit a protocol they have no spec.

    Only runs with the first seed and the largest ε are planned for this check.

    Raises:
        UsageError: a run without a defence is impossible, or a defence fits no protocol, or does not fit one that the
            grid names for it.
    """
    planned: dict[tuple[str, str], SpecError | None] = {}
    firsts: dict[tuple[str, str], GridRun] = {}
    for run in runs:
        if run.spec is not None:
            firsts.setdefault((run.protocol, run.defence), run)
    for number, (pair, run) in enumerate(firsts.items()):
        tick(f"checking {run.called}", number, len(firsts))
        planned[pair] = _refusal(run)
    for defence in {d for _, d in planned} - {UNDEFENDED}:
        refusals: list[SpecError | None] = []
        for (_, name), refusal in planned.items():
            if name == defence:
                refusals.append(refusal)
        first = refusals[0]
        if first is not None and all(refusals):
            problem = f"{first.problem} (defence {defence!r} fits no protocol)"
            raise SpecError(first.field, first.value, problem, first.remedy)
    checked = []
    for run in runs:
        error = planned.get((run.protocol, run.defence))
        if run.spec is not None and error is not None:
            run = replace(run, spec=None, reason=str(error))
        checked.append(run)
    return tuple(checked)


def _refusal(run: GridRun) -> SpecError | None:
    """Return why a run is impossible, for a defence that the grid does not name for this protocol."""
    from fdaudit.planning.simulated import simulated_case

    try:
        if run.spec is not None:
            simulated_case(run.spec, Secrets.draw(run.seed))
    except SpecError as error:
        if run.explicit:
            problem = f"{error.problem} (in {run.called})"
            raise SpecError(error.field, error.value, problem, error.remedy) from None
        return error
    return None


# -- what became of runs --------------------------------------------------------------------------------------


@dataclass
class _Book:
    """The index during a sweep, with the actions at the end of each run."""

    out: Path
    grid: Grid
    runs: Sequence[GridRun]
    before: Index | None
    chosen: Choice | None = None

    def __post_init__(self) -> None:
        earlier = {e.key: e for e in self.before.runs} if self.before else {}
        self.entries: dict[str, SweepEntry] = {}
        for run in self.runs:
            self.entries[run.key] = self._entry(run, earlier.get(run.key))
        for key, entry in earlier.items():
            if key not in self.entries:
                self.entries[key] = entry.model_copy(update={"in_grid": False})
        for key, entry in self.entries.items():
            if entry.status == "done":
                self._prune(key)

    def _entry(self, run: GridRun, earlier: SweepEntry | None) -> SweepEntry:
        place = run_directory(self.out, run.key) / _DONE
        entry = SweepEntry(
            key=run.key,
            protocol=run.protocol,
            defence=run.defence,
            epsilon="inf" if run.defence == UNDEFENDED else run.epsilon,
            asked=run.asked,
            seed=run.seed,
            status="pending" if run.spec is not None else "not-applicable",
            reason=run.reason,
        )
        if run.spec is not None and place.is_file():
            content = load_json(place)
            if not isinstance(content, dict) or not isinstance(content.get("reason"), str):
                raise IntegrityError([f"{_DONE} is malformed"])
            done = {"status": "done", "reason": content["reason"]}
            if isinstance(content.get("seconds"), int | float):
                done["seconds"] = float(content["seconds"])
            return entry.model_copy(update=done)
        if earlier is not None and earlier.status in ("failed", "not-applicable"):
            return entry.model_copy(update={"status": earlier.status, "reason": earlier.reason})
        return entry

    @property
    def index(self) -> Index:
        """Return the current index."""
        return Index(
            schema=SCHEMA,
            version=version("fdaudit"),
            grid=self.grid.model_dump(mode="json"),
            runs=tuple(self.entries.values()),
            chosen=self.chosen,
        )

    def write(self) -> None:
        """Replace `sweep.json`."""
        write_index(self.out, self.index)

    def choose(self) -> None:
        """Record which run was chosen by its results, if the grid asks for it."""
        if self.grid.choose == "nothing" or self.index.count("pending"):
            return
        self.chosen = choose(self.out, self.index)
        self.write()

    def note(self, run: GridRun, status: str, reason: str) -> None:
        """Record a run's outcome; for a finished run, in its own directory first."""
        seconds: float | None = None
        if status == "done":
            place = run_directory(self.out, run.key)
            try:
                with writing(place):
                    if run.spec is not None:
                        take_controls(place, shared_directory(self.out, run.spec))
                    result = read(load_json(place / "result.json"))
                    reason = "; ".join(f"{c.id} failed: {c.reason}" for c in result.failed_cells)
                    seconds = round(sum(read_timings(place).values()), 3)
                    save_json(place / _DONE, {"key": run.key, "reason": reason, "seconds": seconds}, indent=1)
                    self._prune(run.key)
            except (OSError, IntegrityError, RunError) as error:
                status, reason, seconds = "failed", f"{type(error).__name__}: {error}", None
        update = {"status": status, "reason": reason, "seconds": seconds}
        self.entries[run.key] = self.entries[run.key].model_copy(update=update)
        self.write()

    def _prune(self, key: str) -> None:
        """Remove files that a finished run no longer needs. Repeat this if it was interrupted."""
        if self.grid.keep == "runs":
            return
        place = run_directory(self.out, key)
        if not place.is_dir():
            return
        with writing(place):
            for path in place.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name not in KEPT:
                    path.unlink()

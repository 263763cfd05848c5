"""The audit pipeline: spec -> case -> federation -> transcript -> views -> attacks -> figures -> result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fdaudit.audit.run import Run
from fdaudit.audit.simulation import federate
from fdaudit.audit.summary import conclude, provisional_result
from fdaudit.evaluation.controls.kept import take_controls
from fdaudit.evaluation.runner import attack_cells, budgeted, stand_by
from fdaudit.parallel import malloc
from fdaudit.parallel.pool import Workers
from fdaudit.progress import Tick, no_progress
from fdaudit.result import Cell
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.spec.schema import Spec
from fdaudit.storage.locks import together, writing
from fdaudit.storage.timings import note_time, read_timings
from fdaudit.storage.tree import refuse_links
from fdaudit.transcript.manifest import MANIFEST, versions, write_manifest

__all__ = ["attacked", "federated", "perform"]


def perform(
    source: Spec | Path | str | dict[str, Any] | None,
    out: Path,
    *,
    resume: bool = False,
    seed_from: Path | None = None,
    workers: Workers | None = None,
    tick: Tick = no_progress,
    budget: float | None = None,
    provisional: Callable[[str], None] | None = None,
) -> None:
    """Run a spec into a run directory: federation, transcript, attacks, result.

    Args:
        source: the spec; None with `resume` takes the one in the run directory.
        out: the run directory; must not exist yet, unless `resume`.
        resume: continue after the last complete round.
        seed_from: a run directory whose seed and secret are used again, and the outcomes of controls that depend on
            nothing else.
        workers: other machines that run attack cells; outcomes are the same bytes with and without them.
        tick: called with the current activity, the steps done, and the total.
        budget: seconds for all of it; attacks are reduced or left out so that they fit, see `budgeted`. Utility is
            measured on fewer test records if measuring would take much of it.
        provisional: called with a line about the provisional report, once it is written: the quick attacks run first,
            and their report is marked as provisional. None writes none.

    Raises:
        UsageError: the spec is wrong, or the directory is occupied or being written; nothing was written.
    """
    with together():
        run = federated(
            source, out, resume=resume, seed_from=seed_from, workers=workers, tick=tick, budget=budget
        )
        attacked(run, seed_from=seed_from, workers=workers, tick=tick, budget=budget, provisional=provisional)


def federated(
    source: Spec | Path | str | dict[str, Any] | None,
    out: Path,
    *,
    resume: bool = False,
    seed_from: Path | None = None,
    workers: Workers | None = None,
    tick: Tick = no_progress,
    budget: float | None = None,
) -> RunDirectory:
    """Run the first half of `perform`, with its arguments: federation and transcript, sealed."""
    if seed_from is not None:
        refuse_links(seed_from, ("attacks", "vault"))
    with RunDirectory.begun(source, out, resume=resume, seed_from=seed_from) as run:
        if (out / MANIFEST).is_file():
            return run
        case = run.case
        if workers is None:
            stand_by(case)
        tick(case.protocol.card.name, 0, case.protocol_config.rounds)
        seconds = time.perf_counter()
        # The federation is finished: later changes to its record become visible.
        end = federate(run, tick, budget)
        write_manifest(
            run.path,
            {
                "head": end.head,
                "messages": end.seq,
                "commitments": run.commitments,
                "spec_sha256": run.case.spec.digest(),
                "versions": versions(),
            },
        )
        malloc.give_back()
        note_time(out, "federation", time.perf_counter() - seconds)
        return run


def attacked(
    run: RunDirectory,
    *,
    seed_from: Path | None = None,
    beside: Sequence[Path] = (),
    workers: Workers | None = None,
    tick: Tick = no_progress,
    budget: float | None = None,
    provisional: Callable[[str], None] | None = None,
) -> None:
    """Run the second half of `perform`: attacks on a sealed record, and the result; `beside` as in `attack_cells`."""
    with writing(run.path):
        if seed_from is not None:
            take_controls(seed_from, run.path)
        training = read_timings(run.path).get("federation", 0.0)
        allotted, clock = budgeted(run, budget, training=training, workers=workers)
        early = None
        if provisional is not None:
            early = partial(_report_early, run, provisional)
        attack_cells(
            allotted,
            beside=beside,
            workers=workers,
            tick=tick,
            clock=clock,
            early=early,
        )
        conclude(run)


def _report_early(run: RunDirectory, written: Callable[[str], None], to_come: Sequence[Cell]) -> None:
    """Write the report of the cells that are done, where the final one will be, and say where it is."""
    from fdaudit.reports.run.security import write_report

    result, page = provisional_result(run, to_come), Run(run.path).page
    page.parent.mkdir(exist_ok=True)
    write_report(result, run.path, page, read_timings(run.path))
    progress = ""
    if result.unfinished is not None:
        progress = f", {result.unfinished.words}"
    written(f"provisional report{progress}: {page}")

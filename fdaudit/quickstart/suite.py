"""The quickstart: five protocols on the same records, each in its own run, and a page that compares them.

Guarantees:
  * every run has the first one's seed and secret, so every client holds the same records in all runs;
  * an interrupted quickstart resumes from the last complete round and gives the same results;
  * a directory that holds anything else is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from threading import Event

from fdaudit import api
from fdaudit.audit.pipeline import attacked, federated
from fdaudit.audit.run import Run
from fdaudit.parallel.pool import Workers
from fdaudit.progress import Tick, no_progress
from fdaudit.quickstart.place import PROTOCOLS, refuse_occupied
from fdaudit.spec.schema import Spec, load_spec
from fdaudit.storage.locks import make_private, together, writing
from fdaudit.storage.tree import refuse_links

__all__ = ["quickstart", "specs"]

_SPECS = Path(__file__).parent


def specs() -> dict[str, Spec]:
    """Return the quickstart's specs by protocol."""
    return {name: load_spec(_SPECS / f"{name}.yaml") for name in PROTOCOLS}


def quickstart(
    out: Path,
    *,
    resume: bool = False,
    workers: Workers | None = None,
    tick: Tick = no_progress,
    reported: Callable[[Run, Path], None] = lambda run, page: None,
) -> tuple[tuple[Run, ...], Path]:
    """Run every spec in its own directory below `out`; write the reports and the comparison.

    Separate processes attack one run while this process trains the federation of the next. A process that has no work
    left for the first run begins with the next.

    Args:
        out: where they go.
        resume: continue an interrupted quickstart.
        workers: other machines that run attack cells; runs are then attacked one by one.
        tick: progress; called from several threads.
        reported: called with each run and its report's page once that is written; from another thread.

    Returns:
        The runs, and the path of the page that compares them.

    Raises:
        UsageError: `out` holds something else, or holds a run while `resume` is false; nothing was written.
    """
    suite = specs()
    first = out / next(iter(suite))
    refuse_occupied(out, resume, first.name)
    refuse_links(out, suite)
    make_private(out)
    early = Event()
    with together(), writing(out), _Beside(workers is not None, reported) as beside:
        for number, (name, spec) in enumerate(suite.items(), 1):
            place, seed_from = out / name, None if out / name == first else first
            step = beside.stopped_by(_step(tick, f"{number}/{len(suite)} {name}"))
            run = federated(spec, place, resume=resume, seed_from=seed_from, workers=workers, tick=step)
            before = [out / other for other in suite][: number - 1]
            announce = partial(_announce, step, early)
            attack = partial(attacked, run, beside=before, workers=workers, tick=step, provisional=announce)
            under_way = beside.attack(attack, Run(place))
            if number == 1:
                # Another federation would take processors from the attacks that the first report waits for.
                under_way.add_done_callback(lambda _: early.set())
                early.wait()
        beside.finish()
        finished = [Run(out / name) for name in suite]
        return tuple(finished), api.compare(finished, out)


class _Beside:
    """Attack runs and write their reports while the caller continues. Earlier runs have priority.

    Args:
        wait: finish each run's attacks and report before anything else continues.
        reported: called with a run and its page.
    """

    def __init__(self, wait: bool, reported: Callable[[Run, Path], None]) -> None:
        self._wait, self._reported, self._stop = wait, reported, Event()
        self._attacks, self._reports = ThreadPoolExecutor(1 if wait else 2), ThreadPoolExecutor(1)
        self._under_way = list[Future[Future[None]]]()

    def __enter__(self) -> _Beside:
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel waiting work. An attack stage that has begun stops at its next outcome."""
        self._stop.set()
        self._attacks.shutdown(cancel_futures=True)
        self._reports.shutdown(cancel_futures=True)

    def stopped_by(self, tick: Tick) -> Tick:
        """Return the same progress callback, which raises once this block has ended."""

        def ticked(what: str, done: int, total: int) -> None:
            if self._stop.is_set():
                raise InterruptedError("the quickstart has ended")
            tick(what, done, total)

        return ticked

    def attack(self, attack: Callable[[], None], run: Run) -> Future[Future[None]]:
        """Queue a run's attacks, then its report; return its attacks, whose result is its report.

        Raises:
            Exception: an error of an earlier run's attacks.
        """

        def work() -> Future[None]:
            attack()
            return self._reports.submit(copy_context().run, self._report, run)

        # In a copy of the caller's context, because the caller holds the locks on the runs.
        self._under_way.append(self._attacks.submit(copy_context().run, work))
        for earlier in self._under_way:
            if earlier.done():
                earlier.result()
        if self._wait:
            self.finish()
        return self._under_way[-1]

    def _report(self, run: Run) -> None:
        self._reported(run, api.report(run))

    def finish(self) -> None:
        """Wait until all runs have their reports."""
        for work in self._under_way:
            work.result().result()


def _announce(tick: Tick, early: Event, line: str) -> None:
    """Say that a provisional report is written, and where."""
    tick(line, 0, 0)
    early.set()


def _step(tick: Tick, run: str) -> Tick:
    """Return the progress callback of one run, which adds the run's number and name."""
    return lambda what, done, total: tick(f"{run}: {what}", done, total)

"""Run a run's federation again with a changed spec.

Guarantees:
  * the rerun has the run's own records, seed and secret, so nothing but the change differs;
  * it is a run directory of its own, which its printed command makes again;
  * the run itself is read and not written.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fdaudit.api import run as run_spec
from fdaudit.errors import RunError

if TYPE_CHECKING:
    from fdaudit.audit.run import Run
    from fdaudit.progress import Tick
    from fdaudit.spec.schema import Spec

__all__ = ["Rerun", "refuse_rerun", "rerun"]


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """A run made again.

    Attributes:
        run: the new run.
        command: the command that makes it once more, without a budget.
    """

    run: Run
    command: str


def refuse_rerun(run: Run, out: Path, change: str) -> None:
    """Refuse a run that cannot be made again, or a directory inside it.

    Args:
        run: the run.
        out: the directory of what is made.
        change: what is changed, as a clause that follows "cannot run again".

    Raises:
        RunError: another system ran the federation, or the directory is in the run.
    """
    if run.case.origin != "simulation":
        problem = f"was recorded elsewhere: its federation cannot run again {change}"
        raise RunError("run", str(run.directory), problem, "Simulate its protocol with a spec.")
    if out.resolve().is_relative_to(run.directory.resolve()):
        raise RunError("out", str(out), "lies in the run itself", "Choose a directory beside it.")


def rerun(
    run: Run, spec: Spec, out: Path, *, resume: bool = False, tick: Tick, budget: str | None = None
) -> Rerun:
    """Run a changed spec on a run's records.

    Args:
        run: the run.
        spec: its spec with the change.
        out: the directory of the new run.
        resume: continue it where an earlier call was interrupted.
        tick: progress.
        budget: how long it may take; by default as long as it takes.
    """
    again = run_spec(spec, out, resume=resume, seed_from=run.directory, tick=tick, budget=budget)
    places = [shlex.quote(str(path)) for path in (out / "spec.yaml", run.directory)]
    return Rerun(run=again, command=f"fdaudit run {places[0]} --seed-from {places[1]} --out AGAIN")

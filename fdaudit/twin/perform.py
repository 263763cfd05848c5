"""Make the honest twin of a deviating run, and keep in the run how both compare.

Guarantees:
  * the twin is a `rerun` of the run, so nothing but the deviations differs;
  * the same attacks run on both, with the same settings;
  * the run changes only once the twin is complete: an interrupted call leaves it whole, and the next one goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fdaudit.audit.summary import conclude, keep_twin
from fdaudit.errors import RunError
from fdaudit.progress import no_progress
from fdaudit.remedies.rerun import refuse_rerun, rerun
from fdaudit.reports.run_figures import final_figure
from fdaudit.result import Cell, Twin
from fdaudit.spec.schema import AttackSpec, LimitSpec
from fdaudit.storage.locks import writing
from fdaudit.twin.gains import gains
from fdaudit.twin.notice import noticed, refuse_unknown_detectors

if TYPE_CHECKING:
    from fdaudit.audit.run import Run
    from fdaudit.progress import Tick
    from fdaudit.spec.schema import Spec

__all__ = ["make_twin", "refuse_honest"]

_UNTRIED = ("not-requested", "not-tested")


def make_twin(run: Run, out: Path, *, tick: Tick = no_progress) -> Twin:
    """Run a deviating run's spec without its deviations, attack it alike, and keep in the run what both show.

    Args:
        run: a finished run of a spec with deviations.
        out: the directory of the twin; an interrupted twin in it goes on.
        tick: progress.

    Raises:
        RunError: the run has no deviations, was recorded elsewhere or is unfinished, or the directory is occupied.
        SpecError: a deviation's card names an unknown detector.
    """
    refuse_rerun(run, out, "without deviations")
    refuse_honest(run.case.spec, str(run.directory))
    if run.result.unfinished is not None:
        problem = f"is not at its end: {run.result.unfinished.words}"
        raise RunError("run", str(run.directory), problem, "Finish it with --resume.")
    refuse_unknown_detectors(run.case)
    spec = run.case.spec
    honest = spec.model_copy(
        update={
            "name": f"{spec.name}, honest twin"[:200],
            "deviations": (),
            "attacks": tuple(_attacks(run)),
            "references": (),
            "limits": LimitSpec(seconds_per_cell=spec.limits.seconds_per_cell),
        }
    )
    again = rerun(run, honest, out, resume=True, tick=tick)
    tick("comparing with the honest twin", 0, 0)
    twin = Twin(
        command=again.command,
        head=again.run.result.run.head,
        utility=final_figure(run.result),
        honest_utility=final_figure(again.run.result),
        gains=tuple(gains(run.result, again.run.result)),
        noticed=tuple(noticed(run.opened, again.run.opened)),
    )
    with writing(run.directory):
        keep_twin(run.opened.vault, twin)
        run.concluded(conclude(run.opened))
    return twin


def refuse_honest(spec: Spec, run: str) -> None:
    """Refuse a spec in which no party deviates.

    Raises:
        RunError: none does.
    """
    if not spec.deviations:
        problem = "has no deviations: it would be its own honest twin"
        raise RunError("run", run, problem, "Give the run of a spec with `deviations`.")


def _attacks(run: Run) -> list[AttackSpec]:
    """Return the attacks that a run tried, with the settings that a budget left them."""
    tried: dict[str, list[Cell]] = {}
    for cell in run.result.cells:
        if cell.status not in _UNTRIED:
            tried.setdefault(cell.attack, []).append(cell)
    attacks = []
    for plan in run.case.attacks:
        cells = tried.get(plan.name, [])
        if cells:
            settings = plan.params or {}
            for cell in cells:
                if cell.params:
                    settings = cell.params
                    break
            adversaries = tuple(dict.fromkeys(cell.adversary for cell in cells))
            attacks.append(AttackSpec(name=plan.asked, params=dict(settings), adversaries=adversaries))
    return attacks

"""Measure on a stand-in what active parties would learn of a recorded system, on which no deviation can be tried.

The stand-in is a simulated federation of the auditor's auxiliary records alone: with the recorded system's network, its
stand-in protocol and its attested defences. It runs once as its protocol says, and once for each deviation.

Guarantees:
  * no record of a client takes part;
  * both runs have the same records, seed and secret, so nothing but the deviation differs;
  * what could not be measured has a reason.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fdaudit import deviations
from fdaudit.api import run as run_spec
from fdaudit.audit.run import Run
from fdaudit.audit.summary import conclude, keep_untried
from fdaudit.errors import FdauditError, RunError
from fdaudit.evaluation.budget import seconds_of
from fdaudit.handout.rehearsals import stand_in_of
from fdaudit.progress import no_progress
from fdaudit.reports.judgement.judgement import findings_of
from fdaudit.result import Result, StandInFigures, UntriedDeviation
from fdaudit.storage.locks import writing
from fdaudit.storage.scratch import scratch
from fdaudit.types import Figure

if TYPE_CHECKING:
    from fdaudit.planning.case import Case
    from fdaudit.progress import Tick

__all__ = ["measure_untried"]

_MOST_CLIENTS, _MOST_ROUNDS = 4, 3
_LEAST = 15.0
"""Seconds without which no further run is begun."""
_FORMS = ("single-label", "multi-label")
"""Tasks whose records a spec can name by a file of arrays."""


def measure_untried(
    run: Run, *, budget: str | None = None, tick: Tick = no_progress
) -> tuple[UntriedDeviation, ...]:
    """Measure what the deviations that a recording lists as not tried gain on a stand-in, and keep it in the run.

    Args:
        run: the run of an import.
        budget: how long all of it may take, such as `5m`; by default as long as it takes.
        tick: progress.

    Raises:
        RunError: the run is no recording, no deviation fits it, or it lacks auxiliary records or a stand-in.
        UsageError: the budget is no duration.
    """
    until = time.monotonic() + (float("inf") if budget is None else seconds_of(budget))
    recording = run.result.run.recording
    if recording is None:
        problem = "is a simulation: name the deviation in its spec"
        raise RunError("run", str(run.directory), problem, "Give the run of an import.")
    if not recording.untried:
        problem = "sends no message that a shipped deviation changes"
        raise RunError("run", str(run.directory), problem, "There is nothing to measure.")
    lacking = run.case.missing("auxiliary", "architecture", "stand-in")
    if lacking:
        raise RunError("run", str(run.directory), "has no stand-in to measure on", f"First {lacking}.")
    with scratch("untried") as folder:
        measured = _StandInRuns(run.case, folder, until, tick).all_of(recording.untried)
    with writing(run.directory):
        keep_untried(run.opened.vault, measured)
        run.concluded(conclude(run.opened))
    return measured


class _StandInRuns:
    """One honest run of the stand-in, and one under each deviation.

    Args:
        case: the recording's case.
        folder: where the runs go.
        until: when all of it ends, by the monotonic clock.
        tick: progress.
    """

    def __init__(self, case: Case, folder: Path, until: float, tick: Tick) -> None:
        self._case, self._folder, self._until, self._tick = case, folder, until, tick

    def all_of(self, untried: Sequence[UntriedDeviation]) -> tuple[UntriedDeviation, ...]:
        """Return the deviations with what they gained, or why that is not known."""
        attacks = dict[str, None]()
        for one in untried:
            attacks |= dict.fromkeys(one.attacks)
        outcome: dict[str, Any] = {"stand_in": "", "measured": (), "reason": ""}
        try:
            spec = self._spec(list(attacks))
            honest = self._ran(spec, "honest", len(untried) + 1)
        except FdauditError as error:
            outcome["reason"] = str(error).splitlines()[0]
            return tuple(one.model_copy(update=outcome) for one in untried)
        measured = []
        for number, one in enumerate(untried):
            blank = one.model_copy(update=outcome)
            measured.append(self._beside(blank, spec, honest, len(untried) - number))
        return tuple(measured)

    def _beside(
        self, one: UntriedDeviation, spec: dict[str, Any], honest: Result, left: int
    ) -> UntriedDeviation:
        """Return a deviation with its figures beside the honest ones."""
        party = "client/0" if one.role == "client" else one.role
        deviation: dict[str, Any] = {"party": party, "name": one.name}
        if "rounds" in deviations.REGISTRY.load(one.name).Config.model_fields:
            deviation["params"] = {"rounds": list(range(spec["protocol"]["params"].get("rounds", 1)))}
        try:
            active = self._ran({**spec, "deviations": [deviation]}, f"{one.role}-{one.name}", left)
        except FdauditError as error:
            return one.model_copy(update={"reason": str(error).splitlines()[0]})
        figures = []
        for name in one.attacks:
            goal, before = _figure(honest, name)
            _, after = _figure(active, name)
            figures.append(StandInFigures(attack=name, goal=goal, honest=before, active=after))
        clients, protocol = spec["clients"], spec["protocol"]["name"]
        stand_in = f"{protocol} of {clients} clients with {len(self._case.auxiliary[1])} auxiliary records"
        return one.model_copy(update={"stand_in": stand_in, "measured": tuple(figures)})

    def _ran(self, spec: dict[str, Any], name: str, left: int) -> Result:
        """Return the result of a run that takes its share of the time.

        Raises:
            RunError: no time is left.
            FdauditError: the run failed.
        """
        remaining = self._until - time.monotonic()
        if remaining < _LEAST:
            raise RunError("budget", name, "left no time for this run", "Allow more.")
        budget, source = None, None
        if remaining < float("inf"):
            budget = f"{remaining / left:.0f}s"
        if name != "honest":
            source = self._folder / "honest"
        run = run_spec(spec, self._folder / name, seed_from=source, tick=self._tick, budget=budget)
        return run.result

    def _spec(self, attacks: Sequence[str]) -> dict[str, Any]:
        """Return the spec of the honest stand-in.

        Raises:
            RunError: the records have a form that no file of a spec has.
        """
        case = self._case
        x, y = case.auxiliary
        task = case.dataset.task.name
        are_images = task in _FORMS and x.ndim == 4 and x.shape[1] in (1, 3)
        if not are_images or not bool(((x >= 0) & (x <= 1)).all()):
            problem = "are no images within [0, 1] with one or three channels"
            raise RunError("auxiliary", task, problem, "Their effect is not measured.")
        images = x.numpy().transpose(0, 2, 3, 1)
        records = self._folder / "auxiliary.npz"
        np.savez(records, train_images=images, train_labels=y.numpy())
        protocol, config = stand_in_of(case)
        params = config.model_dump(mode="json", exclude_unset=True)
        if "rounds" in type(config).model_fields:
            params["rounds"] = min(config.rounds, _MOST_ROUNDS)
        name = case.spec.protocol.name if protocol is case.protocol else protocol.card.name
        needs_public = protocol.card.needs_public
        clients = max(2, min(case.spec.clients, _MOST_CLIENTS))
        return {
            "name": f"Stand-in of {case.spec.name}"[:200],
            "profile": case.spec.profile,
            "device": case.spec.device,
            "threads": case.spec.threads,
            "clients": clients,
            "victims": min(2, clients),
            "dataset": {"name": f"npz:{records}"},
            "splits": {"test": 0.1, "proxy": 0.15 if needs_public else 0.0, "auxiliary": 0.3},
            "model": case.spec.model.model_dump(mode="json"),
            "protocol": {"name": name, "params": params},
            "defenses": [entry.model_dump(mode="json") for entry in case.spec.defenses],
            "transport": case.spec.transport,
            "adversaries": ["server"],
            "attacks": [{"name": name} for name in attacks],
            "references": [],
            "power": False,
        }


def _figure(result: Result, attack: str) -> tuple[str, Figure | None]:
    """Return an attack's goal, and its deciding figure against the server's view; None if it has none."""
    for finding in findings_of(result):
        if finding.cell.attack == attack:
            return finding.cell.goal, finding.key or finding.worst_key
    return "", None

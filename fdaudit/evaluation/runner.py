"""The attack stage of a run: decides which cells run, in which order, and stores each at once.

Guarantees:
  * with a budget of time, cells run from the cheapest attack to the most expensive. Those that have no answer when it
    is spent are marked as not tested;
  * without one, the quick attacks run first if someone waits for a provisional report. The order changes no outcome.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path

from fdaudit.adversary.attack_plan import AttackPlan
from fdaudit.errors import UsageError
from fdaudit.evaluation.attack_pool import dismiss
from fdaudit.evaluation.budget import Cost, allot, quick, reduced
from fdaudit.evaluation.clock import Clock, forget_budget, kept_budget
from fdaudit.evaluation.estimate import Costs, Estimate, costs_of, estimate
from fdaudit.evaluation.stage import Stage, handed_folder, not_asked, to_come
from fdaudit.evaluation.steps import Work
from fdaudit.evaluation.workers import WorkUnit, number_of_processes, one_thread, outcomes, workers_for
from fdaudit.parallel.pool import Pool, Workers
from fdaudit.planning.case import Case
from fdaudit.progress import Tick, no_progress
from fdaudit.result import Budget, Cell, in_words
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.scoring.scoring import forget_other_scores, outcome_path
from fdaudit.storage.files import save_json, save_json_together
from fdaudit.storage.timings import note_time
from fdaudit.storage.tree import make_folder

__all__ = ["attack_cells", "budgeted", "due_cells", "stand_by"]


def attack_cells(
    run: RunDirectory,
    *,
    only: Callable[[str, str], bool] = lambda adversary, attack: True,
    again: bool = False,
    beside: Sequence[Path] = (),
    workers: Workers | None = None,
    tick: Tick = no_progress,
    stored: Callable[[Cell], None] = lambda cell: None,
    clock: Clock | None = None,
    early: Callable[[Sequence[Cell]], None] | None = None,
) -> list[Cell]:
    """Run every adversary x attack cell without an outcome, and store each outcome at once.

    Args:
        run: the run.
        only: predicate that selects cells.
        again: also run cells that have an outcome.
        beside: runs with the same secret; their controls are reused.
        workers: workers that replace local processes, if there is more than one cell, on the CPU.
        tick: progress; it is told an estimate of time and memory before the first cell.
        stored: called with each cell whose outcome is on disk.
        clock: the budget of the stage, with which the attacks of `run` were reduced; see `budgeted`.
        early: called once when no quick attack is left, with the cells that are still to come; not if there are none.

    Returns:
        The cells that ran, in the order of adversaries, then of attacks.
    """
    case, path = run.case, run.path
    units, unasked = _planned(run, due_cells(run, only, again), beside, clock)
    cells = {(cell.adversary, cell.attack): cell for cell in unasked}
    make_folder(path / "attacks")
    save_json_together({_path(path, *place): cell.plain() for place, cell in cells.items()}, indent=1)
    for cell in unasked:
        stored(cell)
    costs = _costs(run, units, clock)
    to_run = sum(len(unit.adversaries) for unit in units)
    processes = number_of_processes(case, to_run, workers)
    slow_attacks = set[str]()
    if early is not None:
        slow_attacks = _slow_attacks(costs, processes)
    units = _ordered(units, slow_attacks, clock)
    places = [(adversary, attack.name) for adversary in _adversaries(case) for attack in case.attacks]
    total = len(places)
    finished = total - to_run

    def say(what: str) -> None:
        tick(f"attacks ({what})", finished, total)

    if costs is not None:
        _say_estimate(estimate(run, costs, processes), tick, clock)
    if clock is not None:
        tick(f"attacks  {clock.budget.short}", 0, 0)
    quick_left = set[tuple[str, str]]()
    for unit in units:
        if unit.attack.name not in slow_attacks:
            quick_left.update((adversary, unit.attack.name) for adversary in unit.adversaries)
    with closing(outcomes(run, units, workers, say)) as answers:
        for cell, seconds in answers:
            save_json(_path(path, cell.adversary, cell.attack), cell.plain(), indent=1)
            forget_other_scores(run.vault, cell)
            note_time(path, cell.id, seconds, anew=True)
            stored(cell)
            if clock is not None:
                clock.note()
            cells[cell.adversary, cell.attack] = cell
            finished += 1
            say(f"{cell.adversary}: {cell.attack}")
            quick_left.discard((cell.adversary, cell.attack))
            if early is not None and not quick_left and finished < total:
                early(_rest(case, units, cells))
                early = None
    return [cells[place] for place in places if place in cells]


def _planned(
    run: RunDirectory, due: Mapping[AttackPlan, Sequence[str]], beside: Sequence[Path], clock: Clock | None
) -> tuple[list[WorkUnit], list[Cell]]:
    """Return what is to run of the cells that are due, and the cells of what the spec or the budget leaves out."""
    deadline = None if clock is None else clock.deadline
    units, unasked = list[WorkUnit](), list[Cell]()
    for attack, names in due.items():
        to_run = []
        for name in names:
            cell = not_asked(run.case, name, attack)
            if cell is None:
                to_run.append(name)
            else:
                unasked.append(cell)
        if to_run:
            units.append(WorkUnit(run.path, attack, tuple(to_run), tuple(beside), deadline))
    return units, unasked


def _ordered(units: Sequence[WorkUnit], slow_attacks: Collection[str], clock: Clock | None) -> list[WorkUnit]:
    """Return units with those of slow attacks last; with a budget, from the cheapest attack to the most expensive.

    With a budget those that apply nowhere come first, and those of unknown cost last.
    """
    if clock is None:
        return sorted(units, key=lambda unit: unit.attack.name in slow_attacks)
    place = {name: number for number, name in enumerate(clock.budget.order)}

    def rank(unit: WorkUnit) -> int:
        if Work.of(unit.attack.card) is None:
            return len(place)
        return place.get(unit.attack.name, -1)

    return sorted(units, key=rank)


def due_cells(
    run: RunDirectory, only: Callable[[str, str], bool] = lambda adversary, attack: True, again: bool = False
) -> dict[AttackPlan, list[str]]:
    """Return the adversaries against whom each attack has no outcome yet; arguments as in `attack_cells`."""
    due = dict[AttackPlan, list[str]]()
    for attack in run.case.attacks:
        due[attack] = []
        for adversary in _adversaries(run.case):
            missing = again or not _path(run.path, adversary, attack.name).is_file()
            if missing and only(adversary, attack.name):
                due[attack].append(adversary)
    return due


def budgeted(
    run: RunDirectory,
    seconds: float | None,
    *,
    training: float = 0.0,
    go_on: bool = True,
    workers: Workers | None = None,
) -> tuple[RunDirectory, Clock | None]:
    """Return a run whose attacks have the settings that a budget allots, and the clock of its attack stage.

    The allotment of an interrupted stage is used again.

    Args:
        run: the run, with a finished federation.
        seconds: of the budget for the whole command; None for the budget of the stage that goes on, if it has one.
        training: seconds of the budget that the federation has taken.
        go_on: go on with an interrupted stage; otherwise another stage begins.
        workers: as in `attack_cells`.

    Raises:
        UsageError: the stage that goes on has another budget.
    """
    clock = kept_budget(run.vault) if go_on else None
    if clock is None:
        if seconds is None:
            forget_budget(run.vault)
            return run, None
        begun = time.time()
        budget = _allotment(run, seconds, training, workers, again=not go_on)
        clock = Clock(run.vault, budget, begun=begun)
        clock.note()
    elif seconds not in (None, clock.budget.seconds):
        problem = f"is not the budget of {in_words(clock.budget.seconds)} with which these attacks began"
        remedy = "Leave it out to go on with that one, or run all attacks again: fdaudit attack RUN --all --budget."
        raise UsageError("budget", in_words(seconds), problem, remedy)
    attacks = reduced(run.case.attacks, clock.budget)
    return replace(run, case=replace(run.case, attacks=attacks)), clock


def _allotment(
    run: RunDirectory, seconds: float, training: float, others: Workers | None, *, again: bool
) -> Budget:
    cells = dict[AttackPlan, list[str]]()
    for attack, names in due_cells(run, again=again).items():
        to_run = list[str]()
        for name in names:
            if not_asked(run.case, name, attack) is None:
                to_run.append(name)
        if to_run:
            cells[attack] = to_run
    cells = _applicable(run, cells)
    processes = number_of_processes(run.case, sum(map(len, cells.values())), others)
    with one_thread():
        costs = costs_of(run, cells)
    attacks, shared = tuple[Cost, ...](), dict[str, Cost]()
    if costs is not None:
        attacks, shared = costs.attacks, dict(costs.shared)
    first = run.case.spec.limits.first
    return allot(seconds, attacks, shared=shared, processes=processes, training=training, first=first)


def _applicable(run: RunDirectory, cells: Mapping[AttackPlan, Sequence[str]]) -> dict[AttackPlan, list[str]]:
    """Return the cells whose attacks say that they can be tried; one view at a time is exported for that."""
    able = dict[AttackPlan, list[str]]()
    with one_thread(), handed_folder() as folder:
        stage = Stage(replace(run, case=run.case.on_one_thread()), folder)
        for name in dict.fromkeys(chain.from_iterable(cells.values())):
            with stage.adversary(name) as adversary:
                for attack, names in cells.items():
                    if name in names and stage.applies(adversary, attack):
                        able.setdefault(attack, []).append(name)
    return {attack: able[attack] for attack in cells if attack in able}


def stand_by(case: Case) -> None:
    """Start the local processes for a run's cells, so that they are ready when its federation ends."""
    cells = 0
    for attack in case.attacks:
        if attack.params is not None:
            cells += len(attack.adversaries)
    workers = workers_for(case, cells, None)
    if isinstance(workers, Pool):
        workers.stand_by()
    elif case.execution.device.startswith("cuda"):
        dismiss()


def _costs(run: RunDirectory, units: Sequence[WorkUnit], clock: Clock | None) -> Costs | None:
    """Return what the units cost; with a budget, those that it allots time to."""
    if clock is not None:  # others have said that they do not apply
        units = [unit for unit in units if unit.attack.name in clock.budget.order]
    with one_thread():
        return costs_of(run, {unit.attack: unit.adversaries for unit in units})


def _slow_attacks(costs: Costs | None, processes: int) -> set[str]:
    """Return the attacks that are not quick: their cells take long, or state no work."""
    if costs is None:
        return set()
    stated = {cost.attack for cost in costs.attacks}
    return {*stated, *costs.unstated}.difference(quick(costs.attacks, costs.shared, processes))


def _rest(case: Case, units: Sequence[WorkUnit], done: Collection[tuple[str, str]]) -> list[Cell]:
    """Return the cells that are still to come, as a provisional report shows them."""
    cells = list[Cell]()
    for unit in units:
        for adversary in unit.adversaries:
            if (adversary, unit.attack.name) not in done:
                cells.append(to_come(case, adversary, unit.attack))
    return cells


def _say_estimate(needs: Estimate, tick: Tick, clock: Clock | None) -> None:
    """Say how long the cells take, and how much memory and disk."""
    if clock is not None:  # the allotment rests on the first measurement
        needs = replace(needs, seconds=min(needs.seconds, clock.budget.estimated))
    if line := needs.line(short_too=clock is not None):
        tick(line, 0, 0)


def _adversaries(case: Case) -> tuple[str, ...]:
    """Return every adversary that some attack is asked for against."""
    names = dict.fromkeys(case.spec.adversaries)
    for attack in case.attacks:
        names |= dict.fromkeys(attack.adversaries)
    return tuple(names)


def _path(run: Path, adversary: str, attack: str) -> Path:
    return outcome_path(run, f"{adversary}/{attack}")

"""The attack stage of a run: runs all cells, as many at a time as the run has threads, and stores each at once.

Guarantees:
  * a cell computes on one thread on every machine, so its outcome does not depend on the number of parallel cells;
  * a cell whose process is killed or lost, or finds its GPU full, runs once more, alone, after all others; then it is
    marked as failed, and no other cell is affected;
  * no more processes start than fit in the free memory, also that of a GPU;
  * with a budget of time, cells run from the cheapest attack to the dearest. Those that have no answer when it is spent
    are marked as not tested;
  * without one, the quick attacks run first if somebody waits for a provisional report. The order changes no outcome.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

from fdaudit.adversary.attack_plan import AttackPlan
from fdaudit.errors import UsageError
from fdaudit.evaluation.attack_pool import attack_pool, dismiss
from fdaudit.evaluation.budget import Clock, Deadline, allot, forget_budget, kept_budget, quick, reduced
from fdaudit.evaluation.estimate import Costs, Estimate, Work, costs_of, estimate
from fdaudit.evaluation.stage import Adversary, Stage, handed_folder, not_asked, to_come
from fdaudit.isolation.attacker import ENDED, KILLED
from fdaudit.parallel.memory import fitting, fitting_on
from fdaudit.parallel.pool import Pool, Workers
from fdaudit.planning.attacks import plan_attack
from fdaudit.planning.case import Case
from fdaudit.progress import Tick, no_progress
from fdaudit.result import Budget, Cell, in_words, read_cell
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.scoring.scoring import forget_other_scores, outcome_path
from fdaudit.spec.trust import trusted_code
from fdaudit.storage.files import save_json, save_json_together
from fdaudit.storage.timings import note_time
from fdaudit.storage.tree import make_folder

__all__ = ["Desk", "Piece", "attack_cells", "budgeted", "due_cells", "stand_by"]

_DEVICE_FULL = "CUDA out of memory"
"""What PyTorch says if a GPU has no memory left; other processes may have taken it."""
_GRACE = 10.0
"""Seconds after the end of a budget in which processes may still report the cells that they stopped."""


@dataclass(frozen=True)
class Piece:
    """One attack against some adversaries of one run: the unit of work of a process.

    `beside` lists runs with the same secret, whose controls count here as well. `deadline` is the end of the budget.
    """

    run: Path
    attack: AttackPlan
    adversaries: tuple[str, ...]
    beside: tuple[Path, ...] = ()
    deadline: Deadline | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the piece as a JSON object, without the attack's code."""
        return {
            "run": str(self.run.resolve()),
            "attack": self.attack.asked or self.attack.name,
            "params": dict(self.attack.params or {}),
            "among": list(self.attack.adversaries),
            "adversaries": list(self.adversaries),
            "beside": [str(place.resolve()) for place in self.beside],
            "trusted": trusted_code(),
            "deadline": None if self.deadline is None else asdict(self.deadline),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any], case: Case) -> Piece:
        """Return the piece, with its attack loaded by its name."""
        attack = plan_attack(value["attack"], value["params"], case.spec, "attack", tuple(value["among"]))
        end = value.get("deadline")
        return cls(
            run=Path(value["run"]),
            attack=attack,
            adversaries=tuple(value["adversaries"]),
            beside=tuple(map(Path, value["beside"])),
            deadline=None if end is None else Deadline(**end),
        )


class Desk:
    """A process's workplace for cells of one run: adversaries' views stay exported while it is open."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._open = ExitStack()
        self._adversaries: dict[str, Adversary] = {}

    @cached_property
    def _stage(self) -> Stage:
        run = replace(self.run, case=self.run.case.on_one_thread())
        return Stage(run, self._open.enter_context(handed_folder()))

    def cells(self, piece: Piece) -> Iterator[tuple[Cell, float]]:
        """Yield each adversary's cell of a piece, and its duration in seconds."""
        for name in piece.adversaries:
            begun = time.perf_counter()
            if name not in self._adversaries:
                self._adversaries[name] = self._open.enter_context(self._stage.adversary(name))
            with _one_thread():
                cell = self._stage.cell(self._adversaries[name], piece.attack, piece.beside, piece.deadline)
            torch.cuda.empty_cache()  # processes of other cells may share the device
            yield cell, time.perf_counter() - begun

    def close(self) -> None:
        """Remove the exported views."""
        self._open.close()


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
    adversaries = _adversaries(case)
    deadline = None if clock is None else clock.deadline
    cells = dict[tuple[str, str], Cell]()
    pieces = list[Piece]()
    for attack, names in due_cells(run, only, again).items():
        to_run = []
        for name in names:
            unasked = not_asked(case, name, attack)
            if unasked is None:
                to_run.append(name)
            else:
                cells[name, attack.name] = unasked
        if to_run:
            pieces.append(Piece(path, attack, tuple(to_run), tuple(beside), deadline))
    make_folder(path / "attacks")
    save_json_together({_path(path, *place): cell.plain() for place, cell in cells.items()}, indent=1)
    for cell in cells.values():
        stored(cell)
    costs = _costs(run, pieces, clock)
    processes = _size(case, sum(len(p.adversaries) for p in pieces), workers)
    dear = set() if early is None else _dear(costs, processes)
    if clock is not None:
        pieces = _cheapest_first(pieces, clock.budget.order)
    else:
        pieces = sorted(pieces, key=lambda piece: piece.attack.name in dear)
    total = len(adversaries) * len(case.attacks)
    finished = total - sum(len(p.adversaries) for p in pieces)

    def say(what: str) -> None:
        tick(f"attacks ({what})", finished, total)

    if costs is not None:
        _say_estimate(estimate(run, costs, processes), tick, clock)
    if clock is not None:
        tick(f"attacks  {clock.budget.short}", 0, 0)
    quick_left = {(a, p.attack.name) for p in pieces for a in p.adversaries if p.attack.name not in dear}
    with closing(_outcomes(run, pieces, workers, say)) as outcomes:
        for cell, seconds in outcomes:
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
                early(_rest(case, pieces, cells))
                early = None
    places = [(adversary, attack.name) for adversary in adversaries for attack in case.attacks]
    return [cells[place] for place in places if place in cells]


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
        to_run = [name for name in names if not_asked(run.case, name, attack) is None]
        if to_run:
            cells[attack] = to_run
    cells = _applicable(run, cells)
    processes = _size(run.case, sum(map(len, cells.values())), others)
    with _one_thread():
        costs = costs_of(run, cells)
    if costs is None:
        return allot(seconds, (), shared={}, processes=processes, training=training)
    return allot(
        seconds,
        costs.attacks,
        shared=costs.shared,
        processes=processes,
        training=training,
        first=run.case.spec.limits.first,
    )


def _applicable(run: RunDirectory, cells: Mapping[AttackPlan, Sequence[str]]) -> dict[AttackPlan, list[str]]:
    """Return the cells whose attacks say that they can be tried; one view at a time is exported for that."""
    able = dict[AttackPlan, list[str]]()
    with _one_thread(), handed_folder() as folder:
        stage = Stage(replace(run, case=run.case.on_one_thread()), folder)
        for name in dict.fromkeys(chain.from_iterable(cells.values())):
            with stage.adversary(name) as adversary:
                for attack, names in cells.items():
                    if name in names and stage.applies(adversary, attack):
                        able.setdefault(attack, []).append(name)
    return {attack: able[attack] for attack in cells if attack in able}


def _cheapest_first(pieces: Sequence[Piece], order: Sequence[str]) -> list[Piece]:
    """Return pieces from the cheapest attack to the dearest: first those that apply nowhere, last unknown costs."""
    place = {name: number for number, name in enumerate(order)}

    def rank(piece: Piece) -> int:
        if Work.of(piece.attack.card) is None:
            return len(place)
        return place.get(piece.attack.name, -1)

    return sorted(pieces, key=rank)


def stand_by(case: Case) -> None:
    """Start the local processes for a run's cells, so that they are ready when its federation ends."""
    cells = sum(len(a.adversaries) for a in case.attacks if a.params is not None)
    workers = _workers(case, cells, None)
    if isinstance(workers, Pool):
        workers.stand_by()
    elif case.execution.device.startswith("cuda"):
        dismiss()


def _costs(run: RunDirectory, pieces: Sequence[Piece], clock: Clock | None) -> Costs | None:
    """Return what the pieces cost; with a budget, those that it allots time to."""
    if clock is not None:  # others have said that they do not apply
        pieces = [p for p in pieces if p.attack.name in clock.budget.order]
    with _one_thread():
        return costs_of(run, {p.attack: p.adversaries for p in pieces})


def _dear(costs: Costs | None, processes: int) -> set[str]:
    """Return the attacks that are not quick: their cells take long, or state no work."""
    if costs is None:
        return set()
    stated = {cost.attack for cost in costs.attacks}
    return {*stated, *costs.unstated}.difference(quick(costs.attacks, costs.shared, processes))


def _rest(case: Case, pieces: Sequence[Piece], done: Collection[tuple[str, str]]) -> list[Cell]:
    """Return the cells that are still to come, as a provisional report shows them."""
    cells = list[Cell]()
    for piece in pieces:
        for adversary in piece.adversaries:
            if (adversary, piece.attack.name) not in done:
                cells.append(to_come(case, adversary, piece.attack))
    return cells


def _say_estimate(needs: Estimate, tick: Tick, clock: Clock | None) -> None:
    """Say how long the cells take, and how much memory and disk."""
    if clock is not None:  # the allotment rests on the first measurement
        needs = replace(needs, seconds=min(needs.seconds, clock.budget.estimated))
    if line := needs.line(short_too=clock is not None):
        tick(line, 0, 0)


def _size(case: Case, cells: int, others: Workers | None) -> int:
    """Return the number of processes that run cells."""
    workers = _workers(case, cells, others)
    return 1 if workers is None else min(workers.size, cells)


def _adversaries(case: Case) -> tuple[str, ...]:
    """Return every adversary that some attack is asked for against."""
    names = dict.fromkeys(case.spec.adversaries)
    for attack in case.attacks:
        names |= dict.fromkeys(attack.adversaries)
    return tuple(names)


def _outcomes(
    run: RunDirectory, pieces: Sequence[Piece], others: Workers | None, say: Callable[[str], None]
) -> Generator[tuple[Cell, float], None, None]:
    """Yield every cell of the pieces when it is done, run here or by workers if there is enough to do."""
    workers = _workers(run.case, sum(len(p.adversaries) for p in pieces), others)
    if workers is not None and len(pieces) < workers.size:  # few attacks: split by adversary instead
        pieces = [replace(p, adversaries=(a,)) for p in pieces for a in p.adversaries]
    if workers is not None and len(pieces) > 1:
        torch.cuda.empty_cache()  # what training reserved is for the workers
        yield from _by_workers(Stage(run), pieces, workers, say)
        return
    with closing(Desk(run)) as desk:
        for piece in pieces:
            yield from desk.cells(piece)


def _workers(case: Case, cells: int, others: Workers | None) -> Workers | None:
    """Return the workers that run cells; None, for this process, with one cell or one thread.

    Processes of this machine share an accelerator: other machines may have none.
    """
    if cells < 2:
        return None
    if case.execution.device.startswith("cuda"):
        return _processes(case, cells)
    return others or _processes(case, cells)


def _processes(case: Case, cells: int) -> Pool | None:
    """Return processes of this machine, as many as the run has threads and memory has room for; None for one."""
    size = min(case.execution.threads, cells, fitting(), fitting_on(case.execution.device))
    return None if size < 2 else attack_pool(size)


def _by_workers(
    stage: Stage, pieces: Sequence[Piece], workers: Workers, say: Callable[[str], None]
) -> Generator[tuple[Cell, float], None, None]:
    """Yield every cell that the workers report; those that were killed, lost or out of memory run again, in turn."""
    lost = list[Piece]()
    for piece, cell, seconds in _reported(stage, pieces, workers, say):
        if cell.status == "failed" and (cell.reason in (ENDED, KILLED) or _DEVICE_FULL in cell.reason):
            lost.append(replace(piece, adversaries=(cell.adversary,)))
        else:
            yield cell, seconds
    for piece in lost:
        if piece.deadline is not None and piece.deadline.left <= 0:
            for name in piece.adversaries:
                yield stage.untested(name, piece.attack, piece.deadline.before_its_end), 0.0
            continue
        say(f"{piece.attack.name}: again, alone")
        for _, cell, seconds in _reported(stage, [piece], workers, say):
            yield cell, seconds


def _reported(
    stage: Stage, pieces: Sequence[Piece], workers: Workers, say: Callable[[str], None]
) -> Generator[tuple[Piece, Cell, float], None, None]:
    """Yield every cell with its piece; cells that the workers could not finish have failed."""
    unanswered = [list(p.adversaries) for p in pieces]
    deadline = pieces[0].deadline
    tasks = [p.to_json() for p in pieces]
    if deadline is not None and isinstance(workers, Pool):
        work = workers.work(tasks, deadline.until + _GRACE)
    else:
        work = workers.work(tasks)
    with closing(work) as answers:
        for number, line in answers:
            attack = pieces[number].attack
            if line is not None and "tick" in line:
                what, step, of = line["tick"]
                say(f"{attack.name}: {what} {step}/{of}")
            elif line is not None and "cell" in line:
                unanswered[number].remove(line["adversary"])
                yield pieces[number], read_cell(line["cell"], attack.name), float(line["seconds"])
            else:
                failure = line or {"failed": ENDED}
                for name in tuple(failure.get("adversaries", unanswered[number])):
                    unanswered[number].remove(name)
                    yield pieces[number], stage.failed(name, attack, failure["failed"]), 0.0
    if deadline is None:
        return
    for piece, names in zip(pieces, unanswered, strict=True):
        for name in names:
            yield piece, stage.untested(name, piece.attack, deadline.not_in_time), 0.0


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """Return the libraries with their own threads; the number of loaded Python modules is the key of the cache."""
    return ThreadpoolController()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit PyTorch, and the linear algebra of NumPy and SciPy, to one thread."""
    threads = torch.get_num_threads()
    with _libraries(len(sys.modules)).limit(limits=1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _path(run: Path, adversary: str, attack: str) -> Path:
    return outcome_path(run, f"{adversary}/{attack}")

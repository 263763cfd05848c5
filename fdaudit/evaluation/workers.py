"""Run the cells of an attack stage: in this process, or in several as many at a time as fit.

Guarantees:
  * a cell computes on one thread on every machine, so its outcome does not depend on the number of parallel cells;
  * a cell whose process is killed or lost, or finds its GPU full, runs once more, alone, after all others; then it is
    marked as failed, and no other cell is affected;
  * no more processes start than fit in the free memory, also that of a GPU.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

from fdaudit.adversary.attack_plan import AttackPlan
from fdaudit.evaluation.attack_pool import attack_pool
from fdaudit.evaluation.clock import Deadline
from fdaudit.evaluation.stage import Adversary, Stage, handed_folder
from fdaudit.isolation.attacker import ENDED, KILLED
from fdaudit.parallel.memory import fitting, fitting_on
from fdaudit.parallel.pool import Pool, Workers
from fdaudit.planning.attacks import plan_attack
from fdaudit.planning.case import Case
from fdaudit.result import Cell, read_cell
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.spec.trust import trusted_code

__all__ = ["CellRunner", "WorkUnit", "number_of_processes", "one_thread", "outcomes", "workers_for"]

_DEVICE_FULL = "CUDA out of memory"
"""What PyTorch says if a GPU has no memory left; other processes may have taken it."""
_GRACE = 10.0
"""Seconds after the end of a budget in which processes may still report the cells that they stopped."""


@dataclass(frozen=True)
class WorkUnit:
    """One attack against some adversaries of one run, for one process.

    `beside` lists runs with the same secret, whose controls count here as well. `deadline` is the end of the budget.
    """

    run: Path
    attack: AttackPlan
    adversaries: tuple[str, ...]
    beside: tuple[Path, ...] = ()
    deadline: Deadline | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the unit as a JSON object, without the attack's code."""
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
    def from_json(cls, value: dict[str, Any], case: Case) -> WorkUnit:
        """Return the unit, with its attack loaded by its name."""
        attack = plan_attack(value["attack"], value["params"], case.spec, "attack", tuple(value["among"]))
        end = value.get("deadline")
        return cls(
            run=Path(value["run"]),
            attack=attack,
            adversaries=tuple(value["adversaries"]),
            beside=tuple(map(Path, value["beside"])),
            deadline=None if end is None else Deadline(**end),
        )


class CellRunner:
    """Runs cells of one run in this process; adversaries' views stay exported while it is open."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self._open = ExitStack()
        self._adversaries: dict[str, Adversary] = {}

    @cached_property
    def _stage(self) -> Stage:
        run = replace(self.run, case=self.run.case.on_one_thread())
        return Stage(run, self._open.enter_context(handed_folder()))

    def cells(self, unit: WorkUnit) -> Iterator[tuple[Cell, float]]:
        """Yield each adversary's cell of a unit, and its duration in seconds."""
        for name in unit.adversaries:
            begun = time.perf_counter()
            if name not in self._adversaries:
                self._adversaries[name] = self._open.enter_context(self._stage.adversary(name))
            with one_thread():
                cell = self._stage.cell(self._adversaries[name], unit.attack, unit.beside, unit.deadline)
            torch.cuda.empty_cache()  # processes of other cells may share the device
            yield cell, time.perf_counter() - begun

    def close(self) -> None:
        """Remove the exported views."""
        self._open.close()


def outcomes(
    run: RunDirectory, units: Sequence[WorkUnit], others: Workers | None, say: Callable[[str], None]
) -> Generator[tuple[Cell, float], None, None]:
    """Yield every cell of the units when it is done, run here or by workers if there is enough to do.

    Cells whose process was killed, lost or out of memory run again, in turn.
    """
    workers = workers_for(run.case, sum(len(unit.adversaries) for unit in units), others)
    if workers is not None and len(units) < workers.size:  # few attacks: split by adversary instead
        by_adversary = list[WorkUnit]()
        for unit in units:
            for adversary in unit.adversaries:
                by_adversary.append(replace(unit, adversaries=(adversary,)))
        units = by_adversary
    if workers is None or len(units) < 2:
        with closing(CellRunner(run)) as runner:
            for unit in units:
                yield from runner.cells(unit)
        return
    torch.cuda.empty_cache()  # what training reserved is for the workers
    stage, lost = Stage(run), list[WorkUnit]()
    for unit, cell, seconds in _reported(stage, units, workers, say):
        if cell.status == "failed" and (cell.reason in (ENDED, KILLED) or _DEVICE_FULL in cell.reason):
            lost.append(replace(unit, adversaries=(cell.adversary,)))
        else:
            yield cell, seconds
    for unit in lost:
        if unit.deadline is not None and unit.deadline.left <= 0:
            for name in unit.adversaries:
                yield stage.untested(name, unit.attack, unit.deadline.before_its_end), 0.0
            continue
        say(f"{unit.attack.name}: again, alone")
        for _, cell, seconds in _reported(stage, [unit], workers, say):
            yield cell, seconds


def _reported(
    stage: Stage, units: Sequence[WorkUnit], workers: Workers, say: Callable[[str], None]
) -> Generator[tuple[WorkUnit, Cell, float], None, None]:
    """Yield every cell with its unit; cells that the workers could not finish have failed."""
    unanswered = [list(unit.adversaries) for unit in units]
    deadline = units[0].deadline
    tasks = [unit.to_json() for unit in units]
    if deadline is not None and isinstance(workers, Pool):
        work = workers.work(tasks, deadline.until + _GRACE)
    else:
        work = workers.work(tasks)
    with closing(work) as answers:
        for number, line in answers:
            attack = units[number].attack
            if line is not None and "tick" in line:
                what, step, of = line["tick"]
                say(f"{attack.name}: {what} {step}/{of}")
            elif line is not None and "cell" in line:
                unanswered[number].remove(line["adversary"])
                yield units[number], read_cell(line["cell"], attack.name), float(line["seconds"])
            else:
                failure = line or {"failed": ENDED}
                for name in tuple(failure.get("adversaries", unanswered[number])):
                    unanswered[number].remove(name)
                    yield units[number], stage.failed(name, attack, failure["failed"]), 0.0
    if deadline is None:
        return
    for unit, names in zip(units, unanswered, strict=True):
        for name in names:
            yield unit, stage.untested(name, unit.attack, deadline.not_in_time), 0.0


def number_of_processes(case: Case, cells: int, others: Workers | None) -> int:
    """Return the number of processes that run cells."""
    workers = workers_for(case, cells, others)
    return 1 if workers is None else min(workers.size, cells)


def workers_for(case: Case, cells: int, others: Workers | None) -> Workers | None:
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


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """Return the libraries with their own threads; the number of loaded Python modules is the key of the cache."""
    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit PyTorch, and the linear algebra of NumPy and SciPy, to one thread."""
    threads = torch.get_num_threads()
    with _libraries(len(sys.modules)).limit(limits=1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

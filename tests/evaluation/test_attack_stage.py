"""Cells side by side in processes of their own: the same outcomes as one after the other, and losses that show."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

import fdaudit
from fdaudit.audit import pipeline
from fdaudit.evaluation import attack_pool, runner, workers
from fdaudit.evaluation.runner import attack_cells
from fdaudit.evaluation.stage import Stage
from fdaudit.evaluation.workers import CellRunner, WorkUnit
from fdaudit.parallel.pool import Pool
from fdaudit.planning.case import Case
from fdaudit.planning.simulated import simulated_case
from fdaudit.result import read_cell
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.spec.schema import load_spec
from fdaudit.storage.files import load_json

from ..helpers.results import cells_of
from ..helpers.run_cases import known
from .stage_cases import SPEC


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    return fdaudit.run(SPEC, tmp_path_factory.mktemp("stage") / "run")


@pytest.mark.thorough
def test_a_cell_ends_the_same_in_a_process_of_its_own(run: fdaudit.Run) -> None:
    cell_runner, compared = CellRunner(run.opened), 0
    for attack in run.case.attacks:
        if attack.params is None:
            continue
        for cell, seconds in cell_runner.cells(WorkUnit(run.directory, attack, ("server", "world"))):
            name = f"{cell.adversary}-{cell.attack}.json"
            assert cell.plain() == load_json(run.directory / "attacks" / name)
            assert cell.status in ("run", "inconclusive")
            assert seconds > 0
            compared += 1
    cell_runner.close()
    assert compared == 4


def test_one_cell_survives_its_json_and_is_run_here(run: fdaudit.Run) -> None:
    for value in run.result.plain()["cells"]:
        assert read_cell(value, "cell").plain() == value
    far = _Far(2)
    only = lambda adversary, attack: (adversary, attack) == ("world", "gap")  # noqa: E731
    (cell,) = attack_cells(run.opened, only=only, again=True, workers=far)
    assert (cell.id, far.pieces) == ("world/gap", [])


class _Dying:
    """A pool whose processes end before the second adversary's cell of every piece, or before world's if `always`."""

    size = 2

    def __init__(self, always: bool = False) -> None:
        self._always = always
        self.pieces: list[tuple[str, ...]] = []

    def work(
        self, pieces: Sequence[dict[str, Any]]
    ) -> Generator[tuple[int, dict[str, Any] | None], None, None]:
        for number, piece in enumerate(pieces):
            self.pieces.append(tuple(piece["adversaries"]))
            cell_runner = CellRunner(RunDirectory.reopen(Path(piece["run"])))
            attack = next(a for a in cell_runner.run.case.attacks if a.name == piece["attack"])
            names = tuple(n for n in piece["adversaries"][:1] if not (self._always and n == "world"))
            for cell, seconds in cell_runner.cells(WorkUnit(Path(piece["run"]), attack, names)):
                yield number, {"adversary": cell.adversary, "cell": cell.plain(), "seconds": seconds}
            cell_runner.close()
            if len(names) < len(piece["adversaries"]):
                yield number, None


@pytest.mark.thorough
def test_a_cell_whose_process_ended_runs_again_alone(
    run: fdaudit.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, dying = cells_of(run), _Dying()
    monkeypatch.setattr(workers, "attack_pool", lambda size: dying)
    monkeypatch.setattr(workers, "fitting", lambda: 64)
    cells = attack_cells(run.opened, again=True)
    assert {c.id: c.plain() for c in cells} == before
    assert dying.pieces[-2:] == [("world",), ("world",)]


def test_a_cell_whose_process_ended_has_failed_and_says_so(
    run: fdaudit.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "fitting", lambda: 64)  # however little memory is free
    monkeypatch.setattr(workers, "attack_pool", lambda size: _Dying(always=True))
    cells = attack_cells(run.opened, again=True)
    asked = {c.id: c for c in cells if c.status != "not-requested"}
    assert {i: c.status == "failed" for i, c in asked.items()} == {
        "server/gap": False,
        "server/loss-threshold": False,
        "world/gap": True,
        "world/loss-threshold": True,
    }
    assert "ended before" in asked["world/gap"].reason
    assert load_json(run.directory / "attacks" / "world-gap.json")["status"] == "failed"
    assert [c.adversary for c in cells] == sorted(c.adversary for c in cells), "in the order of adversaries"


class _Full:
    """A pool whose processes share a GPU that is full for every cell against world until it runs alone."""

    size = 2

    def work(
        self, pieces: Sequence[dict[str, Any]]
    ) -> Generator[tuple[int, dict[str, Any] | None], None, None]:
        for number, piece in enumerate(pieces):
            cell_runner = CellRunner(RunDirectory.reopen(Path(piece["run"])))
            attack = next(a for a in cell_runner.run.case.attacks if a.name == piece["attack"])
            for cell, seconds in cell_runner.cells(
                WorkUnit(Path(piece["run"]), attack, tuple(piece["adversaries"]))
            ):
                if cell.adversary == "world" and len(pieces) > 1:
                    reason = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
                    cell = cell_runner._stage.failed("world", attack, reason)
                yield number, {"adversary": cell.adversary, "cell": cell.plain(), "seconds": seconds}
            cell_runner.close()


@pytest.mark.thorough
def test_a_cell_that_found_its_gpu_full_runs_again_alone(
    run: fdaudit.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, said = cells_of(run), list[str]()
    monkeypatch.setattr(workers, "attack_pool", lambda size: _Full())
    monkeypatch.setattr(workers, "fitting", lambda: 64)
    cells = attack_cells(run.opened, again=True, tick=lambda *told: said.append(told[0]))
    assert {c.id: c.plain() for c in cells} == before
    assert {f"attacks ({name}: again, alone)" for name in ("gap", "loss-threshold")} <= set(said)


class _Far:
    """Workers that run cells here, of a piece's JSON alone, and lose those against some adversaries."""

    def __init__(self, size: int, failing: tuple[str, ...] = ()) -> None:
        self.size, self._failing = size, failing
        self.pieces: list[tuple[str, tuple[str, ...]]] = []

    def work(
        self, pieces: Sequence[dict[str, Any]]
    ) -> Generator[tuple[int, dict[str, Any] | None], None, None]:
        self.pieces = [(p["attack"], tuple(p["adversaries"])) for p in pieces]
        for number, piece in enumerate(pieces):
            yield number, {"tick": ["lost", 1, 2]}
            cell_runner = CellRunner(RunDirectory.reopen(Path(piece["run"])))
            attack = next(a for a in cell_runner.run.case.attacks if a.name == piece["attack"])
            for name in piece["adversaries"]:
                if name in self._failing:
                    yield number, {"failed": "lost for good", "adversaries": [name]}
                    continue
                for cell, seconds in cell_runner.cells(WorkUnit(Path(piece["run"]), attack, (name,))):
                    yield number, {"adversary": name, "cell": cell.plain(), "seconds": seconds}
            cell_runner.close()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (1, [("gap", ("server", "world")), ("loss-threshold", ("server", "world"))]),
        (2, [("gap", ("server", "world")), ("loss-threshold", ("server", "world"))]),
        (3, [(n, (a,)) for n in ("gap", "loss-threshold") for a in ("server", "world")]),
    ],
)
def test_other_workers_have_the_cells_and_outcomes_are_the_same(
    size: int, parts: list[tuple[str, tuple[str, ...]]], run: fdaudit.Run
) -> None:
    before = cells_of(run)
    far, said = _Far(size), list[str]()
    cells = attack_cells(run.opened, again=True, workers=far, tick=lambda *told: said.append(told[0]))
    assert sorted(far.pieces) == parts
    assert {c.id: c.plain() for c in cells} == before
    assert sum("gap: lost 1/2" in line for line in said) == len(parts) / 2


def test_a_cell_that_other_workers_lost_has_failed_alone(run: fdaudit.Run) -> None:
    cells = attack_cells(run.opened, again=True, workers=_Far(2, failing=("server",)))
    asked = {c.id: (c.status, c.reason) for c in cells if c.status != "not-requested"}
    for name in ("gap", "loss-threshold"):
        assert asked[f"server/{name}"] == ("failed", "lost for good")
        assert asked[f"world/{name}"][0] in ("run", "inconclusive")


def test_cells_that_the_spec_does_not_ask_for_need_no_view_and_take_no_time(
    run: fdaudit.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(stage: Stage, name: str) -> NoReturn:
        raise AssertionError(f"the view of {name} was exported")

    before = {c["id"]: c for c in run.result.plain()["cells"] if c["status"] == "not-requested"}
    for key in before:
        path = run.directory / "attacks" / f"{key.replace('/', '-')}.json"
        path.unlink()
    monkeypatch.setattr(Stage, "adversary", refuse)
    cells = attack_cells(run.opened)
    assert {c.id: c.plain() for c in cells} == before
    assert {load_json(p)["id"] for p in (run.directory / "attacks").glob("*.json")} >= before.keys()
    assert before
    assert run.timings.keys().isdisjoint(before)


def test_one_thread_starts_no_process(
    run: fdaudit.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(size: int) -> None:
        raise AssertionError("a process was wanted")

    monkeypatch.setattr(workers, "attack_pool", refuse)
    made = fdaudit.run({**SPEC, "threads": 1}, tmp_path / "run")
    assert {c["status"] for c in made.result.plain()["cells"]} <= {"run", "inconclusive", "not-requested"}


def test_processes_are_ready_when_the_federation_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[str]()
    monkeypatch.setattr(attack_pool, "fitting", lambda: 64)  # however little memory is free
    ready, federate = Pool.stand_by, pipeline.federate
    monkeypatch.setattr(Pool, "stand_by", lambda pool: (begun.append("processes"), ready(pool)))
    monkeypatch.setattr(pipeline, "federate", lambda *given: begun.append("federation") or federate(*given))
    fdaudit.run(SPEC, tmp_path / "run")
    assert begun == ["processes", "federation"]
    begun.clear()
    fdaudit.run({**SPEC, "attacks": []}, tmp_path / "none")
    assert begun == ["federation"]


# -- processes that are started before anything is known of the runs they will serve -------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made = list[str]()
    monkeypatch.setattr(Pool, "stand_by", lambda pool: made.append(f"{pool.size} stand by"))
    monkeypatch.setattr(Pool, "close", lambda pool: made.append(f"{pool.size} go"))
    return made


@pytest.mark.parametrize(("processors", "made"), [(1, []), (2, ["2 stand by"]), (64, ["8 stand by"])])
def test_as_many_as_a_run_will_ask_for(
    processors: int, made: list[str], calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attack_pool, "fitting", lambda: 64)  # however little memory is free
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    attack_pool.stand_by()
    assert calls == made
    assert case().execution.threads == min(processors, 8)


def test_nobody_waits_where_a_gpu_has_room_for_one(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "fitting_on", lambda device: 1)
    attack_pool.stand_by()
    runner.stand_by(case(on="cuda"))
    assert calls[-1].endswith(" go")


def test_as_many_share_a_gpu_as_its_memory_has_room_for(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr(workers, "fitting", lambda: 64)
    monkeypatch.setattr(workers, "fitting_on", lambda device: 3 if device == "cuda:1" else 64)
    runner.stand_by(case(on="cuda:1"))
    assert calls[-1] == "3 stand by"


def test_machines_elsewhere_run_no_cell_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "fitting_on", lambda device: 1)
    elsewhere = Pool("none", 5)
    assert workers.workers_for(case(), 4, elsewhere) is elsewhere
    assert workers.workers_for(case(on="cuda"), 4, elsewhere) is None


def case(on: str = "cpu") -> Case:
    made = simulated_case(load_spec({**SPEC, "threads": None}), known(1))
    return replace(made, execution=replace(made.execution, device=on))


def test_it_is_loaded_in_no_time() -> None:
    code = "import sys, fdaudit.evaluation.attack_pool; assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

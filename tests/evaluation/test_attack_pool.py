"""Processes that are started before anything is known of the runs they will serve."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from fdaudit.evaluation import attack_pool, runner
from fdaudit.parallel.pool import Pool
from fdaudit.planning.case import Case
from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import load_spec

from ..helpers.run_cases import known
from .test_attack_stage import SPEC


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
    monkeypatch.setattr(runner, "fitting_on", lambda device: 1)
    attack_pool.stand_by()
    runner.stand_by(case(on="cuda"))
    assert calls[-1].endswith(" go")


def test_as_many_share_a_gpu_as_its_memory_has_room_for(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr(runner, "fitting", lambda: 64)
    monkeypatch.setattr(runner, "fitting_on", lambda device: 3 if device == "cuda:1" else 64)
    runner.stand_by(case(on="cuda:1"))
    assert calls[-1] == "3 stand by"


def test_machines_elsewhere_run_no_cell_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "fitting_on", lambda device: 1)
    elsewhere = Pool("none", 5)
    assert runner._workers(case(), 4, elsewhere) is elsewhere
    assert runner._workers(case(on="cuda"), 4, elsewhere) is None


def case(on: str = "cpu") -> Case:
    made = simulated_case(load_spec({**SPEC, "threads": None}), known(1))
    return replace(made, execution=replace(made.execution, device=on))


def test_it_is_loaded_in_no_time() -> None:
    code = "import sys, fdaudit.evaluation.attack_pool; assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

"""A whole run in which the system kills the process of a plug-in attack: every other cell has its outcome."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest

import fdaudit
from fdaudit.evaluation import attack_pool
from fdaudit.isolation.attacker import KILLED
from fdaudit.storage.files import load_json

from . import stage_cases

pytestmark = pytest.mark.thorough

PLUGIN = """
import ctypes
import time
from pathlib import Path
from typing import Any, ClassVar

from fdaudit.config import Config
from fdaudit.goals.membership import Membership
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability


class NoSettings(Config):
    pass


class Hungry:
    card = AttackCard(
        name="hungry",
        goal="membership",
        needs=("oracle (soft labels)",),
        assumes=(),
        oracle="soft",
        source="none",
        profiles={"quick": {}, "standard": {}, "full": {}},
    )
    Config: ClassVar[type[NoSettings]] = NoSettings

    def __init__(self, config):
        pass

    def applicable(self, view, knowledge, task):
        return Applicability(True)

    def run(self, view, knowledge, task, generator):
        if Path(__file__).with_name("flag_of_hungry.py").exists():
            ctypes.CDLL(None).prctl(15, b"hungry", 0, 0, 0)  # the name by which the test finds and kills it
            time.sleep(86400)
        return tuple(
            Membership(target=k, scores=task.oracle.query(c.x).max(1).values) for k, c in task.challenges.items()
        )
"""
SPEC = {
    **stage_cases.SPEC,
    "adversaries": ["world"],
    "attacks": [{"name": "import:hungry_attack:Hungry"}, {"name": "gap"}, {"name": "loss-threshold"}],
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of plug-ins that new processes import from."""
    (place := tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("PYTHONPATH", str(place))
    attack_pool.dismiss()
    yield place
    attack_pool.dismiss()


@pytest.fixture
def _kernel() -> Iterator[None]:
    """Kill every process called `hungry`, as the system does when memory runs out: from outside its namespace."""
    ended = Event()

    def kill() -> None:
        while not ended.wait(0.05):
            for name in Path("/proc").glob("[0-9]*/task/[0-9]*/comm"):  # an attack that asks runs in a thread
                with suppress(OSError):
                    if name.read_text() == "hungry\n":
                        os.kill(int(name.parts[2]), signal.SIGKILL)

    thread = Thread(target=kill)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize("once", [True, False])
def test_a_killed_attack_costs_no_other_cell(once: bool, site: Path, tmp_path: Path) -> None:
    (site / "hungry_attack.py").write_text(PLUGIN, encoding="utf-8")
    (flag := site / "flag_of_hungry.py").touch()  # an attack sees modules, and no other files there
    said, again = list[str](), "attacks (hungry: again, alone)"

    def tick(what: str, done: int, total: int) -> None:
        said.append(what)
        if once and what == again:
            flag.unlink()

    run = fdaudit.run(SPEC, tmp_path / "run", tick=tick)
    asked = {c["attack"]: c for c in run.result.plain()["cells"] if c["status"] != "not-requested"}
    assert said.count(again) == 1
    assert {asked[name]["status"] for name in ("gap", "loss-threshold")} <= {"run", "inconclusive"}
    if once:
        assert asked["hungry"]["status"] in ("run", "inconclusive")
    else:
        assert (asked["hungry"]["status"], asked["hungry"]["reason"]) == ("failed", KILLED)
    assert load_json(run.directory / "attacks" / "world-hungry.json")["status"] == asked["hungry"]["status"]

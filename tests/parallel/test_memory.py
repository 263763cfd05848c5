"""Attack processes and memory: how many fit, and what a killed one leaves behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from fdaudit.errors import UsageError
from fdaudit.isolation.attacker import ENDED, KILLED, Attacker
from fdaudit.parallel import memory


@pytest.fixture(autouse=True)
def read_anew() -> Iterator[None]:
    memory.budget.cache_clear()
    yield
    memory.budget.cache_clear()


@pytest.mark.parametrize(("asked", "processes"), [("0.5", 1), ("2", 1), ("4.1", 2), ("9", 4)])
def test_the_variable_sets_how_many_processes_fit(
    asked: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(memory.VARIABLE, asked)
    assert memory.fitting() == processes


def test_by_default_most_of_what_is_free_counts_and_a_container_s_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(memory.VARIABLE, raising=False)
    monkeypatch.setattr(memory, "_available", lambda: 20_000_000_000)
    monkeypatch.setattr(memory, "_left_in_group", lambda: None)
    assert memory.budget() == pytest.approx(16)
    memory.budget.cache_clear()
    monkeypatch.setattr(memory, "_left_in_group", lambda: 5_000_000_000)
    assert memory.fitting() == 2


def test_where_nothing_is_known_memory_sets_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(memory.VARIABLE, raising=False)
    monkeypatch.setattr(memory, "_available", lambda: None)
    monkeypatch.setattr(memory, "_left_in_group", lambda: None)
    assert memory.fitting() > 1000


@pytest.mark.parametrize("asked", ["8 GB", "0", "-1", "inf", "nan"])
def test_a_size_that_is_none_is_refused(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(memory.VARIABLE, asked)
    with pytest.raises(UsageError, match="FDAUDIT_MEMORY"):
        memory.fitting()


@pytest.mark.parametrize(
    ("program", "said"),
    [("import os; os.kill(os.getpid(), 9)", KILLED), ("import sys; sys.exit(3)", ENDED)],
)
def test_a_killed_process_is_told_from_one_that_ended(program: str, said: str) -> None:
    gone = Attacker.__new__(Attacker)
    gone._process = subprocess.Popen([sys.executable, "-c", program])
    gone._process.wait()
    assert gone._ending() == said

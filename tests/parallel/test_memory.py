"""Attack processes and memory: how many fit, and what a killed one leaves behind."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fdaudit.errors import UsageError
from fdaudit.isolation.attacker import ENDED, KILLED, Attacker
from fdaudit.parallel import malloc, memory


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


@pytest.mark.parametrize(("free", "processes"), [(1e9, 1), (24e9, 4), (140e9, 28)])
def test_the_free_memory_of_a_gpu_sets_how_many_processes_share_it(
    free: float, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.fitting_on.cache_clear()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free), 150_000_000_000))
    assert memory.fitting_on("cuda:1") == processes
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 0))
    assert memory.fitting_on("cuda:1") == processes, "a run keeps the same pool"
    assert memory.fitting_on("cpu") > 1000
    memory.fitting_on.cache_clear()


def test_files_that_the_system_keeps_ready_are_not_taken_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (
        ("memory.max", "4000000000"),
        ("memory.current", "3900000000"),
        ("memory.stat", "anon 500000000\nfile 3400000000\ninactive_file 3000000000\n"),
    ):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "_GROUPS", ((str(tmp_path), *memory._GROUPS[0][1:]),))
    assert memory._left_in_group() == 3_100_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="no limit on data")
@pytest.mark.skipif(any(Path(p).exists() for p in memory._ACCELERATORS), reason="no ceiling here")
def test_a_command_that_takes_more_than_it_may_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind all forecasts: what no forecast counted ends the command, and not the machine."""
    greedy = "import fdaudit.cli.app as it; it.app = lambda **_: bytearray(1 << 32); it.main()"
    monkeypatch.setenv(memory.VARIABLE, "0.5")
    done = subprocess.run([sys.executable, "-c", greedy], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "not enough memory" in done.stderr
    assert done.stderr.count("\n") == 1


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


# -- memory that tensors free --------------------------------------------------------------------------------------


CODE = """
import json, resource, sys, torch
from pathlib import Path
from fdaudit.parallel import malloc as heap

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def step():
    a = torch.ones(16 << 20)  # 64 MB
    return (a + a * 2).sum()

def vast():
    torch.empty(320 << 20)[:: 1 << 18] = 1  # 1.25 GiB, of which 5 MiB are touched

kept = heap.keep() if sys.argv[1] == "keep" else None
torch.set_num_threads(1)
for _ in range(15):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
for _ in range(15):
    vast()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    vast()
of_vast = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
held = resident()
heap.give_back()
print(json.dumps({"kept": kept, "faults": faults, "of_vast": of_vast, "returned": held - resident()}))
"""


def measured(how: str, **variables: str) -> dict[str, int]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", CODE, how], env={**own, **variables}, stdout=subprocess.PIPE, check=True
    )
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.thorough
def test_kept_memory_is_not_faulted_in_again() -> None:
    without, kept = measured("leave"), measured("keep")
    assert kept["kept"] is True
    for faults in ("faults", "of_vast"):
        # Where the heap lies differs between processes, and with it whether a late block still finds a gap too small.
        assert kept[faults] < without[faults] / 2, "whatever a block's size"
        assert without[faults] > 1000
    assert without["returned"] < 16 << 20
    assert kept["returned"] > 48 << 20, "what is given back is the operating system's"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.thorough
def test_the_user_s_own_settings_stand() -> None:
    found = measured("keep", MALLOC_MMAP_THRESHOLD_="131072")
    assert found["kept"] is False
    assert found["faults"] > 1000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(malloc, "_glibc", lambda: None)
    assert malloc.keep() is False
    malloc.give_back()

"""Memory that tensors free: kept where that is asked for, given back when it is; the user's own settings stand."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

from fdaudit.parallel import malloc

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")

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


@pytest.mark.thorough
def test_the_user_s_own_settings_stand() -> None:
    found = measured("keep", MALLOC_MMAP_THRESHOLD_="131072")
    assert found["kept"] is False
    assert found["faults"] > 1000


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(malloc, "_glibc", lambda: None)
    assert malloc.keep() is False
    malloc.give_back()

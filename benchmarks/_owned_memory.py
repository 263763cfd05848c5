"""Memory that the machine owns before it is needed.

A virtual machine's host provides memory on first touch, at seconds a gibibyte, and takes idle memory back. Growing
processes pay for it, and small ones find pages that were just freed. `owned()` makes such a machine behave like
one that owns its memory: another process touches and holds all of it, and releases a block when little is left free.
"""

from __future__ import annotations

import mmap
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

_BLOCK = 2**28
_LEFT = 2**30
"""Bytes that stay free."""


def free() -> int:
    """Return the bytes that no process and no cache holds."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemFree:"):
            return 1024 * int(line.split()[1])
    raise SystemExit("/proc/meminfo does not say how much memory is free")


def _hold() -> None:
    """Hold all free memory except `_LEFT`, then take and release blocks so that about as much stays free, for ever."""
    held = list[mmap.mmap]()
    told = False
    while True:
        left = free()
        if left > _LEFT + 2 * _BLOCK:
            held.append(mmap.mmap(-1, _BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            np.frombuffer(held[-1], np.uint8)[:: mmap.PAGESIZE] = 1
        elif held and left < _LEFT:
            held.pop().close()
        else:
            if not told:
                print(len(held) * _BLOCK, flush=True)
                told = True
            time.sleep(0.005)


@contextmanager
def owned() -> Iterator[int]:
    """Hold free memory during the block, so that the host has provided it; yield the bytes held at the start."""
    beside = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
    assert beside.stdout is not None
    try:
        yield int(beside.stdout.readline())
    finally:
        beside.kill()
        beside.wait()


if __name__ == "__main__":
    _hold()

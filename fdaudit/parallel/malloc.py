"""What the C library does with memory that tensors free.

glibc maps every block of more than 32 MB anew and returns it when it is freed, and the free end of its heap with it:
the next step of a training faults the same pages in again, one by one, which can take longer than the step's
arithmetic. `keep` has the process hold what was freed until it ends or calls `give_back`. Highest memory stays what it
was but for fragments. Where the C library is another one, or the user has set its options, nothing is changed.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache

__all__ = ["give_back", "keep"]

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Numbers of `mallopt`'s options, from glibc's `malloc.h`."""
_NEVER, _NONE = -1, 0


def keep() -> bool:
    """From now on, freed memory is kept for the next tensors; whether that could be arranged."""
    libc = _glibc()
    if libc is None or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    kept: int = libc.mallopt(_TRIM_THRESHOLD, _NEVER) and libc.mallopt(_MMAP_MAX, _NONE)
    return bool(kept)


def give_back() -> None:
    """Returns what is free now to the operating system: before a process waits while others work."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None

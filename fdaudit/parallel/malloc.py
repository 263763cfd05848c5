"""Control of the C library's allocator, so that freed tensor memory is reused.

glibc maps every block of more than 32 MB separately and unmaps it when it is freed. It also trims the free end of its
heap. The next training step then faults the same pages in again, which can take longer than the step's arithmetic.
`keep` makes the process hold freed memory until it ends or calls `give_back`. Peak memory stays the same except for
fragmentation. Nothing changes with another C library, or when the user has set allocator options.
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
    """Keep freed memory for later tensors. Return whether the C library accepted this setting."""
    libc = _glibc()
    if libc is None or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    accepted: int = libc.mallopt(_TRIM_THRESHOLD, _NEVER) and libc.mallopt(_MMAP_MAX, _NONE)
    return bool(accepted)


def give_back() -> None:
    """Return free memory to the operating system. Call this before the process waits for others."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None

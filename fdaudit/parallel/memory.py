"""The memory that may be used: how many attack processes fit, whether a file may be read, and where a command ends.

The number of processes decides how long cells take, never their outcome.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from fdaudit.errors import UsageError

__all__ = ["VARIABLE", "budget", "fitting", "fitting_on", "refuse_forecast", "set_ceiling"]

VARIABLE = "FDAUDIT_MEMORY"
"""Gigabytes that attack processes may take together."""
_NEED = 2.0
"""Gigabytes for one attack at a time: its process, that of the cell, and an attack on images of 92x112."""
_NEED_ON_DEVICE = 4.0
"""Gigabytes of a GPU for one attack at a time. An assumption: its process and that of the cell load CUDA, and a chunk
of an inversion holds about ten tensors of 2^25 values."""
_SHARE = 0.8
"""Share of the free memory that is used by default."""
_GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Where a container's limit stands, in both versions: the folder, and names of limit, use and files kept ready."""
_ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd")
"""Devices of CUDA and ROCm."""


@cache
def budget() -> float | None:
    """Return the memory for attack processes in gigabytes: the variable's, else most of what is free; None if unknown.

    It is read once in a process, so that a run keeps the same pool of processes.

    Raises:
        UsageError: the variable is no positive number.
    """
    text = os.environ.get(VARIABLE)
    if text:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise UsageError(VARIABLE, text, "is no size", "Give gigabytes, such as 8, or unset it.")
        return value
    sizes: list[int] = []
    for size in (_available(), _left_in_group()):
        if size is not None:
            sizes.append(size)
    return _SHARE * min(sizes) / 1e9 if sizes else None


def fitting() -> int:
    """Return how many attack processes fit in the budget; at least one."""
    room = budget()
    return max(1, int(room / _NEED)) if room is not None else 1 << 16


@cache
def fitting_on(device: str) -> int:
    """Return how many attack processes fit in the free memory of a CUDA device; at least one. Any number fits on a CPU.

    It is read once in a process, so that a run keeps the same pool of processes.
    """
    if not device.startswith("cuda"):
        return 1 << 16
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return max(1, int(_SHARE * free / 1e9 / _NEED_ON_DEVICE))


def refuse_forecast(field: str, value: object, need: int) -> None:
    """Refuse what would take more memory than may be used. Call it once sizes are known, before memory is taken.

    Args:
        field: what was given: a file, or a field of one.
        value: its value.
        need: an estimate of the bytes, all copies included.

    Raises:
        UsageError: the bytes exceed the budget.
    """
    room = budget()
    if room is not None and need > room * 1e9:
        problem = f"needs about {need / 1e9:.1f} GB of memory, and at most {room:.1f} GB are used"
        remedy = f"Set {VARIABLE} to more gigabytes if the machine has them."
        raise UsageError(field, value, problem, remedy)


def set_ceiling() -> None:
    """Let no more memory be taken than may be used: what asks for more gets a `MemoryError`, and the machine lives.

    It stands behind the forecasts. Nothing is set where the system has no such limit, or where an accelerator is:
    its driver maps far more than it uses.

    Raises:
        UsageError: as `budget`.
    """
    room = budget()
    if room is None or sys.platform != "linux" or any(Path(path).exists() for path in _ACCELERATORS):
        return
    import resource

    with suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        mapped = next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmData:"))
        ceiling = mapped + int(room * 1e9)
        resource.setrlimit(
            resource.RLIMIT_DATA, (ceiling if most == resource.RLIM_INFINITY else min(ceiling, most), most)
        )


def _available() -> int | None:
    """Return the bytes that Linux can give without swapping; None on other systems."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return None


def _left_in_group() -> int | None:
    """Return the bytes left to this container, files that can be read again not counted; None without a limit."""
    for folder, most, used, cached in _GROUPS:
        try:
            limit, usage = (int(Path(folder, name).read_text(encoding="ascii")) for name in (most, used))
            lines = Path(folder, "memory.stat").read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):  # no such group, or `max`
            continue
        files = 0
        for line in lines:
            if line.startswith(f"{cached} "):
                files = int(line.split()[1])
                break
        return max(0, limit - usage + files)
    return None

"""Cost of one piece of work and its growth: seconds, share in operators, memory, exponent."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fdaudit.parallel import malloc

__all__ = ["Growth", "Sample", "exponent", "in_operators", "measured"]

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Sample:
    """Cost of a piece of work.

    Attributes:
        seconds: of the processor, in this process and those it started, the better of two.
        megabytes: peak resident memory while it ran, above the memory before.
    """

    seconds: float
    megabytes: float


@dataclass(frozen=True)
class Growth:
    """Samples along one axis.

    Attributes:
        operators: share of the time in PyTorch's operators, at the smallest size.
    """

    stage: str
    axis: str
    sizes: tuple[float, ...]
    samples: tuple[Sample, ...]
    operators: float

    def row(self) -> list[str]:
        """Return one line of the table: stage, axis, sizes, seconds, exponent, share in operators, memory."""
        slope, residual = exponent(self.sizes, [s.seconds for s in self.samples])
        return [
            self.stage,
            self.axis,
            ", ".join(f"{size:g}" for size in self.sizes),
            ", ".join(f"{s.seconds:.3g}" for s in self.samples),
            f"{slope:.2f} ± {residual:.2f}",
            f"{self.operators:.0%}",
            f"{max(s.megabytes for s in self.samples):.0f}",
        ]


def measured(make: Callable[[], Callable[[], object]]) -> Sample:
    """Measure the function that `make` returns; `make` is called again for each of two times, unmeasured."""
    work = make()
    malloc.give_back()
    before = _memory("VmRSS")
    _RESET.write_text("5")
    seconds = [_timed(work)]
    megabytes = max(0.0, _memory("VmHWM") - before)
    seconds.append(_timed(make()))
    return Sample(min(seconds), megabytes)


def in_operators(make: Callable[[], Callable[[], object]]) -> float:
    """Return the operators' share of the time, under PyTorch's profiler, which slows everything else a little."""
    from torch.profiler import ProfilerActivity, profile

    work = make()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        whole = _timed(work)
    inside = sum(e.self_cpu_time_total for e in seen.key_averages() if e.key.startswith("aten::")) / 1e6
    return min(1.0, inside / whole)


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the slope of log time over log size by least squares, and its standard error."""
    x, y = torch.tensor(sizes).double().log(), torch.tensor(seconds).double().log()
    dx = x - x.mean()
    slope = float((dx * y).sum() / dx.square().sum())
    left = y - y.mean() - slope * dx
    return slope, math.sqrt(float(left.square().sum()) / (len(x) - 2) / float(dx.square().sum()))


def _timed(work: Callable[[], object]) -> float:
    start = _processor()
    work()
    return _processor() - start


def _processor() -> float:
    """Return the processor seconds of this process and of all that descend from it."""
    seconds = dict[int, float]()
    parents = dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        number = int(path.parent.name)
        parents[number] = int(fields[1])
        seconds[number] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total, queue = 0.0, [os.getpid()]
    while queue:
        number = queue.pop()
        total += seconds.get(number, 0.0)
        queue += [child for child, parent in parents.items() if parent == number]
    return total


def _memory(field: str) -> float:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024

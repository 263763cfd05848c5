"""How training runs on this machine, chosen by rule: device, threads, strategy, memory format."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from fdaudit.parallel import malloc
from fdaudit.parallel.pool import processors

__all__ = ["Execution"]

_WORTH_THREADS = 8e5


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How training runs; part of the resolved spec because it changes bits.

    Several jobs of a `loop` on a CPU get one of the `threads` each; a single job has as many as are `inside`
    its operations.
    """

    device: str
    threads: int
    strategy: Literal["loop", "stacked"]
    memory_format: Literal["contiguous", "channels_last"]
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    inside: int = 1

    @property
    def described(self) -> dict[str, str | int | bool]:
        """All that may change bits, as JSON values."""
        return dict(vars(self))

    @property
    def settings(self) -> dict[str, str | int | bool]:
        """What a spec says of it: all but what follows from the networks."""
        return {name: value for name, value in self.described.items() if name != "inside"}

    def begin(self) -> None:
        """Makes this process ready to train so: threads, deterministic operations, freed memory kept."""
        torch.set_num_threads(self.inside)
        torch.use_deterministic_algorithms(True, warn_only=True)
        malloc.keep()

    @classmethod
    def resolve(
        cls,
        *,
        device: str = "auto",
        threads: int | None = None,
        strategy: str = "auto",
        memory_format: str = "auto",
        precision: str = "auto",
        compile: bool = False,
        convolutions: bool,
        batchnorm: bool,
        work: float = math.inf,
    ) -> Execution:
        """Fills in what is left to fdaudit, by rule.

        Device: CUDA where there is one. Threads: the processor count, at most 8. Strategy: `stacked` on CUDA,
        `loop` on a CPU (grouped convolutions make stacked CNN clients about twice as slow there) and wherever
        BatchNorm keeps running statistics. Memory format: `channels_last` for convolutions under `loop`, which
        takes a third off small CNNs' time. Inside operations: all threads where `work`, the floating-point operations
        of a forward pass for one image of the largest network, is 800,000 or more; below it threads wait for each
        other longer than they work. `benchmarks/training_strategy.py` measures all three again. Precision: float32,
        since nobody has measured what bfloat16 costs in accuracy. What cannot be compiled here is not, with a warning.
        """
        chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        if strategy == "auto":
            strategy = "stacked" if chosen.startswith("cuda") and not batchnorm else "loop"
        if memory_format == "auto":
            memory_format = "channels_last" if convolutions and strategy == "loop" else "contiguous"
        threads = threads or processors()
        return cls(
            device=chosen,
            threads=threads,
            strategy="stacked" if strategy == "stacked" else "loop",
            memory_format="channels_last" if memory_format == "channels_last" else "contiguous",
            precision="bfloat16" if precision == "bfloat16" else "float32",
            compile=compile and _can_compile(chosen),
            inside=threads if work >= _WORTH_THREADS else 1,
        )


def _can_compile(device: str) -> bool:
    """Whether `torch.compile` works here; where it does not, a warning says why."""
    why = _why_not(device)
    if why:
        warnings.warn(f"compile: goes on without, since torch.compile fails here ({why}).", stacklevel=3)
    return not why


@cache
def _why_not(device: str) -> str:
    """What goes wrong when something small is compiled; empty where nothing does."""
    try:
        torch.compile(lambda x: (x * 2).relu())(torch.ones(8, device=device))
    except Exception as error:  # of the compiler, of its own compiler, or of the operating system
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return ""

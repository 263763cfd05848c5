"""Execution settings of training on this machine, chosen by rule: device, threads, strategy, memory format."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from fdaudit.parallel import malloc
from fdaudit.parallel.pool import processors

__all__ = ["Execution", "Precision", "default_device"]

Precision = Literal["float32", "tf32", "bfloat16"]
"""How training rounds: IEEE single precision, products of inputs rounded to TF32, or mixed precision."""

_PRECISIONS: dict[str, Precision] = {"tf32": "tf32", "bfloat16": "bfloat16"}
_WORTH_THREADS = 8e5
_WORTH_DEVICE = 1e6
"""Floating-point operations of a forward pass below which `auto` stays on the CPU. An assumption: no GPU was measured.
A step of 32 images of such a network takes a CPU core 7 ms, and each of up to eight cores trains a client. A GPU may
need a millisecond to start the operations of a step. `benchmarks/accelerator.py` measures where they cross."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Execution settings of training. They are part of the resolved spec because they change bits.

    Several jobs of a `loop` on a CPU get one of the `threads` each. A single job uses `inside` threads within its
    operations.
    """

    device: str
    threads: int
    strategy: Literal["loop", "stacked"]
    memory_format: Literal["contiguous", "channels_last"]
    precision: Precision = "float32"
    compile: bool = False
    inside: int = 1

    @property
    def described(self) -> dict[str, str | int | bool]:
        """Return everything that may change bits, as JSON values."""
        return dict(vars(self))

    @property
    def settings(self) -> dict[str, str | int | bool]:
        """Return the settings that belong in a spec: those that do not follow from the networks."""
        settings = self.described
        del settings["inside"]
        return settings

    def begin(self) -> None:
        """Set up this process for training: threads, deterministic operations, rounding, freed memory kept."""
        torch.set_num_threads(self.inside)
        if self.device.startswith("cuda"):
            # Without this, PyTorch rounds the inputs of convolutions to TF32, but not those of matrix products.
            torch.backends.cudnn.allow_tf32 = self.precision == "tf32"
            torch.backends.cuda.matmul.allow_tf32 = self.precision == "tf32"
        if self.compile:
            torch.use_deterministic_algorithms(True, warn_only=True)
        else:
            # The same, but it does not load the compiler to tell it so.
            torch.set_deterministic_debug_mode("warn")
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
        stackable: bool = True,
        contiguous_only: bool = False,
        work: float = math.inf,
    ) -> Execution:
        """Choose the settings that the spec leaves open, by rule.

        Device: CUDA if available and `work` is at least a million. Threads: the processor count, at most 8. Strategy:
        `stacked` on CUDA; `loop` on a CPU, where grouped convolutions make stacked CNN clients about twice as slow, or
        if a network does not stack.
        Memory format: `channels_last` for convolutions under `loop`, which makes small CNNs a third faster, unless a
        network runs on contiguous images only (`x.view` after a convolution).
        Inside operations: all threads if `work`, the floating-point operations of a forward pass for one image of the
        largest network, is at least 800,000. Below that threads wait for each other longer than they work.
        `benchmarks/training_strategy.py` measures all three again. Precision: float32. If compiling fails here, it is
        skipped with a warning.
        """
        chosen = default_device(lambda: work) if device == "auto" else device
        if strategy == "auto":
            strategy = "stacked" if chosen.startswith("cuda") and stackable else "loop"
        if memory_format == "auto":
            last = convolutions and strategy == "loop" and not contiguous_only
            memory_format = "channels_last" if last else "contiguous"
        threads = threads or processors()
        return cls(
            device=chosen,
            threads=threads,
            strategy="stacked" if strategy == "stacked" else "loop",
            memory_format="channels_last" if memory_format == "channels_last" else "contiguous",
            precision=_PRECISIONS.get(precision, "float32"),
            compile=compile and _can_compile(chosen),
            inside=threads if work >= _WORTH_THREADS else 1,
        )


def default_device(work: Callable[[], float]) -> str:
    """Return the device that `auto` stands for: CUDA if available, but the CPU for small networks.

    Args:
        work: returns the floating-point operations of a forward pass of the largest network; called only if CUDA is
            available.
    """
    return "cuda" if torch.cuda.is_available() and work() >= _WORTH_DEVICE else "cpu"


def _can_compile(device: str) -> bool:
    """Return whether `torch.compile` works here; warn with the reason if it does not."""
    why = _why_not(device)
    if why:
        warnings.warn(f"compile: goes on without, since torch.compile fails here ({why}).", stacklevel=3)
    return not why


@cache
def _why_not(device: str) -> str:
    """Return the error of compiling a small function, or an empty string."""
    try:
        torch.compile(lambda x: (x * 2).relu())(torch.ones(8, device=device))
    except Exception as error:  # of the compiler, of its own compiler, or of the operating system
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return ""

"""The training core's copies of a network, and the properties that decide how each may be trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fdaudit.training.execution import Execution
from fdaudit.training.jobs import Parameters

__all__ = ["Copy", "Traits"]

_PIXELS = 100_000
"""Pixels of the images that a CPU with `channels_last` convolutions processes fastest at once: values between layers
stay in its caches. `benchmarks/training_strategy.py` measures it again."""


class Copy:
    """A copy of a network for one thread, with its floating-point parameters and buffers by name.

    Args:
        module: the network.
        compiled: whether its forward pass is compiled.
    """

    def __init__(self, module: nn.Module, compiled: bool = False) -> None:
        self.module = module
        self.forward: Callable[[Tensor], Tensor] = torch.compile(module) if compiled else module
        self.named = {n: t for n, t in module.state_dict(keep_vars=True).items() if t.is_floating_point()}

    def load(self, parameters: Mapping[str, Tensor]) -> None:
        """Load parameters and buffers."""
        with torch.no_grad():
            for name, tensor in self.named.items():
                tensor.copy_(parameters[name])

    def unload(self) -> Parameters:
        """Return contiguous copies of parameters and buffers."""
        return {n: t.detach().clone(memory_format=torch.contiguous_format) for n, t in self.named.items()}


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Properties of a network that decide which training strategies can run it.

    Attributes:
        random: a pass in training draws from a global generator.
        compiled: its forward pass is compiled, for one shape at a time.
        stackable: many models may be trained as one under `vmap`, which can neither give each model its own seed nor
            update statistics in place.
        coupled: a batch's loss is not the mean of its parts' losses.
        cached: small parts of a batch run faster than the whole batch.
    """

    random: bool
    compiled: bool
    stackable: bool
    coupled: bool
    cached: bool

    @classmethod
    def of(cls, module: nn.Module, execution: Execution, *, random: bool) -> Traits:
        """Return the properties of a network; `random` was found by trial."""
        modules = list(module.modules())
        norms = [m for m in modules if isinstance(m, _BatchNorm)]
        on_processor = torch.device(execution.device).type == "cpu"
        return cls(
            random=random,
            compiled=execution.compile and not random,  # what is compiled draws otherwise
            stackable=not random and not any(m.track_running_stats for m in norms),
            coupled=random or bool(norms),
            cached=on_processor
            and execution.memory_format == "channels_last"
            and any(isinstance(m, nn.Conv2d) for m in modules),
        )

    def parts(self, records: int, x: Tensor) -> int:
        """Return the number of parts into which a step splits a batch of `records` images like `x` (n, c, h, w)."""
        return 1 if self.coupled or self.compiled else max(1, round(records / self.at_once(x)))

    def at_once(self, x: Tensor) -> float:
        """Return the number of images like `x` (n, c, h, w) that run fastest together; infinity for whole batches."""
        return max(1.0, _PIXELS // math.prod(x.shape[2:])) if self.cached else math.inf

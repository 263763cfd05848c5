"""An architecture around a test's own network."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch
from torch import Tensor, nn

from fdaudit.parallel.randomness import seeded_randomness

_numbers = count()


class NetworkDouble:
    """Builds what `make` makes, for images of `shape`; no two doubles are the same network."""

    source = ""

    def __init__(self, make: Callable[[], nn.Module], shape: tuple[int, ...] = (1, 8, 8)) -> None:
        self.make, self.shape = make, shape
        self.described = {"name": "double", "number": next(_numbers)}

    def build(self, generator: torch.Generator) -> nn.Module:
        with seeded_randomness(int(torch.randint(2**31, (), generator=generator))):
            return self.make()

    def random_inputs(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.rand(n, *self.shape, generator=generator)

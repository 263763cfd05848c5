"""Images that a network learns within a few rounds; benchmarks need no data."""

from __future__ import annotations

import torch
from torch import Tensor

from fdaudit.rng import child

SHAPE, CLASSES = (1, 28, 28), 10


def patterned(y: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Return noise around each label's pattern of 7 x 7 black or white squares, (n,) to (n, 1, 28, 28) in [0, 1]."""
    patterns = torch.rand(CLASSES, 1, 7, 7, generator=child(0, "patterns")).round()
    patterns = patterns.repeat_interleave(4, 2).repeat_interleave(4, 3)
    return (patterns[y] + noise * torch.randn(len(y), *SHAPE, generator=generator)).clamp(0, 1)

"""The structure of every network in the zoo (an extractor, then a head), and helpers to build networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from fdaudit.parallel.randomness import seeded_randomness

__all__ = ["Network", "feature_width", "group_norm", "seed_from", "seeded"]

M = TypeVar("M", bound=nn.Module)


class Network(nn.Module):
    """Maps images (n, c, h, w) to logits (n, classes) by way of features (n, d).

    Guarantees:
      * works under `torch.func.functional_call` and `vmap`: no in-place activation, no control flow on values
        (BatchNorm excepted, whose running statistics `vmap` cannot update).

    Attributes:
        extractor: images to features (n, d). Convolutional networks: all before the first fully connected
            layer. Multilayer perceptrons: all before the last.
        head: features to logits.
    """

    def __init__(self, extractor: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head

    def features(self, x: Tensor) -> Tensor:
        """Return features (n, d) of images (n, c, h, w)."""
        return cast(Tensor, self.extractor(x))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes) of images (n, c, h, w)."""
        return cast(Tensor, self.head(self.extractor(x)))


def feature_width(extractor: nn.Module, input_shape: tuple[int, ...], *, text: bool = False) -> int:
    """Return the number d of features that `extractor` computes, on any device, from one image of `input_shape`.

    Args:
        extractor: the network's first part.
        input_shape: (c, h, w) of an image, or (L,) of a text.
        text: whether it reads token numbers.

    Raises:
        RuntimeError: the image is too small for the layers.
    """
    weight = next(extractor.parameters(), None)
    dtype = torch.int64 if text else torch.float32
    record = torch.zeros(1, *input_shape, dtype=dtype, device=None if weight is None else weight.device)
    with torch.no_grad():
        return int(extractor(record).shape[1])


def group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm in at most 32 groups (Wu and He 2018) of at least 4 channels."""
    groups = max(g for g in range(1, 33) if channels % g == 0 and (g == 1 or channels // g >= 4))
    return nn.GroupNorm(groups, channels)


def seed_from(generator: torch.Generator) -> int:
    """Return a seed for initial weights: one draw from `generator`."""
    return int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))


def seeded(seed: int, make: Callable[[], M]) -> M:
    """Return what `make` builds, with initial weights drawn from `seed`.

    Guarantees:
      * equal seeds give equal weights, independent of the global random state;
      * the global random state stays as it was, on every device.
    """
    with seeded_randomness(seed):
        return make()

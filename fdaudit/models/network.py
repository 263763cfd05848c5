"""The shape every network of the zoo has: an extractor, then a head."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

__all__ = ["Network", "feature_width"]


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
        """Features (n, d) of images (n, c, h, w)."""
        return cast(Tensor, self.extractor(x))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes) of images (n, c, h, w)."""
        return cast(Tensor, self.head(self.extractor(x)))


def feature_width(extractor: nn.Module, input_shape: tuple[int, int, int]) -> int:
    """How many features d `extractor` makes of one image of `input_shape`.

    Raises:
        RuntimeError: the image is too small for the layers.
    """
    with torch.no_grad():
        return int(extractor(torch.zeros(1, *input_shape)).shape[1])

"""A small U-Net: one answer for each pixel (Ronneberger, Fischer and Brox 2015)."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.config import Config
from fdaudit.models.network import group_norm

__all__ = ["UNet", "UnetParams", "unet"]


class UnetParams(Config):
    """An encoder and a decoder with skip connections."""

    width: int = Field(default=16, ge=8, le=1024)
    """Channels of the first level; each level below has twice as many. With fewer than 8, oneDNN 3.12 (in PyTorch 2.14)
    writes outside its memory on processors without AVX-512."""

    depth: int = Field(default=3, ge=1, le=6)
    """Number of times that the encoder halves height and width."""


class UNet(nn.Module):
    """Maps images (n, c, h, w) to logits (n, C, h, w).

    A level is two 3x3 convolutions, each followed by GroupNorm and ReLU. The encoder halves its maps by max-pooling.
    The decoder doubles them to the nearest pixel, halves the channels by a 1x1 convolution, and joins the encoder's
    maps of that level. Unlike the paper's, convolutions are padded, so that every pixel has an answer, and norms do not
    mix the records of a batch.

    Args:
        channels: c of an image.
        classes: number of classes C.
        width: channels of the first level.
        depth: number of halvings.
    """

    def __init__(self, channels: int, classes: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        above = [channels, *widths[:-1]]
        upwards = list(reversed(widths[:-1]))
        self.encoder = nn.ModuleList(map(_level, above, widths))
        self.narrow = nn.ModuleList(nn.Conv2d(2 * w, w, 1) for w in upwards)
        self.decoder = nn.ModuleList(_level(2 * w, w) for w in upwards)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, C, h, w)."""
        levels = []
        for number, level in enumerate(self.encoder):
            x = level(x if number == 0 else F.max_pool2d(x, 2))
            levels.append(x)
        for narrow, level, skipped in zip(self.narrow, self.decoder, reversed(levels[:-1]), strict=True):
            x = narrow(F.interpolate(x, scale_factor=2.0, mode="nearest"))
            x = level(torch.cat([skipped, x], -3))
        logits: Tensor = self.head(x)
        return logits


def unet(params: UnetParams, input_shape: tuple[int, ...], classes: int) -> UNet:
    """Return a U-Net for images (c, h, w), whose sides must be multiples of 2^depth.

    Raises:
        ValueError: a side is no such multiple.
    """
    channels, height, width = input_shape
    unit = 2**params.depth
    if height % unit or width % unit:
        raise ValueError(f"sides must be multiples of {unit} for depth {params.depth}")
    return UNet(channels, classes, params.width, params.depth)


def _level(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1, bias=False),
        group_norm(outside),
        nn.ReLU(),
        nn.Conv2d(outside, outside, 3, padding=1, bias=False),
        group_norm(outside),
        nn.ReLU(),
    )

"""Resize images to one square size without inventing detail."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["fit", "fit_masks", "to_unit"]


def to_unit(x: Tensor) -> Tensor:
    """Return images as float32 in [0, 1]: uint8 is divided by 255, floats keep their values."""
    unit = x.to(torch.float32)
    return unit / 255.0 if x.dtype == torch.uint8 else unit


def fit(x: Tensor, size: int) -> Tensor:
    """Return images (n, c, h, w) as float32 (n, c, size, size).

    Smaller images are centred and zero-padded (an odd row or column goes below and to the right). Larger images are
    first shrunk with the same aspect ratio, bilinearly with antialiasing.

    Args:
        x: uint8, or float in [0, 1].
        size: the side, in pixels.
    """
    x = to_unit(x)
    if small := _shrunk(x, size):
        x = F.interpolate(x, small, mode="bilinear", antialias=True, align_corners=False).clamp(0.0, 1.0)
    return _padded(x, size)


def fit_masks(masks: Tensor, size: int) -> Tensor:
    """Return masks (n, h, w) of whole numbers as (n, size, size), moved like the images that `fit` makes.

    A shrunk mask has at each pixel the nearest number: numbers are never mixed. What is padded is background, 0.
    """
    if small := _shrunk(masks, size):
        masks = F.interpolate(masks[:, None].double(), small, mode="nearest-exact")[:, 0].to(masks.dtype)
    return _padded(masks, size)


def _shrunk(x: Tensor, size: int) -> tuple[int, int] | None:
    """Return the height and width of images that are too large, after shrinking; None for others."""
    height, width = x.shape[-2:]
    longer = max(height, width)
    if longer <= size:
        return None
    return max(1, round(height * size / longer)), max(1, round(width * size / longer))


def _padded(x: Tensor, size: int) -> Tensor:
    height, width = x.shape[-2:]
    top, left = (size - height) // 2, (size - width) // 2
    return F.pad(x, (left, size - width - left, top, size - height - top))

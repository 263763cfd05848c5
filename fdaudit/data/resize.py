"""Resize images to one square size without inventing detail."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["fit", "to_unit"]


def to_unit(x: Tensor) -> Tensor:
    """Return images as float32 in [0, 1]: uint8 is divided by 255, floats keep their values."""
    return x.to(torch.float32) / 255.0 if x.dtype == torch.uint8 else x.to(torch.float32)


def fit(x: Tensor, size: int) -> Tensor:
    """Return images (n, c, h, w) as float32 (n, c, size, size).

    Smaller images are centred and zero-padded (an odd row or column goes below and to the right). Larger images are
    first shrunk with the same aspect ratio, bilinearly with antialiasing.

    Args:
        x: uint8, or float in [0, 1].
        size: the side, in pixels.
    """
    x = to_unit(x)
    height, width = x.shape[-2:]
    longer = max(height, width)
    if longer > size:
        small = (max(1, round(height * size / longer)), max(1, round(width * size / longer)))
        x = F.interpolate(x, small, mode="bilinear", antialias=True, align_corners=False).clamp(0.0, 1.0)
        height, width = small
    top, left = (size - height) // 2, (size - width) // 2
    return F.pad(x, (left, size - width - left, top, size - height - top))

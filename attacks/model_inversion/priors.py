"""Starting images of inversions: class means, mixtures of auxiliary images, augmented copies."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from ..gradient_inversion.composition import class_means

__all__ = ["augmented", "centres", "composites", "total_variation"]

_TURN, _ZOOM, _SHIFT = 10.0, 0.1, 0.1
"""Largest turn in degrees, zoom as a share of the size, and shift as a share of half the size."""


def centres(auxiliary: tuple[Tensor, Tensor] | None, classes: int, shape: tuple[int, ...]) -> Tensor:
    """Return the expected image of each class before the model is used, (C, c, h, w).

    It is the mean auxiliary image of the class. For a class without auxiliary images it is the mean of all auxiliary
    images, and without any it is black.
    """
    if auxiliary is None or not len(auxiliary[1]):
        return torch.zeros(classes, *shape)
    return class_means(auxiliary, classes)


def composites(x: Tensor, n: int, noise: float, generator: torch.Generator) -> Tensor:
    """Return images (n, c, h, w) in [0, 1] that join two of x (N, c, h, w) along a soft straight line, plus noise.

    Joined strokes form shapes that no image of x has. A model thus answers with classes that x may lack.

    Args:
        x: images to join.
        n: number of images.
        noise: standard deviation.
        generator: draws pairs, lines and noise.
    """
    one = x[torch.randint(len(x), (n,), generator=generator)]
    other = x[torch.randint(len(x), (n,), generator=generator)]
    h, w = x.shape[-2:]
    down, across = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
    angle = 2 * math.pi * torch.rand(n, 1, 1, generator=generator)
    offset = torch.rand(n, 1, 1, generator=generator) - 0.5
    share = (3 * (angle.cos() * across + angle.sin() * down - offset)).sigmoid()[:, None].to(x)
    mixed = share * one + (1 - share) * other
    return (mixed + noise * torch.randn(mixed.shape, generator=generator)).clamp(0, 1)


def augmented(x: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Return copies of images (n, c, h, w), each slightly turned, zoomed and shifted, with noise; differentiable.

    Args:
        x: the images.
        noise: standard deviation.
        generator: draws turns, zooms, shifts and noise.
    """
    u = 2 * torch.rand(4, len(x), generator=generator).to(x) - 1
    angle, size = math.radians(_TURN) * u[0], 1 + _ZOOM * u[1]
    down = torch.stack([size * angle.cos(), -size * angle.sin(), _SHIFT * u[2]], 1)
    across = torch.stack([size * angle.sin(), size * angle.cos(), _SHIFT * u[3]], 1)
    grid = F.affine_grid(torch.stack([down, across], 1), list(x.shape), align_corners=False)
    moved = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    return moved + noise * torch.randn(x.shape, generator=generator).to(x)


def total_variation(x: Tensor) -> Tensor:
    """Return the mean squared difference of neighbouring pixels (n,) of images (n, c, h, w)."""
    down, across = x.diff(dim=-2), x.diff(dim=-1)
    return down.square().flatten(1).mean(1) + across.square().flatten(1).mean(1)

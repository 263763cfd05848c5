"""Input gradients of strided convolutions, phase by phase.

Libraries of convolutions are slow at them where channels are few. Here images come apart into phases: with strides of
(2, 2) every second row and of these every second column, four ways. What a kernel sees in one position lies side by
side in each phase, so that a convolution with strides is one without, from phases as channels, whose input gradient is
quick.

Source: Shi et al. 2016, "Real-time single image and video super-resolution using an efficient sub-pixel convolutional
neural network", which puts images together from phases.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .columns import Geometry, Sides

__all__ = ["Phases", "pays"]

_FEW = 16
"""Input channels: with more, libraries of convolutions are quick without phases."""


def pays(kernel: torch.Size, geometry: Geometry, device: torch.device) -> bool:
    """Whether weights (O, c, k, l) are quicker by phases: measured on CPU cores."""
    strided = max(geometry.stride) > 1 and max(geometry.dilation) == 1
    return device.type == "cpu" and strided and kernel[1] <= _FEW


class Phases:
    """Weights (O, c*phases, d, e) over phases, for (O, c, k, l) over images: value y of a side is d's y // stride.

    Args:
        kernel: (O, c, k, l).
        geometry: how it moves, without dilation.
        device: the weights'.

    Attributes:
        kernel: of the weights as they are multiplied.
    """

    def __init__(self, kernel: torch.Size, geometry: Geometry, device: torch.device) -> None:
        (outputs, c, *sides), (down, right) = kernel, geometry.stride
        self._of, self._moves = kernel, geometry
        high, wide = (-(-k // s) for k, s in zip(sides, geometry.stride, strict=True))
        self.kernel = torch.Size([outputs, c * down * right, high, wide])
        beyond = (0, wide * right - sides[1], 0, high * down - sides[0])
        values = torch.arange(sides[0] * sides[1], device=device).view(*sides)
        by_phase = F.pad(values, beyond, value=-1).view(high, down, wide, right).permute(1, 3, 0, 2)
        seen = by_phase.reshape(1, -1)
        self._values, self._within = seen.clamp_min(0), seen >= 0

    def weights(self, flat: Tensor) -> Tensor:
        """Weights (R, O*c*k*l) as they are multiplied, flat; zeros where a kernel has ended."""
        kernels = flat.reshape(-1, self._of[2] * self._of[3])
        found = kernels.gather(1, self._values.expand(len(kernels), -1)).mul_(self._within)
        return found.view(len(flat), -1)

    def over(self, size: Sides) -> tuple[Geometry, Sides]:
        """How they move over the phases of images of this size, and the phases' size: without what is all padding."""
        down, right = self._along(size)
        return Geometry((1, 1), (down.hidden, right.hidden), (1, 1)), (down.seen, right.seen)

    def collapse(self, e: Tensor, size: Sides) -> Tensor:
        """Phases (N, c*phases, rows, columns) as images (N, c, h, w) of this size; zeros where no kernel reaches."""
        down, right = self._along(size)
        filled = e.new_empty if down.covered and right.covered else e.new_zeros
        out = filled(len(e), self._of[1], *size)
        phases = e.view(len(e), self._of[1], len(down.meets), len(right.meets), *e.shape[2:])
        for y, (to_y, from_y) in enumerate(down.meets):
            for x, (to_x, from_x) in enumerate(right.meets):
                out[:, :, to_y, to_x] = phases[:, :, y, x, from_y, from_x]
        return out

    def _along(self, size: Sides) -> Iterator[_Side]:
        """Rows and columns of images of this size."""
        outputs = self._moves.outputs(size, self._of[2:])
        along = zip(self._moves.stride, self._moves.padding, size, outputs, self.kernel[2:], strict=True)
        return itertools.starmap(_side, along)


class _Side(NamedTuple):
    """Rows, or columns.

    Attributes:
        hidden: how many of a phase's values at either end are padding in all phases, so that nobody asks for them.
        seen: how many values kernels see in a phase, without the hidden ones.
        covered: whether kernels reach the last pixel.
        meets: by phase, where its pixels are in the image, and where in the phase.
    """

    hidden: int
    seen: int
    covered: bool
    meets: tuple[tuple[slice, slice], ...]


@cache
def _side(stride: int, padding: int, pixels: int, outputs: int, taps: int) -> _Side:
    """Pixel i of an image with its padding before it is number i // stride of phase i % stride."""
    last, behind = (padding + pixels - 1) // stride, outputs + taps - 1
    hidden = max(0, min(padding // stride, behind - 1 - last))
    seen, meets = behind - 2 * hidden, []
    for phase in range(stride):
        first = (phase - padding) % stride
        at = (first + padding) // stride - hidden
        count = max(0, min(len(range(first, pixels, stride)), seen - at))
        meets.append((slice(first, first + count * stride, stride), slice(at, at + count)))
    return _Side(hidden, seen, last < hidden + seen, tuple(meets))

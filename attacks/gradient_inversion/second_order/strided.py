"""Input gradients of strided convolutions, phase by phase.

Convolution libraries are slow at them with few channels. Here images are split into phases: with strides of (2, 2),
four phases of every second row and column. The pixels under a kernel in one position are adjacent within each phase. A
strided convolution is then one without strides, with phases as channels, whose input gradient is fast.

Source: Shi et al. 2016, "Real-time single image and video super-resolution using an efficient sub-pixel convolutional
neural network", which assembles images from phases.
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
"""Input channels; with more, convolution libraries are fast without phases."""


def pays(kernel: torch.Size, geometry: Geometry, device: torch.device) -> bool:
    """Return whether weights (O, c, k, l) are faster by phases, as measured on CPU cores."""
    strided = max(geometry.stride) > 1 and max(geometry.dilation) == 1
    return device.type == "cpu" and strided and kernel[1] <= _FEW


class Phases:
    """Weights (O, c*phases, d, e) over phases, for (O, c, k, l) over images: value y of a side is d's y // stride.

    Args:
        kernel: (O, c, k, l).
        geometry: its movement, without dilation.
        device: the weights'.

    Attributes:
        kernel: size of the weights in the rearranged form.
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
        """Return weights (R, O*c*k*l) in the rearranged form, flat; zeros beyond a kernel's end."""
        kernels = flat.reshape(-1, self._of[2] * self._of[3])
        found = kernels.gather(1, self._values.expand(len(kernels), -1)).mul_(self._within)
        return found.view(len(flat), -1)

    def over(self, size: Sides) -> tuple[Geometry, Sides]:
        """Return the geometry over the phases of images of this size, and the phases' size without pure padding."""
        down, right = self._along(size)
        return Geometry((1, 1), (down.hidden, right.hidden), (1, 1)), (down.seen, right.seen)

    def collapse(self, e: Tensor, size: Sides) -> Tensor:
        """Return phases (N, c*phases, rows, columns) as images (N, c, h, w) of this size; zeros beyond the kernels."""
        down, right = self._along(size)
        filled = e.new_empty if down.covered and right.covered else e.new_zeros
        out = filled(len(e), self._of[1], *size)
        phases = e.view(len(e), self._of[1], len(down.meets), len(right.meets), *e.shape[2:])
        for y, (to_y, from_y) in enumerate(down.meets):
            for x, (to_x, from_x) in enumerate(right.meets):
                out[:, :, to_y, to_x] = phases[:, :, y, x, from_y, from_x]
        return out

    def _along(self, size: Sides) -> Iterator[_Side]:
        """Yield rows and columns of images of this size."""
        outputs = self._moves.outputs(size, self._of[2:])
        along = zip(self._moves.stride, self._moves.padding, size, outputs, self.kernel[2:], strict=True)
        return itertools.starmap(_side, along)


class _Side(NamedTuple):
    """Rows, or columns.

    Attributes:
        hidden: number of a phase's values at either end that are padding in all phases, and are never needed.
        seen: number of values that kernels see in a phase, without the hidden ones.
        covered: whether kernels reach the last pixel.
        meets: by phase, the places of its pixels in the image and in the phase.
    """

    hidden: int
    seen: int
    covered: bool
    meets: tuple[tuple[slice, slice], ...]


@cache
def _side(stride: int, padding: int, pixels: int, outputs: int, taps: int) -> _Side:
    """Return one side; pixel i of an image with its padding before it is number i // stride of phase i % stride."""
    last, behind = (padding + pixels - 1) // stride, outputs + taps - 1
    hidden = max(0, min(padding // stride, behind - 1 - last))
    seen, meets = behind - 2 * hidden, []
    for phase in range(stride):
        first = (phase - padding) % stride
        at = (first + padding) // stride - hidden
        count = max(0, min(len(range(first, pixels, stride)), seen - at))
        meets.append((slice(first, first + count * stride, stride), slice(at, at + count)))
    return _Side(hidden, seen, last < hidden + seen, tuple(meets))

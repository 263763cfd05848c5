"""Convolutions with kernel columns as channels, which are fast for few input channels such as colours.

Convolution libraries compute blocks of channels at once and are slow if a block is not full: a group of three channels
takes longer than one of sixteen. Here column j of a kernel of width k sees its channel shifted by j pixels, as a
separate channel. c channels and k by k kernels become c*k channels and k by 1 kernels, padded with zero channels up to
full blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Columns", "Geometry", "Plain", "Sides", "arranged"]

_BLOCK = 8
"""Channels that libraries compute at once."""

Sides = tuple[int, int]
"""Height and width."""


class Geometry(NamedTuple):
    """The vertical and horizontal movement of a kernel over an image."""

    stride: Sides
    padding: Sides
    dilation: Sides

    def outputs(self, size: Sequence[int], kernel: Sequence[int]) -> Sides:
        """Return the height and width of the output of a kernel (k, k) on an image (h, w)."""
        sides = zip(size, kernel, *self, strict=True)
        p, q = ((n + 2 * padding - d * (k - 1) - 1) // s + 1 for n, k, s, padding, d in sides)
        return p, q


def arranged(kernel: torch.Size, geometry: Geometry, device: torch.device) -> Plain:
    """Return the fastest arrangement of a convolution with weights (O, c, k, k), as measured on CPU cores."""
    outputs, c, _, width = kernel
    columns = device.type == "cpu" and 1 < c < _BLOCK and width > 1 and outputs % _BLOCK == 0
    return Columns(kernel, geometry) if columns else Plain(kernel, geometry)


class Plain:
    """A convolution without rearrangement.

    Args:
        kernel: size (O, c, k, k) of the weights.
        geometry: their movement.

    Attributes:
        kernel: size of the weights in the rearranged form.
        geometry: the movement of that form.
    """

    def __init__(self, kernel: torch.Size, geometry: Geometry) -> None:
        self.kernel, self.geometry = kernel, geometry

    def spread(self, a: Tensor) -> Tensor:
        """Return the rearranged images (N, c, h, w), which the rearranged weights move over."""
        return a

    def over(self, size: Sides) -> tuple[Geometry, Sides]:
        """Return the rearranged geometry and image size, for images of this size."""
        return self.geometry, size

    def collapse(self, e: Tensor, size: Sides) -> Tensor:
        """Return the derivative of ⟨spread(a), e⟩ in images a of this size."""
        return e

    def weights(self, flat: Tensor) -> Tensor:
        """Return weights (R, O*c*k*k) in the rearranged form, flat; an expanded R stays expanded."""
        return flat

    def restored(self, flat: Tensor) -> Tensor:
        """Return the inverse of `weights`."""
        return flat


class Columns(Plain):
    """Weights (O, C, k, 1) over images (N, C, h, q), q the width of the output, C at least c*k."""

    def __init__(self, kernel: torch.Size, geometry: Geometry) -> None:
        self._of, self._moves = kernel, geometry
        outputs, c, k, width = kernel
        self._used = c * width
        (s, _), (p, _), (d, _) = geometry
        filled = -(-self._used // _BLOCK) * _BLOCK
        super().__init__(torch.Size([outputs, filled, k, 1]), Geometry((s, 1), (p, 0), (d, 1)))

    def weights(self, flat: Tensor) -> Tensor:
        """Return rearranged weights (R, O*C*k)."""
        if len(flat) > 1 and flat.stride(0) == 0:
            return self.weights(flat[:1]).expand(len(flat), -1)
        out = flat.new_zeros(len(flat), *self.kernel[:3])
        out[:, :, : self._used] = flat.view(-1, *self._of).transpose(3, 4).flatten(2, 3)
        return out.flatten(1)

    def restored(self, flat: Tensor) -> Tensor:
        """Return original weights (R, O*c*k*k)."""
        outputs, c, k, width = self._of
        used = flat.view(-1, *self.kernel[:3])[:, :, : self._used]
        return used.reshape(-1, outputs, c, width, k).transpose(3, 4).flatten(1)

    def spread(self, a: Tensor) -> Tensor:
        """Return rearranged images (N, C, h, q)."""
        out = a.new_zeros(len(a), self.kernel[1], a.shape[2], self._outputs(a.shape[3]))
        parts = self._parts(out)
        for j, seen, at in self._seen(a.shape[3]):
            parts[:, :, j, :, at] = a[..., seen]
        return out

    def over(self, size: Sides) -> tuple[Geometry, Sides]:
        """Return the geometry of weights that are one column wide, and the image size."""
        return self.geometry, (size[0], self._outputs(size[1]))

    def collapse(self, e: Tensor, size: Sides) -> Tensor:
        """Return the derivative in the original images (N, c, h, w)."""
        parts = self._parts(e)
        out = e.new_zeros(len(e), self._of[1], *size)
        for j, seen, at in self._seen(size[1]):
            out[..., seen].add_(parts[:, :, j, :, at])
        return out

    def _parts(self, e: Tensor) -> Tensor:
        """Return (N, C, h, q) as (N, c, k, h, q): channels by columns of the kernel."""
        return e[:, : self._used].view(len(e), self._of[1], self._of[3], *e.shape[2:])

    def _outputs(self, w: int) -> int:
        (_, s), (_, p), (_, d) = self._moves
        return (w + 2 * p - d * (self._of[3] - 1) - 1) // s + 1

    def _seen(self, w: int) -> Iterator[tuple[int, slice, slice]]:
        """Yield the columns j of the kernel that see any of w pixels, those pixels, and the places of their outputs."""
        (_, s), (_, p), (_, d) = self._moves
        for j in range(self._of[3]):
            moved = j * d - p
            first, last = max(0, -(moved // s)), min(self._outputs(w), (w - 1 - moved) // s + 1)
            if first < last:
                yield j, slice(first * s + moved, (last - 1) * s + moved + 1, s), slice(first, last)

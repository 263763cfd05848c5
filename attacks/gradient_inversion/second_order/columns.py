"""Kernels whose columns are channels: convolutions of few channels, as of an image's colours, at the speed of many.

Libraries of convolutions compute blocks of channels at once and are slow where a block is not full: a group of three
channels takes longer than one of sixteen. Here column j of a kernel k wide sees its channel moved by j pixels, as a
channel of its own: c channels and k by k kernels become c*k channels and k by 1 kernels, with channels of zeros behind
them up to full blocks.
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
    """How a kernel moves over an image, vertically and horizontally."""

    stride: Sides
    padding: Sides
    dilation: Sides

    def outputs(self, size: Sequence[int], kernel: Sequence[int]) -> Sides:
        """Height and width of what a kernel (k, k) makes of an image (h, w)."""
        sides = zip(size, kernel, *self, strict=True)
        p, q = ((n + 2 * padding - d * (k - 1) - 1) // s + 1 for n, k, s, padding, d in sides)
        return p, q


def arranged(kernel: torch.Size, geometry: Geometry, device: torch.device) -> Plain:
    """How a convolution with weights of size (O, c, k, k) is quickest: measured on CPU cores, columns for colours."""
    outputs, c, _, width = kernel
    columns = device.type == "cpu" and 1 < c < _BLOCK and width > 1 and outputs % _BLOCK == 0
    return Columns(kernel, geometry) if columns else Plain(kernel, geometry)


class Plain:
    """A convolution as it is given.

    Args:
        kernel: (O, c, k, k) of the weights.
        geometry: how they move.

    Attributes:
        kernel: of the weights as they are multiplied.
        geometry: how these move.
    """

    def __init__(self, kernel: torch.Size, geometry: Geometry) -> None:
        self.kernel, self.geometry = kernel, geometry

    def spread(self, a: Tensor) -> Tensor:
        """What these weights move over, for images (N, c, h, w)."""
        return a

    def over(self, size: Sides) -> tuple[Geometry, Sides]:
        """How these weights move over what images of this size are spread to, and its size."""
        return self.geometry, size

    def collapse(self, e: Tensor, size: Sides) -> Tensor:
        """The derivative of ⟨spread(a), e⟩ in images a of this size."""
        return e

    def weights(self, flat: Tensor) -> Tensor:
        """Weights (R, O*c*k*k) as they are multiplied, flat; what is expanded over R stays so."""
        return flat

    def restored(self, flat: Tensor) -> Tensor:
        """The reverse of `weights`."""
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
        """(R, O*C*k)."""
        if len(flat) > 1 and flat.stride(0) == 0:
            return self.weights(flat[:1]).expand(len(flat), -1)
        out = flat.new_zeros(len(flat), *self.kernel[:3])
        out[:, :, : self._used] = flat.view(-1, *self._of).transpose(3, 4).flatten(2, 3)
        return out.flatten(1)

    def restored(self, flat: Tensor) -> Tensor:
        """(R, O*c*k*k)."""
        outputs, c, k, width = self._of
        used = flat.view(-1, *self.kernel[:3])[:, :, : self._used]
        return used.reshape(-1, outputs, c, width, k).transpose(3, 4).flatten(1)

    def spread(self, a: Tensor) -> Tensor:
        """(N, C, h, q)."""
        out = a.new_zeros(len(a), self.kernel[1], a.shape[2], self._outputs(a.shape[3]))
        parts = self._parts(out)
        for j, seen, at in self._seen(a.shape[3]):
            parts[:, :, j, :, at] = a[..., seen]
        return out

    def over(self, size: Sides) -> tuple[Geometry, Sides]:
        """These weights are one column wide."""
        return self.geometry, (size[0], self._outputs(size[1]))

    def collapse(self, e: Tensor, size: Sides) -> Tensor:
        """(N, c, h, w)."""
        parts = self._parts(e)
        out = e.new_zeros(len(e), self._of[1], *size)
        for j, seen, at in self._seen(size[1]):
            out[..., seen].add_(parts[:, :, j, :, at])
        return out

    def _parts(self, e: Tensor) -> Tensor:
        """(N, C, h, q) as (N, c, k, h, q): channels by columns of the kernel."""
        return e[:, : self._used].view(len(e), self._of[1], self._of[3], *e.shape[2:])

    def _outputs(self, w: int) -> int:
        (_, s), (_, p), (_, d) = self._moves
        return (w + 2 * p - d * (self._of[3] - 1) - 1) // s + 1

    def _seen(self, w: int) -> Iterator[tuple[int, slice, slice]]:
        """Columns j of the kernel that see any of w pixels, which they see, and where their outputs are."""
        (_, s), (_, p), (_, d) = self._moves
        for j in range(self._of[3]):
            moved = j * d - p
            first, last = max(0, -(moved // s)), min(self._outputs(w), (w - 1 - moved) // s + 1)
            if first < last:
                yield j, slice(first * s + moved, (last - 1) * s + moved + 1, s), slice(first, last)

"""Input gradients of strided convolutions, as products of matrices.

Libraries of convolutions are slow at them, most where every batch has weights of its own. Here a position's signal
times the weights is the derivative in its patch of the image. Patches are added where they overlap, a whole stride at a
time and channels last: what is added lies side by side.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .columns import Geometry

__all__ = ["input_gradient", "pays"]

_TOGETHER = 700_000
"""Patches of at most so many values, or a batch's, are held at once: more leave the caches before they are added."""


def pays(geometry: Geometry, device: torch.device) -> bool:
    """Whether this is the quicker way: measured on CPU cores."""
    return device.type == "cpu" and max(geometry.stride) > 1 and max(geometry.dilation) == 1


def input_gradient(
    size: tuple[int, int], geometry: Geometry, own: Tensor, s: Tensor, shared: Tensor, r: Tensor | None
) -> Tensor:
    """Derivative in images of ⟨own ∗ a, s⟩ + ⟨shared ∗ a, r⟩, ∗ the convolution: (R*B, c, h, w).

    Args:
        size: (h, w).
        geometry: the convolution's, without dilation.
        own: (R, O*c*k*l) each batch's weights.
        s: (R*B, O, p, q).
        shared: (O, c, k, l) all batches' weights.
        r: (R*B, O, p, q); None for zeros.
    """
    R, B = len(own), len(s) // len(own)
    weights, every = _channels_last(own.view(R, *shared.shape)), _channels_last(shared[None])
    signals, others = _positions(s, R), None if r is None else _positions(r, R)
    n = _batches_at_once(R, signals.shape[1] * every.shape[2])
    held = s.new_empty(n, signals.shape[1], every.shape[2])
    overlap = _Overlap(held.view(n * B, *s.shape[2:], -1), size, geometry, shared.shape)
    out = s.new_empty(R * B, shared.shape[1], *size)
    for first in range(0, R, n):
        first = min(first, R - n)  # the last part is as large as the others
        part = slice(first, first + n)
        torch.bmm(signals[part], weights[part], out=held)
        if others is not None:
            held.baddbmm_(others[part], every.expand(n, -1, -1))
        overlap.add_into(out[first * B : (first + n) * B])
    return out


def _batches_at_once(batches: int, values: int) -> int:
    """For patches of so many values a batch; parts are as even as can be."""
    most = max(1, _TOGETHER // values)
    parts = -(-batches // most)
    return -(-batches // parts)


class _Overlap:
    """Images that patches add up to, (N, rows, vertical stride, columns, horizontal stride * c).

    Which values of which patch meet there is found once, for patches that are written anew.

    Args:
        patches: (N, p, q, k*l*c).
        size: (h, w) of the images.
        geometry: the convolution's.
        kernel: (O, c, k, l).
    """

    def __init__(
        self, patches: Tensor, size: tuple[int, int], geometry: Geometry, kernel: torch.Size
    ) -> None:
        (down, right), (above, left), _ = geometry
        (h, w), (N, p, q, _), (_, c, high, wide) = size, patches.shape, kernel
        rows = max(p - 1 - (-high // down), -(-(h + above) // down))
        columns = max(q - 1 - (-wide // right), -(-(w + left) // right))
        self._sum = patches.new_empty(N, rows, down, columns, right * c)
        whole = self._sum.view(N, rows * down, columns * right, c)
        self._images = whole[:, above : above + h, left : left + w].permute(0, 3, 1, 2)
        self._meeting = []
        patches = patches.view(N, p, q, high, wide * c)
        for y in range(-(-high // down)):
            for x in range(-(-wide // right)):
                piece = patches[..., y * down : (y + 1) * down, x * right * c : (x + 1) * right * c]
                to = self._sum[:, y : y + p, : piece.shape[3], x : x + q, : piece.shape[4]]
                self._meeting.append((to, piece.transpose(2, 3)))

    def add_into(self, images: Tensor) -> None:
        """Makes images (N, c, h, w) what the patches add up to now."""
        self._sum.zero_()
        for to, piece in self._meeting:
            to.add_(piece)
        images.copy_(self._images)


def _channels_last(weights: Tensor) -> Tensor:
    """(R, O, c, k, l) as (R, O, k*l*c)."""
    return weights.permute(0, 1, 3, 4, 2).flatten(2)


def _positions(s: Tensor, R: int) -> Tensor:
    """(R*B, O, p, q) as (R, B*p*q, O)."""
    return s.view(R, -1, *s.shape[1:]).permute(0, 1, 3, 4, 2).reshape(R, -1, s.shape[1])

"""The offline multi-label dataset: images composed of several of scikit-learn's digits."""

from __future__ import annotations

import torch

from fdaudit.data.named import read_digits
from fdaudit.data.raw import RawData
from fdaudit.rng import child

__all__ = ["read_digits_multilabel"]

_CELLS = 4
"""A 16x16 image is two by two cells of 8x8."""


def read_digits_multilabel() -> RawData:
    """Return 899 images (1, 16, 16) of one to three digits, each in its own quarter; labels (n, 10) list the digits.

    The number of digits goes 1, 2, 3, 1, 2, 3, …. Digits and quarters are drawn with a fixed seed: the dataset is the
    same in every run. A label is 1 if its digit occurs, once or more often, and 0 otherwise; nothing is unknown.

    Guarantees:
      * every digit is used exactly once, so no two images have a digit in common: knowledge of one record gives none of
        another, as an audit of membership needs;
      * there is no official test split.
    """
    source = read_digits()
    generator = child(0, "digits-multilabel")
    count = len(source.y)
    digits = torch.randperm(count, generator=generator)
    sizes = torch.arange(count).remainder(3) + 1
    image = torch.repeat_interleave(torch.arange(count), sizes)[:count]  # which image each digit goes into
    total = int(image[-1]) + 1
    place = torch.arange(count) - (sizes.cumsum(0) - sizes)[image]  # a digit's number within its image
    cell = torch.rand(total, _CELLS, generator=generator).argsort(1)[image, place]
    side = source.x.shape[-1]
    canvas = torch.zeros(total, _CELLS, side, side)
    canvas[image, cell] = source.x[digits, 0]
    x = canvas.view(total, 2, 2, side, side).transpose(2, 3).reshape(total, 1, 2 * side, 2 * side)
    y = torch.zeros(total, source.classes, dtype=torch.int64)
    y[image, source.y[digits]] = 1
    return RawData(
        x=x,
        y=y,
        classes=source.classes,
        provenance=f"Composed of one to three digits each from: {source.provenance}",
    )

"""The samples that the rows of a message are about, and the narrowest types for their numbers and for classes.

Guarantees:
  * `sample_index` reads a message with `index` and one without it: without, the rows are samples 0, 1, … in order;
  * `narrow` loses no number: its type holds every whole number from the given lowest to the given highest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["narrow", "sample_index", "smallest_integer"]

_ROWS = ("values", "counts")
"""Tensors with one row a sample."""


def sample_index(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the samples (n,) that a message's rows are about, int64 on the CPU: its `index`, or the first n in order.

    Raises:
        KeyError: the message names no samples and holds no rows.
    """
    import torch

    index = tensors.get("index")
    if index is not None:
        return index.cpu().long()
    for name in _ROWS:
        if name in tensors:
            return torch.arange(len(tensors[name]))
    return torch.arange(len(tensors["values"]))


def smallest_integer(highest: int, lowest: int = 0) -> torch.dtype:
    """Return the narrowest integer type that holds every whole number from `lowest` to `highest`.

    Equal widths: unsigned first. PyTorch reads a uint8 index as a mask, and does little with uint16 but store it: call
    `.long()` first, as `sample_index` does.
    """
    import torch

    kinds = (torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32, torch.int64)
    return next(k for k in kinds if torch.iinfo(k).min <= lowest and highest <= torch.iinfo(k).max)


def narrow(numbers: Tensor, count: int, lowest: int = 0) -> Tensor:
    """Return whole numbers from `lowest` to `count` - 1 in the narrowest type that holds them all.

    The type depends on `count` and `lowest` alone, which are public, never on the numbers.
    """
    return numbers.to(smallest_integer(max(count - 1, 0), lowest))

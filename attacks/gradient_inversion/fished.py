"""The gradient of the records that a crafted last layer fished out of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Fished", "fished"]

_WHOLE = 0.05
"""Distance from a whole number within which a number of records is one."""
_RULED_OUT = -1e6
"""A bias with which a class is never answered."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Fished:
    """The part of a batch whose records have a gradient below the last layer.

    Attributes:
        count: number of its records; all are of the class that was fished for.
        gradient: their mean gradient; empty if there are none.
        start: a model at which they have this gradient, and other records of the class have one too.
    """

    count: int
    gradient: Mapping[str, Tensor]
    start: Mapping[str, Tensor]


def fished(start: Mapping[str, Tensor], gradient: Mapping[str, Tensor], images: int) -> Fished | None:
    """Return the fished part of a batch; None if the model is not crafted, or if other records have gradients too.

    If only row c of the last layer is not zero (`class-fishing`), records of other classes have a gradient in
    that layer's other rows only. All other classes are equally likely, so the fished records' share of these rows is
    -1/(C-1) times row c. Their gradient is then known exactly. BatchNorm, which mixes records, prevents this.

    Args:
        start: the model that the client started from.
        gradient: of mean cross-entropy.
        images: number of records in the batch.
    """
    layer, target = _fished_class(start)
    if not layer or any(name.endswith("running_mean") for name in start):
        return None
    weight, bias = f"{layer}.weight", f"{layer}.bias"
    share = -float(gradient[bias][target])
    count = round(images * share)
    if count < 0 or abs(images * share - count) > _WHOLE:
        return None
    ruled_out = start[bias].clone()
    ruled_out[target] = _RULED_OUT
    own: dict[str, Tensor] = {}
    if count:
        own = {name: value * (images / count) for name, value in gradient.items()}
        for name in (weight, bias):
            row = own[name][target].clone()
            other_rows = -row / (len(own[name]) - 1)
            own[name] = other_rows.expand_as(own[name]).clone()
            own[name][target] = row
    return Fished(count=count, gradient=own, start={**start, bias: ruled_out})


def _fished_class(model: Mapping[str, Tensor]) -> tuple[str, int]:
    """Return the layer of a model with a single row that is not zero, and that row; ("", 0) if there is none."""
    for name, weight in model.items():
        layer, _, kind = name.rpartition(".")
        bias = model.get(f"{layer}.bias")
        if kind != "weight" or weight.ndim != 2 or len(weight) < 3 or bias is None:
            continue
        rows = weight.any(1)
        if int(rows.sum()) == 1 and len(bias[~rows].unique()) == 1:
            return layer, int(rows.int().argmax())
    return "", 0

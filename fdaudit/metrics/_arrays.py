"""Conversion of callers' inputs (tensors, arrays, lists), with checks, to the types of the metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fdaudit.errors import UsageError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_RANGE_SLACK = 1e-5
"""Largest distance of a pixel to [0, 1] by float32 rounding."""


def _plain(values: ArrayLike | None, field: str) -> NDArray[Any]:
    if isinstance(values, torch.Tensor):
        wide = values.dtype if not values.dtype.is_floating_point else torch.float64
        return np.asarray(values.detach().to("cpu", wide).numpy())
    try:
        array: NDArray[Any] = np.asarray(values)
    except ValueError as error:
        raise UsageError(field, values, f"is ragged ({error})", "Give one number per item.") from None
    if array.dtype.kind not in "biuf":
        raise UsageError(
            field, values, "does not hold numbers", "Give a tensor, an array or a list of numbers."
        )
    return array


def vector(values: ArrayLike, field: str) -> Floats:
    """Return `values` as float64 (n,); infinities are kept, NaN is refused."""
    return _numbers(values, field, 1, "vector", "Give one number per item, shape (n,).", "index")


def matrix(values: ArrayLike, field: str) -> Floats:
    """Return `values` as float64 (n, m), neither 0; infinities are kept, NaN is refused."""
    return _numbers(values, field, 2, "table", "Give one row per item, shape (n, m).", "row")


def _numbers(values: ArrayLike, field: str, ndim: int, what: str, remedy: str, place: str) -> Floats:
    array = _plain(values, field).astype(np.float64)
    if array.ndim != ndim or array.size == 0:
        raise UsageError(field, array.shape, f"is not a non-empty {what}", remedy)
    if np.isnan(array).any():
        where = int(np.argwhere(np.isnan(array))[0, 0])
        raise UsageError(field, where, f"is the {place} of a NaN", "Find out why no number came out there.")
    return array


def flags(values: ArrayLike, field: str, n: int) -> Flags:
    """Return `values` as bool (n,); 0 and 1 are accepted for False and True."""
    array = _plain(values, field)
    if array.shape != (n,):
        raise UsageError(
            field, array.shape, f"does not match {n} scores", f"Give {n} booleans, shape ({n},)."
        )
    if not np.isin(array, (0, 1)).all():
        raise UsageError(field, values, "holds something other than true and false", "Give booleans.")
    return array.astype(np.bool_)


def integers(values: ArrayLike | None, field: str, n: int | None = None) -> Integers:
    """Return `values` as int64 (n,)."""
    array = _plain(values, field)
    if array.ndim != 1 or (n is not None and array.shape != (n,)):
        expected = "(n,)" if n is None else f"({n},)"
        raise UsageError(
            field, array.shape, f"does not have shape {expected}", "Give one whole number per item."
        )
    if array.dtype.kind == "f" and not (array == np.floor(array)).all():
        raise UsageError(field, values, "holds fractions", "Give whole numbers.")
    return array.astype(np.int64)


def images(values: ArrayLike, field: str, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return `values` as a CPU tensor (n, c, h, w) of `dtype`, after a check that it is finite and in [0, 1]."""
    tensor = values if isinstance(values, torch.Tensor) else torch.from_numpy(_plain(values, field))
    tensor = tensor.detach().to("cpu", dtype)
    if tensor.ndim != 4 or tensor.numel() == 0:
        raise UsageError(
            field, tuple(tensor.shape), "is not a non-empty batch of images", "Give shape (n, c, h, w)."
        )
    low, high = float(tensor.amin()), float(tensor.amax())
    if not (low >= -_RANGE_SLACK and high <= 1 + _RANGE_SLACK):  # also true of NaN
        raise UsageError(
            field,
            (low, high),
            "is a range of pixels outside [0, 1]",
            "Clamp or rescale the images to [0, 1].",
        )
    return tensor


def same_shape(a: torch.Tensor, b: torch.Tensor, *, count: bool = True) -> None:
    """Refuse images of different shapes; with `count`, also different numbers of images."""
    first, end = 1, "."
    if count:
        first, end = 0, ", as many on each side."
    if a.shape[first:] != b.shape[first:]:
        raise UsageError(
            "images",
            (tuple(a.shape), tuple(b.shape)),
            "are shapes that cannot be compared",
            f"Give images of one shape (c, h, w){end}",
        )


def probability(value: float, field: str) -> float:
    """Return `value` if it is strictly between 0 and 1; refuse it otherwise."""
    if not 0 < value < 1:
        raise UsageError(field, value, "is not between 0 and 1", "Give for example 0.95.")
    return float(value)

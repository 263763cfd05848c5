"""Raw data of a source before scaling: arrays as stored, with checks of shape, type and range."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fdaudit.data.resize import to_unit
from fdaudit.errors import DataError

__all__ = [
    "RawData",
    "as_identities",
    "as_images",
    "as_labels",
    "class_total",
    "image_origins",
    "same_count",
    "text_origins",
]

_LEVELS = 16 * 255
"""Levels of brightness that origins tell apart: both 8-bit images and sixteenths are whole numbers of them."""
_AT_ONCE = 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class RawData:
    """Records as stored: images (n, c, h, w), uint8 or float32 in [0, 1]; labels int64, (n,), (n, C) or (n, h, w).

    Texts are token numbers (n, L), int64, and `words` names each number.

    `identities` (n,) int64 give the person behind each record of `x`, if known. `class_names` may name
    the classes. For segmentation, `objects`, `sites` and `pictures` are those of `fdaudit.data.Dataset`.
    `groups` (n,) int64 say which records belong together, if the source says so.
    `origins` (n, 2) int64 identify records that a reader has already resized or numbered.
    """

    x: Tensor
    y: Tensor
    test_x: Tensor | None = None
    test_y: Tensor | None = None
    classes: int
    provenance: str
    identities: Tensor | None = None
    class_names: tuple[str, ...] = ()
    objects: Tensor | None = None
    sites: Tensor | None = None
    pictures: Tensor | None = None
    words: tuple[str, ...] = ()
    origins: Tensor | None = None
    groups: Tensor | None = None


def image_origins(x: Tensor) -> Tensor:
    """Return digests (n, 2) int64 of images (n, c, h, w) as stored: equal images have equal digests in every run.

    Type and number of channels do not matter: 8-bit and float images agree, and grey ones with their RGB copies.
    """
    digests = list[bytes]()
    for part in x.split(_AT_ONCE):
        levels = (to_unit(part) * _LEVELS).round().to(torch.int16)
        grey = (levels == levels[:, :1]).flatten(1).all(1).tolist()
        for image, alike in zip(levels, grey, strict=True):
            kept = image[:1] if alike else image
            digests.append(_digest(f"{tuple(kept.shape)}".encode() + kept.contiguous().numpy().tobytes()))
    return _together(digests)


def text_origins(texts: Iterable[Iterable[str]]) -> Tensor:
    """Return digests (n, 2) int64 of texts, given as all their words: independent of vocabulary and length."""
    return _together([_digest(" ".join(words).encode("utf-8", "surrogatepass")) for words in texts])


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()


def _together(digests: list[bytes]) -> Tensor:
    return torch.from_numpy(np.frombuffer(b"".join(digests), dtype="<i8").reshape(-1, 2).astype(np.int64))


def as_identities(array: NDArray[Any], n: int, field: str, what: str) -> Tensor:
    """Return identities (n,) int64 from an integer array (n,) or (n, 1).

    Raises:
        DataError: they are not whole numbers, or not one for each of `n` records.
    """
    if array.dtype.kind not in "iu":
        raise DataError(field, what, f"has dtype {array.dtype}", "Store a whole number for each person.")
    if array.shape not in ((n,), (n, 1)):
        raise DataError(field, what, f"has shape {array.shape}", f"Store one number for each of {n} records.")
    return torch.from_numpy(array.reshape(n).astype(np.int64))


def as_images(array: NDArray[Any], field: str, what: str) -> Tensor:
    """Return images (n, c, h, w) from an array (n, h, w) or (n, h, w, c) of uint8 or floats in [0, 1].

    Args:
        array: a NumPy array.
        field: name of the user's field, for the error.
        what: name of the array and its file, for the error.

    Raises:
        DataError: the dtype, the shape, or a value is invalid for images.
    """
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise DataError(field, what, f"has dtype {array.dtype}", "Store uint8, or floats in [0, 1].")
    if array.ndim not in (3, 4) or 0 in array.shape:
        raise DataError(
            field, what, f"has shape {array.shape}", "Store at least one image as (n, h, w) or (n, h, w, c)."
        )
    if array.ndim == 4 and array.shape[3] > 4:
        raise DataError(
            field,
            what,
            f"has {array.shape[3]} channels in its last axis",
            "Store channels last: (n, h, w, c).",
        )
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise DataError(field, what, "holds NaN or infinite values", "Remove or repair those records.")
        low, high = float(array.min()), float(array.max())
        if low < 0.0 or high > 1.0:
            raise DataError(
                field, what, f"holds values in [{low:g}, {high:g}]", "Scale floats to [0, 1], or store uint8."
            )
        array = array.astype(np.float32)
    images = torch.from_numpy(np.ascontiguousarray(array))
    return images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()


def as_labels(array: NDArray[Any], field: str, what: str) -> Tensor:
    """Return int64 labels from an integer array: (n,) from (n,) or (n, 1), multi-hot (n, C) from (n, C) with C > 1.

    Raises:
        DataError: the labels are not whole numbers or are negative; multi-hot ones are not all -1, 0 or 1.
    """
    if array.dtype.kind not in "iu":
        one_hot = " Of one-hot labels they are labels.argmax(axis=1)." if array.ndim == 2 else ""
        remedy = f"Store class numbers 0, 1, … as integers.{one_hot}"
        raise DataError(field, what, f"has dtype {array.dtype}", remedy)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2) or not array.size:
        raise DataError(
            field, what, f"has shape {array.shape}", "Store one class a record, as (n,) or (n, 1)."
        )
    if array.ndim == 2:
        return _multi_hot(array, field, what)
    if int(array.min()) < 0:
        raise DataError(field, what, f"holds the class {int(array.min())}", "Number the classes from 0.")
    if int(array.max()) > np.iinfo(np.int32).max:
        raise DataError(field, what, f"holds the class {int(array.max())}", "Number the classes 0, 1, ….")
    return torch.from_numpy(array.astype(np.int64))


def _multi_hot(array: NDArray[Any], field: str, what: str) -> Tensor:
    low, high = int(array.min()), int(array.max())
    if low < -1 or high > 1:
        problem = f"has shape {array.shape} and holds {low if low < -1 else high}"
        raise DataError(
            field, what, problem, "Several labels a record are 1 (occurs), 0 (does not) or -1 (unknown)."
        )
    if high < 1:
        raise DataError(field, what, "marks no class as present anywhere", "Store 1 where a class occurs.")
    return torch.from_numpy(array.astype(np.int64))


def same_count(x: Tensor, y: Tensor, field: str, what: str) -> None:
    """Raise a `DataError` unless there is one label per image."""
    if len(x) != len(y):
        raise DataError(
            field, what, f"has {len(x)} images but {len(y)} labels", "Store one label for each image."
        )


def class_total(labels: list[Tensor], field: str, what: str) -> int:
    """Return the number of classes: one more than the largest label, or the columns of multi-hot labels.

    Raises:
        DataError: there is only one class, class numbers run past the number of records, or the splits disagree.
    """
    widths = sorted({_label_width(y) for y in labels})
    if len(widths) > 1:
        problem = f"has labels of {widths[0]} and of {widths[1]} columns"
        raise DataError(field, what, problem, "Store all splits with the same classes.")
    if widths[0] > 1:
        return widths[0]
    classes = 1 + max(int(y.max()) for y in labels)
    if classes > sum(len(y) for y in labels):
        raise DataError(
            field,
            what,
            f"holds the class {classes - 1}, past its record count",
            "Number the classes 0, 1, ….",
        )
    if classes < 2:
        raise DataError(field, what, "holds one class only", "Give data of at least two classes.")
    return classes


def _label_width(y: Tensor) -> int:
    """Return the columns of labels as stored: 1 for one class per record (n,), C for multi-hot ones (n, C)."""
    return 1 if y.ndim == 1 else int(y.shape[1])

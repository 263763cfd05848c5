"""Raw data of a source before scaling: arrays as stored, with checks of shape, type and range."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fdaudit.data.resize import fit, fit_masks, to_unit
from fdaudit.errors import DataError
from fdaudit.limits import MOST_ROW
from fdaudit.tasks import labels_of
from fdaudit.tasks.columns import Column

__all__ = [
    "RawData",
    "as_identities",
    "as_images",
    "as_labels",
    "as_vectors",
    "class_total",
    "image_origins",
    "printable",
    "same_count",
    "text_origins",
]

_ROUNDING = 1e-6
"""How far rounding may take a value out of its range, by the range's width."""
_UNIT = (0.0, 1.0)
_LEVELS = 16 * 255
"""Levels of brightness that origins tell apart: both 8-bit images and sixteenths are whole numbers of them."""
_AT_ONCE = 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class RawData:
    """Records as stored: images (n, c, h, w), uint8 or float32 in [0, 1]; labels int64, (n,), (n, C) or (n, h, w).

    Texts are token numbers (n, L), int64, and `words` names each number. Rows of a table are vectors (n, d), float32,
    and `columns` says what their entries mean.

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
    columns: tuple[Column, ...] = ()
    origins: Tensor | None = None
    groups: Tensor | None = None

    @property
    def known_groups(self) -> Tensor | None:
        """Return the groups (n,) of records that a source states, or its pictures, or its persons; None without any.

        A record of an unknown person is a group of its own.
        """
        if self.groups is not None:
            return self.groups
        if self.pictures is not None:
            return self.pictures
        if self.identities is None:
            return None
        return torch.where(self.identities < 0, -1 - torch.arange(len(self.y)), self.identities)

    @property
    def known_origins(self) -> Tensor | None:
        """Return the origins (n, 2) that the reader gave, or those of images as they are stored here."""
        if self.origins is None and not self.words and not self.columns:
            return image_origins(self.x)
        return self.origins

    def rows(self, kept: Tensor) -> RawData:
        """Return these training records (m,) alone; test records stay."""
        rows = dict[str, Any]()
        for name in _BY_RECORD:
            tensor = getattr(self, name)
            if tensor is not None:
                rows[name] = tensor[kept]
        return replace(self, **rows)

    def fitted(self, size: int | None, threshold: float | None = None) -> RawData:
        """Return the data with images as float32 in [0, 1], fitted to a square `size`, and masks fitted likewise.

        Without a size, images and masks keep their shape. Texts and rows stay as they are. Of images with a threshold,
        pixels above it are 1 and all others 0.
        """
        if self.words or self.columns:
            return self
        sized = dict[str, Any]()
        for name in ("x", "test_x"):
            images = getattr(self, name)
            if images is not None:
                sized[name] = to_unit(images) if size is None else fit(images, size)
                if threshold is not None:
                    sized[name] = (sized[name] > threshold).float()
        if size is not None and labels_of(self.y).dense:
            sized["y"] = fit_masks(self.y, size)
            if self.objects is not None:
                sized["objects"] = fit_masks(self.objects, size)
        return replace(self, **sized)


_BY_RECORD = ("x", "y", "identities", "objects", "sites", "pictures", "origins", "groups")
"""Tensors of raw data with a row for each training record."""


def printable(text: str) -> str:
    """Return `text` with "?" for each character that a name cannot show."""
    return "".join(character if character.isprintable() else "?" for character in text)


def image_origins(x: Tensor) -> Tensor:
    """Return digests (n, 2) int64 of images (n, c, h, w) as stored: equal images have equal digests in every run.

    Type and number of channels do not matter: 8-bit and float images agree, and grey ones with their RGB copies.
    """
    digests = list[bytes]()
    for part in x.split(_AT_ONCE):
        levels = (to_unit(part) * _LEVELS).round().to(torch.int16)
        grey = (levels == levels[:, :1]).flatten(1).all(1).tolist()
        for image, alike in zip(levels, grey, strict=True):
            planes = image[:1] if alike else image
            pixels = planes.contiguous().numpy().tobytes()
            digests.append(_digest(f"{tuple(planes.shape)}".encode() + pixels))
    return _together(digests)


def text_origins(texts: Iterable[Iterable[str]]) -> Tensor:
    """Return digests (n, 2) int64 of texts, given as all their words: independent of vocabulary and length."""
    digests = []
    for words in texts:
        text = " ".join(words)
        digests.append(_digest(text.encode("utf-8", "surrogatepass")))
    return _together(digests)


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()


def _together(digests: list[bytes]) -> Tensor:
    numbers = np.frombuffer(b"".join(digests), dtype="<i8").reshape(-1, 2)
    return torch.from_numpy(numbers.astype(np.int64))


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


def as_images(
    array: NDArray[Any],
    field: str,
    what: str,
    span: tuple[float, float] = _UNIT,
    remedy: str = "Scale floats to [0, 1], or store uint8.",
) -> Tensor:
    """Return images (n, c, h, w) from an array (n, h, w) or (n, h, w, c) of uint8 or floats in [0, 1].

    Args:
        array: a NumPy array.
        field: name of the user's field, for the error.
        what: name of the array and its file, for the error.
        span: floats may be in this range instead. If one is outside [0, 1], all are mapped from the range to [0, 1].
        remedy: of floats outside, for the error.

    Raises:
        DataError: the dtype, the shape, or a value is invalid for images.
    """
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise DataError(field, what, f"has dtype {array.dtype}", "Store uint8, or floats in [0, 1].")
    if array.ndim not in (3, 4) or 0 in array.shape:
        layout = "Store at least one image as (n, h, w) or (n, h, w, c)."
        raise DataError(field, what, f"has shape {array.shape}", layout)
    if array.ndim == 4 and array.shape[3] > 4:
        problem = f"has {array.shape[3]} channels in its last axis, more than 4"
        raise DataError(field, what, problem, "Store channels last: (n, h, w, c).")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise DataError(field, what, "holds NaN or infinite values", "Remove or repair those records.")
        low, high = float(array.min()), float(array.max())
        if not _within(low, high, _UNIT):
            if not _within(low, high, span):
                raise DataError(field, what, f"holds values in [{low:.9g}, {high:.9g}]", remedy)
            array = (array.astype(np.float64) - span[0]) / (span[1] - span[0])
        array = array.astype(np.float32).clip(0.0, 1.0)
    images = torch.from_numpy(np.ascontiguousarray(array))
    if images.ndim == 3:
        return images.unsqueeze(1)
    return images.permute(0, 3, 1, 2).contiguous()


def _within(low: float, high: float, span: tuple[float, float]) -> bool:
    slack = _ROUNDING * (span[1] - span[0])
    return low >= span[0] - slack and high <= span[1] + slack


def as_vectors(array: NDArray[Any], field: str, what: str) -> Tensor:
    """Return rows of a table as vectors (n, d), float32, from an array of numbers.

    Args:
        array: a NumPy array.
        field: name of the user's field, for the error.
        what: name of the array and its file, for the error.

    Raises:
        DataError: the array has no rows or no columns, or holds other values than finite 32-bit numbers.
    """
    if array.dtype.kind not in "biuf":
        raise DataError(field, what, f"has dtype {array.dtype}", "Store numbers.")
    if array.ndim != 2 or 0 in array.shape or array.shape[1] > MOST_ROW:
        remedy = f"Store at least one row as (n, d), d up to {MOST_ROW:,}."
        raise DataError(field, what, f"has shape {array.shape}", remedy)
    with np.errstate(over="ignore"):
        vectors = array.astype(np.float32)
    if not np.isfinite(vectors).all():
        raise DataError(field, what, "holds NaN, infinite or huge values", "Fill or remove those rows.")
    return torch.from_numpy(np.ascontiguousarray(vectors))


def as_labels(array: NDArray[Any], field: str, what: str) -> Tensor:
    """Return int64 labels from an integer array: (n,) from (n,) or (n, 1), multi-hot (n, C) from (n, C) with C > 1.

    Raises:
        DataError: the labels are not whole numbers or are negative; multi-hot ones are not all -1, 0 or 1.
    """
    if array.dtype.kind == "b":
        array = array.astype(np.int8)
    if array.dtype.kind not in "iu":
        one_hot = ""
        if array.ndim == 2 and array.shape[1] > 1:
            one_hot = " Of one-hot labels they are labels.argmax(axis=1), of several labels labels.astype(numpy.int8)."
        remedy = f"Store class numbers 0, 1, … as integers.{one_hot}"
        raise DataError(field, what, f"has dtype {array.dtype}", remedy)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2) or not array.size:
        remedy = "Store one class a record, as (n,) or (n, 1)."
        raise DataError(field, what, f"has shape {array.shape}", remedy)
    low, high = int(array.min()), int(array.max())
    if array.ndim == 2:
        if low < -1 or high > 1:
            problem = f"has shape {array.shape} and holds {low if low < -1 else high}"
            remedy = "Several labels a record are 1 (occurs), 0 (does not) or -1 (unknown)."
            raise DataError(field, what, problem, remedy)
        if high < 1:
            problem = "marks no class as present anywhere"
            raise DataError(field, what, problem, "Store 1 where a class occurs.")
    elif low < 0:
        raise DataError(field, what, f"holds the class {low}", "Number the classes from 0.")
    elif high > np.iinfo(np.int32).max:
        raise DataError(field, what, f"holds the class {high}", "Number the classes 0, 1, ….")
    return torch.from_numpy(array.astype(np.int64))


def same_count(x: Tensor, y: Tensor, field: str, what: str) -> None:
    """Raise a `DataError` unless there is one label per image."""
    if len(x) != len(y):
        problem = f"has {len(x)} images but {len(y)} labels"
        raise DataError(field, what, problem, "Store one label for each image.")


def class_total(labels: list[Tensor], field: str, what: str) -> int:
    """Return the number of classes: one more than the largest label, or the columns of multi-hot labels.

    Raises:
        DataError: there is only one class, class numbers run past the number of records, or the splits disagree.
    """
    distinct = set[int]()
    for y in labels:
        distinct.add(1 if y.ndim == 1 else int(y.shape[1]))  # 1 where records have one class
    widths = sorted(distinct)
    if len(widths) > 1:
        problem = f"has labels of {widths[0]} and of {widths[1]} columns"
        raise DataError(field, what, problem, "Store all splits with the same classes.")
    if widths[0] > 1:
        return widths[0]
    largest = max(int(y.max()) for y in labels)
    if largest >= sum(map(len, labels)):
        problem = f"holds the class {largest}, past its record count"
        raise DataError(field, what, problem, "Number the classes 0, 1, ….")
    if largest < 1:
        raise DataError(field, what, "holds one class only", "Give data of at least two classes.")
    return largest + 1

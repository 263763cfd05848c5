"""Datasets from npz files: `npz:FILE` in MedMNIST's layout, and the arrays of any other npz file."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fdaudit.data.raw import (
    RawData,
    as_identities,
    as_images,
    as_labels,
    class_total,
    same_count,
)
from fdaudit.errors import DataError, reason_of
from fdaudit.limits import DATA_BYTES, open_file
from fdaudit.parallel.memory import refuse_forecast

__all__ = ["DAMAGED", "array_names", "elsewhere", "read_arrays", "read_npz", "resolve_path"]

_LONGEST_END = 66_000
"""Bytes at the end of a zip archive that can hold the length of its list of members."""
_MOST_LISTED = 1 << 20
"""Most bytes of that list."""
_MOST_UNPACKED, _MOST_RATIO = 64 << 20, 100
"""Bytes that an archive may unpack to, whatever its size, and further bytes for each of its own."""
DAMAGED = (ValueError, OSError, EOFError, RuntimeError, NotImplementedError, MemoryError, KeyError)
"""Errors that damaged files raise in the libraries that read them."""
_DAMAGED_ZIP = (*DAMAGED, zipfile.BadZipFile, zlib.error)


def resolve_path(text: str, root: Path, field: str) -> Path:
    """Return `text` as an absolute path; a relative one is below `root`.

    Raises:
        DataError: a relative path that leaves `root`, through `..` or a link.
    """
    try:
        path = Path(text).expanduser()
        inside = (root / path).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # circular links, an unknown home, a NUL
        raise DataError(field, text, f"is no path that can be followed ({error})", "Give another.") from None
    if path.is_absolute():
        return inside
    if not inside.is_relative_to(root.resolve()):
        raise DataError(field, text, f"leaves the data folder {root}", "Give its absolute path.")
    return inside


def read_npz(file: Path) -> RawData:
    """Read a file in MedMNIST's layout: `train_images`, `train_labels`, optionally `test_images`, `test_labels`.

    Images are uint8 or floats in [0, 1], (n, h, w) or (n, h, w, c). Labels are (n,) or (n, 1) classes, or (n, C) with C
    > 1 for the multi-label task (ChestMNIST's layout): 1 if a class occurs, 0 if not, -1 if unknown. `val_images` and
    `val_labels` are never read: no stage of an audit tunes on a validation split. `train_identities` (n,), whole
    numbers, may give the person behind each record: see `fdaudit.metrics.galleries.identification`.

    Raises:
        DataError: the file is absent, truncated, holds pickled objects, or has another layout.
    """
    field = "dataset.name"
    if not file.exists():
        remedy = "Give a path below `dataset.root`, or an absolute path."
        raise DataError(field, f"npz:{file}", f"names no file{elsewhere(file)}", remedy)
    names = (
        "train_images",
        "train_labels",
        "test_images",
        "test_labels",
        "train_identities",
        "train_groups",
    )
    arrays = read_arrays(file, names, field)
    parts = ["train"]
    if "test_images" in arrays or "test_labels" in arrays:
        parts.append("test")
    for part in parts:
        missing = [name for name in (f"{part}_images", f"{part}_labels") if name not in arrays]
        if missing:
            problem = f"lacks {', '.join(missing)}"
            raise DataError(field, str(file), problem, "Store the arrays under these names.")
    splits: dict[str, tuple[Tensor, Tensor]] = {}
    for part in parts:
        x = as_images(arrays[f"{part}_images"], field, f"{part}_images of {file}")
        y = as_labels(arrays[f"{part}_labels"], field, f"{part}_labels of {file}")
        same_count(x, y, field, f"{part} split of {file}")
        _refuse_one_hot(y, field, f"{part}_labels of {file}")
        splits[part] = (x, y)
    labels = [y for _, y in splits.values()]
    _refuse_from_one(labels, field, str(file))
    x, y = splits["train"]
    test_x, test_y = splits.get("test", (None, None))
    if test_x is not None and test_x.shape[1:] != x.shape[1:]:
        problem = "has training and test images of unlike shape"
        raise DataError(field, str(file), problem, "Store both with one shape.")
    of_records = dict[str, Any]()
    for name in ("identities", "groups"):
        numbers = arrays.get(f"train_{name}")
        if numbers is not None:
            of_records[name] = as_identities(numbers, len(x), field, f"train_{name} of {file}")
    return RawData(
        x=x,
        y=y,
        test_x=test_x,
        test_y=test_y,
        classes=class_total(labels, field, str(file)),
        provenance=f"The user's file {file.name} (val_* arrays not read); licence not stated in it.",
        **of_records,
    )


def elsewhere(path: Path) -> str:
    """Return a hint at a file or folder of that name in the working directory, or nothing."""
    beside = Path(path.name)
    return f", though ./{path.name} is there: set `dataset.root: .`" if beside.exists() else ""


def _refuse_one_hot(y: Tensor, field: str, what: str) -> None:
    """Refuse labels with exactly one class a record in columns: they would be read as several labels a record."""
    if y.ndim == 2 and int(y.min()) == 0 and bool((y.sum(1) == 1).all()):
        problem = "is one-hot: each record has one class, in one of several columns"
        raise DataError(field, what, problem, "Store class numbers: labels.argmax(axis=1).")


def _refuse_from_one(labels: list[Tensor], field: str, what: str) -> None:
    """Refuse classes that are numbered from 1: class 0 would be one that never occurs."""
    least = min(int(y.min()) for y in labels)
    if all(y.ndim == 1 for y in labels) and least > 0:
        problem = f"numbers its classes from {least}: class 0 never occurs"
        raise DataError(field, what, problem, f"Number them from 0: labels - {least}.")


def read_arrays(
    file: Path, wanted: tuple[str, ...], field: str, *, follow: bool = True
) -> dict[str, NDArray[Any]]:
    """Return those of the wanted arrays that an npz file holds, by name; its other arrays are not read.

    Args:
        file: the file.
        wanted: names of arrays.
        field: name of the user's field, for the error.
        follow: whether the file may be a link.

    Raises:
        DataError: it is absent, damaged or too large, or holds pickled objects.
    """
    try:
        # Opened here, because np.load leaves the file open when the archive is damaged.
        with open_file(file, DATA_BYTES, follow=follow) as stream:
            need = _refuse_large(stream, wanted)
            refuse_forecast(field, str(file), need)
            with np.load(stream, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in wanted if name in archive.files}
    except _DAMAGED_ZIP as error:
        reason = reason_of(error).partition("\n")[0].rstrip(".") or type(error).__name__
        problem = f"is no readable npz file of plain arrays ({reason})"
        remedy = "Fetch it again, or write it with numpy.savez; pickled objects are refused."
        raise DataError(field, str(file), problem, remedy) from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise DataError(field, str(file), f"holds no array in {name}", "Write it with numpy.savez.")
    return arrays


def array_names(file: Path, field: str) -> tuple[str, ...]:
    """Return the names of the arrays in an npz file.

    Raises:
        DataError: it cannot be read, or lists more arrays than a file of data has.
    """
    try:
        with open_file(file, DATA_BYTES) as stream:
            _refuse_long_directory(stream)
            with zipfile.ZipFile(stream) as archive:
                names = archive.namelist()
    except _DAMAGED_ZIP as error:
        problem = f"is no readable npz file of plain arrays ({reason_of(error)})"
        raise DataError(field, str(file), problem, "Write it with numpy.savez.") from error
    arrays = list[str]()
    for name in names:
        if name.endswith(".npy"):
            arrays.append(name.removesuffix(".npy"))
    return tuple(arrays)


def _refuse_large(stream: BinaryIO, wanted: tuple[str, ...]) -> int:
    """Return the bytes that the arrays take in memory, as their own headers say, with two copies of 32-bit numbers.

    Raises:
        ValueError: the arrays are larger than allowed, than the archive's list says, or than a packed file holds.
    """
    packed = stream.seek(0, 2)
    stream.seek(0)
    need = 0
    if stream.read(6) == np.lib.format.MAGIC_PREFIX:
        raise ValueError("it holds one bare array")
    _refuse_long_directory(stream)
    with zipfile.ZipFile(stream) as archive:
        members = set(archive.namelist())
        sizes = {}
        for name in wanted:
            if f"{name}.npy" in members:
                sizes[name] = archive.getinfo(f"{name}.npy").file_size
        total = sum(sizes.values())
        if total > DATA_BYTES.most:
            raise ValueError(f"it has {DATA_BYTES.refusal(total)}")
        if total > _MOST_UNPACKED + _MOST_RATIO * packed:
            extent = f"{total:,} bytes out of {packed:,}"
            raise ValueError(f"it unpacks to {extent}: write it with numpy.savez, which does not compress")
        for name, size in sizes.items():
            with archive.open(f"{name}.npy") as member:
                version = np.lib.format.read_magic(member)
                read_header = np.lib.format.read_array_header_2_0
                if version == (1, 0):
                    read_header = np.lib.format.read_array_header_1_0
                shape, _, dtype = read_header(member)
                stated = math.prod(shape) * dtype.itemsize
                entries = math.prod(max(1, side) for side in shape)  # an empty dimension counts as one
                if stated > size:
                    raise ValueError(f"{name} is shorter than its header says")
                if entries > size:
                    raise ValueError(f"{name} has {entries:,} entries without content")
                need += stated + 2 * 4 * entries
    stream.seek(0)
    return need


def _refuse_long_directory(stream: BinaryIO) -> None:
    """Refuse an archive with far more members than a dataset has; the library lists all members before it reads any."""
    end = stream.seek(0, 2)
    stream.seek(max(0, end - _LONGEST_END))
    tail = stream.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) < at + 16:
        raise ValueError("it is no zip archive, or its end is missing")
    long = int.from_bytes(tail[at + 12 : at + 16], "little") > _MOST_LISTED
    # The other form of the list, for files above 2 GiB, may state another length.
    if long or (end < 1 << 31 and tail[:at][-20:].startswith(b"PK\6\7")):
        raise ValueError("it lists too many members")

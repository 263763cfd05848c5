"""Datasets from the user's own files: `npz:FILE` in MedMNIST's layout and `folder:DIR` of images."""

from __future__ import annotations

import math
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fdaudit.data.raw import (
    RawData,
    as_identities,
    as_images,
    as_labels,
    class_total,
    image_origins,
    printable,
    same_count,
)
from fdaudit.data.resize import fit
from fdaudit.errors import DataError, reason_of
from fdaudit.limits import DATA_BYTES, PIXELS, open_file
from fdaudit.parallel.memory import refuse_forecast

__all__ = ["array_names", "read_arrays", "read_folder", "read_npz", "resolve_path"]

_T = TypeVar("_T")
# Closed list: some of Pillow's other readers start outside programs (EPS starts Ghostscript).
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_GREY = ("1", "L", "LA")
_COLOURED = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
_LEFT = ("thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx")
"""Files and folders that operating systems leave among images, in small letters."""
_MOST_NAMED = 10
"""Most unreadable files that an error names."""
_LONGEST_END = 66_000
"""Bytes at the end of a zip archive that can hold the length of its list of members."""
_MOST_LISTED = 1 << 20
"""Most bytes of that list."""
_MOST_UNPACKED, _MOST_RATIO = 64 << 20, 100
"""Bytes that an archive may unpack to, whatever its size, and further bytes for each of its own."""
_DAMAGED = (ValueError, OSError, EOFError, RuntimeError, NotImplementedError, MemoryError, KeyError)
_DAMAGED_ZIP = (*_DAMAGED, zipfile.BadZipFile, zlib.error)


class _DeepError(Exception):
    """An image has more than 8 bits a channel. Which of its bits matter is not for fdaudit to decide."""


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
        problem = f"names no file{_elsewhere(file)}"
        raise DataError(
            field, f"npz:{file}", problem, "Give a path below `dataset.root`, or an absolute path."
        )
    names = (
        "train_images",
        "train_labels",
        "test_images",
        "test_labels",
        "train_identities",
        "train_groups",
    )
    arrays = read_arrays(file, names, field)
    missing = [name for name in names[:2] if name not in arrays]
    if missing or ("test_images" in arrays) != ("test_labels" in arrays):
        missing = missing or [name for name in names[2:4] if name not in arrays]
        raise DataError(
            field, str(file), f"lacks {', '.join(missing)}", "Store the arrays under these names."
        )
    splits: dict[str, tuple[Tensor, Tensor]] = {}
    parts = ["train", "test"] if "test_images" in arrays else ["train"]
    for part in parts:
        x = as_images(arrays[f"{part}_images"], field, f"{part}_images of {file}")
        y = as_labels(arrays[f"{part}_labels"], field, f"{part}_labels of {file}")
        same_count(x, y, field, f"{part} split of {file}")
        _refuse_one_hot(y, field, f"{part}_labels of {file}")
        splits[part] = (x, y)
    _refuse_from_one([y for _, y in splits.values()], field, str(file))
    x, y = splits["train"]
    test_x, test_y = splits.get("test", (None, None))
    if test_x is not None and test_x.shape[1:] != x.shape[1:]:
        raise DataError(
            field, str(file), "has training and test images of unlike shape", "Store both with one shape."
        )
    identities = groups = None
    if "train_identities" in arrays:
        whose = arrays["train_identities"]
        identities = as_identities(whose, len(x), field, f"train_identities of {file}")
    if "train_groups" in arrays:
        groups = as_identities(arrays["train_groups"], len(x), field, f"train_groups of {file}")
    return RawData(
        x=x,
        y=y,
        identities=identities,
        groups=groups,
        test_x=test_x,
        test_y=test_y,
        classes=class_total([labels for _, labels in splits.values()], field, str(file)),
        provenance=f"The user's file {file.name} (val_* arrays not read); licence not stated in it.",
    )


def _elsewhere(path: Path) -> str:
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
        cause = reason_of(error)
        reason = cause.partition("\n")[0].rstrip(".") or type(error).__name__
        raise DataError(
            field,
            str(file),
            f"is no readable npz file of plain arrays ({reason})",
            "Fetch it again, or write it with numpy.savez; pickled objects are refused.",
        ) from error
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
    return tuple(name.removesuffix(".npy") for name in names if name.endswith(".npy"))


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
                stated, entries = _stated(member)
                if stated > size:
                    raise ValueError(f"{name} is shorter than its header says")
                if entries > size:
                    raise ValueError(f"{name} has {entries:,} entries without content")
                need += stated + 2 * 4 * entries
    stream.seek(0)
    return need


def _stated(member: IO[bytes]) -> tuple[int, int]:
    """Return the bytes of an array, as its header states it, and its entries; an empty dimension counts as one."""
    version = np.lib.format.read_magic(member)
    read_header = np.lib.format.read_array_header_2_0
    if version == (1, 0):
        read_header = np.lib.format.read_array_header_1_0
    shape, _, dtype = read_header(member)
    return math.prod(shape) * dtype.itemsize, math.prod(max(1, size) for size in shape)


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


def read_folder(folder: Path, image_size: int | None) -> RawData:
    """Read images from one sub-folder per class; classes and files are ordered by name.

    Pillow reads images as grey if all of them are grey, else as RGB (transparency is dropped). Names that begin with a
    dot, files that operating systems leave (`Thumbs.db`, `desktop.ini`, `__MACOSX`), and files outside the sub-folders,
    are ignored; every other file in a sub-folder must be an image of 8 bits a channel.

    The folders' names are the classes' names; what a name cannot show is "?".

    Args:
        folder: the dataset's folder.
        image_size: the side to which every image is fitted; None requires one size for all.

    Raises:
        DataError: an empty class, a damaged image, a link that leaves the folder, or different sizes.
    """
    field = "dataset.name"
    if not folder.is_dir():
        problem = f"names no folder{_elsewhere(folder)}"
        remedy = "Give a folder with one folder a class: below `dataset.root`, or by its absolute path."
        raise DataError(field, f"folder:{folder}", problem, remedy)
    home = folder.resolve()
    kinds = [d for d in sorted(folder.iterdir()) if d.is_dir() and not _left_by_a_system(d)]
    if len(kinds) < 2:
        raise DataError(field, str(folder), f"has {len(kinds)} class folders", "Make one sub-folder a class.")
    files: list[Path] = []
    labels: list[int] = []
    for label, kind in enumerate(kinds):
        _inside(kind, home)
        images = [f for f in sorted(kind.iterdir()) if not _left_by_a_system(f)]
        if not images:
            raise DataError(field, str(kind), "is an empty class folder", "Put images there or remove it.")
        files += [_inside(f, home) for f in images]
        labels += [label] * len(images)
    x, origins = _images(files, folder, image_size)
    return RawData(
        x=x,
        y=torch.tensor(labels),
        origins=origins,
        classes=len(kinds),
        provenance=f"The user's folder {folder.name}; licence not stated in it.",
        class_names=tuple(printable(kind.name) for kind in kinds),
    )


def _left_by_a_system(path: Path) -> bool:
    return path.name.startswith(".") or path.name.lower() in _LEFT


def _inside(path: Path, home: Path) -> Path:
    try:
        target = path.resolve()
    except RuntimeError:
        raise DataError("dataset.name", str(path), "is a link to itself", "Remove it.") from None
    if not target.is_relative_to(home):
        raise DataError(
            "dataset.name", str(path), f"is a link that leaves {home}", "Copy the files into the folder."
        )
    return target


def _images(files: list[Path], folder: Path, image_size: int | None) -> tuple[Tensor, Tensor]:
    """Return images as one tensor (n, c, h, w): uint8, or float32 if fitted to `image_size`; and origins (n, 2)."""
    headers = _each(files, folder, _header)
    channels = 1 if all(grey for _, grey in headers) else 3
    sizes = sorted({size for size, _ in headers})
    if image_size is None and len(sizes) > 1:
        examples = ", ".join(f"{h}x{w}" for h, w in sizes[:4])
        raise DataError(
            "dataset.image_size",
            image_size,
            f"leaves unlike sizes in {folder} ({examples})",
            "Give one size.",
        )
    each = math.prod(sizes[0]) if image_size is None else 4 * image_size**2
    total = len(files) * channels * each
    if total > DATA_BYTES.most:
        remedy = "Give a smaller `dataset.image_size`, or fewer images."
        raise DataError("dataset.name", str(folder), f"has {DATA_BYTES.refusal(total)}", remedy)
    refuse_forecast("dataset.name", str(folder), 2 * total)  # one by one, and together

    def read(file: Path) -> tuple[Tensor, Tensor]:
        image = as_images(_pixels(file, channels)[None], "dataset.name", str(folder))
        origins = image_origins(image)
        if image_size is not None:
            image = fit(image, image_size)
        return image, origins

    images, origins = zip(*_each(files, folder, read), strict=True)
    return torch.cat(images), torch.cat(origins)


def _each(files: list[Path], folder: Path, read: Callable[[Path], _T]) -> list[_T]:
    """Return what each file holds; refuse all unreadable files in one error."""
    results, wrong = list[_T](), list[tuple[Path, DataError]]()
    for file in files:
        try:
            results.append(read(file))
        except DataError as error:
            wrong.append((file, error))
    if len(wrong) == 1:
        raise wrong[0][1]
    if wrong:
        names = [f.relative_to(folder.resolve()).as_posix() for f, _ in wrong]
        examples = ", ".join(names[:_MOST_NAMED])
        if len(wrong) > _MOST_NAMED:
            examples += ", …"
        problem = (
            f"holds {len(wrong)} files that cannot be read ({examples}); the first {wrong[0][1].problem}"
        )
        raise DataError("dataset.name", str(folder), problem, wrong[0][1].remedy)
    return results


def _header(file: Path) -> tuple[tuple[int, int], bool]:
    """Return the height and width of an image, and whether it is grey, without reading its pixels."""
    with _opened(file) as image:
        return (image.height, image.width), image.mode in _GREY


def _pixels(file: Path, channels: int) -> Any:
    """Return one image as a uint8 array (h, w), or (h, w, 3)."""
    with _opened(file) as image:
        if channels == 1:
            return np.array(image.convert("L"))
        # By way of L and RGBA: Pillow turns a palette with transparency into RGB only with a warning.
        middle = {**dict.fromkeys(_GREY, "L"), "P": "RGBA", "PA": "RGBA"}.get(image.mode)
        return np.array((image.convert(middle) if middle else image).convert("RGB"))


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Open an image without reading its pixels, after a check of their number."""
    from PIL import Image

    if not file.is_file():
        raise DataError(
            "dataset.name", str(file), "is not a file", "Keep nothing but images in class folders."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings on metadata tags that Pillow does not know
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with open_file(file, DATA_BYTES) as stream, Image.open(stream, formats=_FORMATS) as image:
                if (pixels := image.width * image.height) > PIXELS.most:
                    raise ValueError(f"it has {PIXELS.refusal(pixels)}")
                if image.mode not in (*_GREY, *_COLOURED) or ";16" in str(getattr(image, "tile", "")):
                    raise _DeepError(f"mode {image.mode} is not 8 bits a channel")
                yield image
    except _DeepError as error:
        remedy = "Convert it to 8 bits, with a range that fits its content, or store floats in [0, 1] in an npz file."
        raise DataError(
            "dataset.name", str(file), f"is no image that is read as it is ({error})", remedy
        ) from None
    except (*_DAMAGED, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        reason = reason_of(error)
        raise DataError(
            "dataset.name",
            str(file),
            f"is no readable image ({reason.rstrip('.')})",
            f"Replace or remove it; readable are {', '.join(_FORMATS)}.",
        ) from error

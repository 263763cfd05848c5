"""Images in one folder for each class: `folder:DIR`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fdaudit.data.files import DAMAGED, elsewhere
from fdaudit.data.raw import RawData, as_images, image_origins, printable
from fdaudit.data.resize import fit
from fdaudit.errors import DataError, reason_of
from fdaudit.limits import DATA_BYTES, PIXELS, open_file
from fdaudit.parallel.memory import refuse_forecast

__all__ = ["read_folder"]

_T = TypeVar("_T")
_FIELD = "dataset.name"
# Closed list: some of Pillow's other readers start outside programs (EPS starts Ghostscript).
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_GREY = ("1", "L", "LA")
_COLOURED = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
_LEFT = ("thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx")
"""Files and folders that operating systems leave among images, in small letters."""
_MOST_NAMED = 10
"""Most unreadable files that an error names."""


class _DeepError(Exception):
    """An image has more than 8 bits a channel. Which of its bits matter is not for fdaudit to decide."""


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
    if not folder.is_dir():
        problem = f"names no folder{elsewhere(folder)}"
        remedy = "Give a folder with one folder a class: below `dataset.root`, or by its absolute path."
        raise DataError(_FIELD, f"folder:{folder}", problem, remedy)
    home = folder.resolve()
    kinds = [d for d in sorted(folder.iterdir()) if d.is_dir() and not _left_by_a_system(d)]
    if len(kinds) < 2:
        raise DataError(
            _FIELD, str(folder), f"has {len(kinds)} class folders", "Make one sub-folder a class."
        )
    files: list[Path] = []
    labels: list[int] = []
    for label, kind in enumerate(kinds):
        _inside(kind, home)
        for image in sorted(kind.iterdir()):
            if not _left_by_a_system(image):
                files.append(_inside(image, home))
                labels.append(label)
        if labels[-1:] != [label]:
            raise DataError(_FIELD, str(kind), "is an empty class folder", "Put images there or remove it.")
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
        raise DataError(_FIELD, str(path), "is a link to itself", "Remove it.") from None
    if not target.is_relative_to(home):
        problem = f"is a link that leaves {home}"
        raise DataError(_FIELD, str(path), problem, "Copy the files into the folder.")
    return target


def _images(files: list[Path], folder: Path, image_size: int | None) -> tuple[Tensor, Tensor]:
    """Return images as one tensor (n, c, h, w): uint8, or float32 if fitted to `image_size`; and origins (n, 2)."""
    headers = _each(files, folder, _header)
    channels = 1 if all(grey for _, grey in headers) else 3
    sizes = sorted({size for size, _ in headers})
    if image_size is None and len(sizes) > 1:
        examples = ", ".join(f"{h}x{w}" for h, w in sizes[:4])
        problem = f"leaves unlike sizes in {folder} ({examples})"
        raise DataError("dataset.image_size", None, problem, "Give one size.")
    each = math.prod(sizes[0]) if image_size is None else 4 * image_size**2
    total = len(files) * channels * each
    if total > DATA_BYTES.most:
        remedy = "Give a smaller `dataset.image_size`, or fewer images."
        raise DataError(_FIELD, str(folder), f"has {DATA_BYTES.refusal(total)}", remedy)
    refuse_forecast(_FIELD, str(folder), 2 * total)  # one by one, and together

    def read(file: Path) -> tuple[Tensor, Tensor]:
        image = as_images(_pixels(file, channels)[None], _FIELD, str(folder))
        origins = image_origins(image)
        if image_size is not None:
            image = fit(image, image_size)
        return image, origins

    images, origins = zip(*_each(files, folder, read), strict=True)
    return torch.cat(images), torch.cat(origins)


def _each(files: list[Path], folder: Path, read: Callable[[Path], _T]) -> list[_T]:
    """Return what each file holds; refuse all unreadable files in one error."""
    results, unreadable, errors = list[_T](), list[Path](), list[DataError]()
    for file in files:
        try:
            results.append(read(file))
        except DataError as error:
            unreadable.append(file)
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        home = folder.resolve()
        examples = list[str]()
        for file in unreadable[:_MOST_NAMED]:
            examples.append(file.relative_to(home).as_posix())
        if len(unreadable) > _MOST_NAMED:
            examples.append("…")
        which, first = ", ".join(examples), errors[0]
        problem = f"holds {len(errors)} files that cannot be read ({which}); the first {first.problem}"
        raise DataError(_FIELD, str(folder), problem, first.remedy)
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
        if image.mode in _GREY:
            image = image.convert("L")
        elif image.mode in ("P", "PA"):
            image = image.convert("RGBA")
        return np.array(image.convert("RGB"))


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Open an image without reading its pixels, after a check of their number."""
    from PIL import Image

    if not file.is_file():
        raise DataError(_FIELD, str(file), "is not a file", "Keep nothing but images in class folders.")
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
        problem = f"is no image that is read as it is ({error})"
        raise DataError(_FIELD, str(file), problem, remedy) from None
    except (*DAMAGED, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        problem = f"is no readable image ({reason_of(error).rstrip('.')})"
        remedy = f"Replace or remove it; readable are {', '.join(_FORMATS)}."
        raise DataError(_FIELD, str(file), problem, remedy) from error

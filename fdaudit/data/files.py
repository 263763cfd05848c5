"""Datasets from the user's own files: `npz:FILE` in MedMNIST's layout and `folder:DIR` of images."""

from __future__ import annotations

import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fdaudit.data.raw import RawData, as_images, as_labels, class_total, same_count
from fdaudit.data.resize import fit
from fdaudit.errors import DataError

__all__ = ["read_folder", "read_npz", "resolve_path"]

# Closed list: some of Pillow's other readers start outside programs (EPS starts Ghostscript).
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_DAMAGED = (ValueError, OSError, EOFError, RuntimeError, NotImplementedError, MemoryError, KeyError)
_DAMAGED_ZIP = (*_DAMAGED, zipfile.BadZipFile, zlib.error)


def resolve_path(text: str, root: Path, field: str) -> Path:
    """`text` as an absolute path, or below `root` when it is relative.

    Raises:
        DataError: a relative path that leaves `root`, through `..` or a link.
    """
    path = Path(text).expanduser()
    if path.is_absolute():
        return path.resolve()
    inside = (root / path).resolve()
    if not inside.is_relative_to(root.resolve()):
        raise DataError(field, text, f"leaves the data folder {root}", "Give its absolute path.")
    return inside


def read_npz(file: Path) -> RawData:
    """A file in MedMNIST's layout: `train_images`, `train_labels`, optionally `test_images`, `test_labels`.

    Images are uint8 or floats in [0, 1], (n, h, w) or (n, h, w, c). Labels are (n,) or (n, 1) classes, or (n, C)
    with C > 1 for the multi-label task (ChestMNIST's layout): 1 where a class occurs, 0 where not, -1 where
    unknown. `val_images` and `val_labels` may be there and are not read: no stage of an audit tunes on a
    validation split.

    Raises:
        DataError: absent, truncated, holding pickled objects, or not as described.
    """
    field = "dataset.name"
    if not file.is_file():
        raise DataError(
            field, f"npz:{file}", "names no file", "Give a path below `dataset.root`, or an absolute path."
        )
    wanted = ("train_images", "train_labels", "test_images", "test_labels")
    arrays = _npz_arrays(file, wanted)
    missing = [name for name in wanted[:2] if name not in arrays]
    if missing or ("test_images" in arrays) != ("test_labels" in arrays):
        missing = missing or [name for name in wanted[2:] if name not in arrays]
        raise DataError(
            field, str(file), f"lacks {', '.join(missing)}", "Store the arrays under these names."
        )
    splits: dict[str, tuple[Tensor, Tensor]] = {}
    for part in ("train", "test") if "test_images" in arrays else ("train",):
        x = as_images(arrays[f"{part}_images"], field, f"{part}_images of {file}")
        y = as_labels(arrays[f"{part}_labels"], field, f"{part}_labels of {file}")
        same_count(x, y, field, f"{part} split of {file}")
        splits[part] = (x, y)
    x, y = splits["train"]
    test_x, test_y = splits.get("test", (None, None))
    if test_x is not None and test_x.shape[1:] != x.shape[1:]:
        raise DataError(
            field, str(file), "has training and test images of unlike shape", "Store both with one shape."
        )
    return RawData(
        x=x,
        y=y,
        test_x=test_x,
        test_y=test_y,
        classes=class_total([labels for _, labels in splits.values()], field, str(file)),
        provenance=f"The user's file {file.name} (val_* arrays not read); licence not stated in it.",
    )


def _npz_arrays(file: Path, wanted: tuple[str, ...]) -> dict[str, Any]:
    try:
        # Opened here, because np.load leaves the file open when the archive is damaged.
        with file.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds one bare array")
            with archive:
                arrays = {name: archive[name] for name in wanted if name in archive.files}
    except _DAMAGED_ZIP as error:
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise DataError(
            "dataset.name",
            str(file),
            f"is no readable npz file of plain arrays ({reason})",
            "Fetch it again, or write it with numpy.savez; pickled objects are refused.",
        ) from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise DataError(
                "dataset.name", str(file), f"holds no array in {name}", "Write it with numpy.savez."
            )
    return arrays


def read_folder(folder: Path, image_size: int | None) -> RawData:
    """Images in one sub-folder a class; classes and files count in the order of their names.

    Images are read by Pillow as grey when every one of them is grey, as RGB otherwise (transparency is
    dropped). Names that begin with a dot, and files beside the sub-folders, are not read; anything else in
    a sub-folder must be an image.

    Args:
        folder: the dataset's folder.
        image_size: the side every image is fitted to; None demands that all have one size.

    Raises:
        DataError: an empty class, a damaged image, a link that leaves the folder, or unlike sizes.
    """
    field = "dataset.name"
    if not folder.is_dir():
        raise DataError(
            field, f"folder:{folder}", "names no folder", "Give a folder with one folder a class."
        )
    home = folder.resolve()
    kinds = [d for d in sorted(folder.iterdir()) if d.is_dir() and not d.name.startswith(".")]
    if len(kinds) < 2:
        raise DataError(field, str(folder), f"has {len(kinds)} class folders", "Make one sub-folder a class.")
    images: list[Any] = []
    labels: list[int] = []
    for label, kind in enumerate(kinds):
        _inside(kind, home)
        files = [f for f in sorted(kind.iterdir()) if not f.name.startswith(".")]
        if not files:
            raise DataError(field, str(kind), "is an empty class folder", "Put images there or remove it.")
        images += [_pixels(_inside(f, home)) for f in files]
        labels += [label] * len(files)
    return RawData(
        x=_stack(images, folder, image_size),
        y=torch.tensor(labels),
        classes=len(kinds),
        provenance=f"The user's folder {folder.name}; licence not stated in it.",
    )


def _inside(path: Path, home: Path) -> Path:
    target = path.resolve()
    if not target.is_relative_to(home):
        raise DataError(
            "dataset.name", str(path), f"is a link that leaves {home}", "Copy the files into the folder."
        )
    return target


def _pixels(file: Path) -> Any:
    """One image as a uint8 array (h, w) or (h, w, 3)."""
    from PIL import Image

    if not file.is_file():
        raise DataError(
            "dataset.name", str(file), "is not a file", "Keep nothing but images in class folders."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=_FORMATS) as image:
                if image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"):
                    raise ValueError(f"mode {image.mode} is not 8 bits a channel")
                if image.mode in ("1", "L", "LA"):
                    return np.array(image.convert("L"))
                # By way of RGBA: Pillow turns a palette with transparency into RGB only with a warning.
                middle = image.convert("RGBA") if image.mode in ("P", "PA") else image
                return np.array(middle.convert("RGB"))
    except (*_DAMAGED, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(
            "dataset.name",
            str(file),
            f"is no readable image ({str(error).rstrip('.')})",
            f"Replace or remove it; readable are {', '.join(_FORMATS)}.",
        ) from error


def _stack(images: list[Any], folder: Path, image_size: int | None) -> Tensor:
    """Images as one tensor (n, c, h, w): uint8, or float32 once fitted to `image_size`."""
    if any(image.ndim == 3 for image in images):
        images = [image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2) for image in images]
    tensors = [as_images(image[None], "dataset.name", str(folder)) for image in images]
    if image_size is not None:
        tensors = [fit(image, image_size) for image in tensors]
    sizes = {tuple(image.shape[-2:]) for image in tensors}
    if len(sizes) > 1:
        shown = ", ".join(f"{h}x{w}" for h, w in sorted(sizes)[:4])
        raise DataError(
            "dataset.image_size", image_size, f"leaves unlike sizes in {folder} ({shown})", "Give one size."
        )
    return torch.cat(tensors)

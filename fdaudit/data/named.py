"""Datasets known by name: scikit-learn's digits, images composed of several of them, and torchvision's collections."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from fdaudit.data.raw import RawData, as_images, as_labels, same_count
from fdaudit.errors import DataError
from fdaudit.limits import DATA_BYTES, open_file
from fdaudit.rng import child

__all__ = ["TORCHVISION", "read_digits", "read_digits_multilabel", "read_torchvision"]


@dataclass(frozen=True)
class _Source:
    """A class of `torchvision.datasets`, the place of its files below the root, and the arguments for each split."""

    cls: str
    place: str
    classes: int
    provenance: str
    train: Mapping[str, Any] = field(default_factory=lambda: {"train": True})
    test: Mapping[str, Any] = field(default_factory=lambda: {"train": False})


TORCHVISION: Mapping[str, _Source] = MappingProxyType(
    {
        "mnist": _Source("MNIST", "MNIST/raw", 10, "MNIST (LeCun, Cortes and Burges), CC BY-SA 3.0."),
        "fashion-mnist": _Source(
            "FashionMNIST",
            "FashionMNIST/raw",
            10,
            "Fashion-MNIST (Xiao, Rasul and Vollgraf 2017), MIT licence.",
        ),
        "emnist": _Source(
            "EMNIST",
            "EMNIST/raw",
            47,
            "EMNIST, balanced split, turned upright (Cohen et al. 2017, from NIST Special Database 19); "
            "licence not stated.",
            {"split": "balanced", "train": True},
            {"split": "balanced", "train": False},
        ),
        "kmnist": _Source(
            "KMNIST", "KMNIST/raw", 10, "Kuzushiji-MNIST (Clanuwat et al. 2018), CC BY-SA 4.0."
        ),
        "svhn": _Source(
            "SVHN",
            "train_32x32.mat",
            10,
            "SVHN cropped digits, without the extra part (Netzer et al. 2011), for non-commercial use only.",
            {"split": "train"},
            {"split": "test"},
        ),
        "cifar10": _Source(
            "CIFAR10", "cifar-10-batches-py", 10, "CIFAR-10 (Krizhevsky 2009); licence not stated."
        ),
        "cifar100": _Source(
            "CIFAR100",
            "cifar-100-python",
            100,
            "CIFAR-100, fine labels (Krizhevsky 2009); licence not stated.",
        ),
    }
)
"""EMNIST's split is `balanced`, of six: 47 classes of equal size, so no class is rare by design."""

# Errors that torchvision raises on files that are absent, short, of another type, or not downloadable.
_UNREADABLE = (RuntimeError, ValueError, AssertionError, TypeError, KeyError, IndexError, OSError, EOFError)

_CELLS = 4
"""An image of several digits, of 16x16 pixels, is two by two cells of 8x8."""


def read_digits() -> RawData:
    """Return the 1,797 8x8 digits that ship with scikit-learn; there is no official test split."""
    package = find_spec("sklearn")  # only found: importing it takes seconds
    if package is None or package.origin is None:
        problem = "comes with scikit-learn, which is absent"
        raise DataError("dataset.name", "digits", problem, "Install scikit-learn.")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as table:
        rows = np.loadtxt(table, delimiter=",")
    images = rows[:, :-1].reshape(-1, 1, 8, 8)
    return RawData(
        x=torch.from_numpy((images / 16.0).astype(np.float32)),
        y=torch.from_numpy(rows[:, -1].astype(np.int64)),
        classes=10,
        provenance="Optical Recognition of Handwritten Digits (Alpaydin and Kaynak 1998, UCI), the part "
        "shipped with scikit-learn, CC BY 4.0.",
    )


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


def read_torchvision(name: str, root: Path, download: bool) -> RawData:
    """Return one of torchvision's collections, with its official test split.

    CIFAR's files are pickles and could run code. Torchvision's constructor compares the MD5 of each file with the
    published value (`_check_integrity`) and raises `RuntimeError` before it unpickles any. This function neither skips
    the check nor continues after the error. SVHN's files are checked in the same way; MNIST and similar ones are plain
    bytes.

    Raises:
        DataError: the files are damaged, or absent and not to be downloaded.
    """
    source = TORCHVISION[name]
    place = root / source.place
    if not download and not place.exists():
        problem = f"holds no copy of {name!r} (there is no {place})"
        remedy = (
            "Put torchvision's files there, point `dataset.root` or FDAUDIT_DATA at them, "
            "or set `dataset.download: true`."
        )
        raise DataError("dataset.root", str(root), problem, remedy)
    # Torchvision would read an oversized file, or a pipe, as a whole.
    for path in sorted(place.rglob("*") if place.is_dir() else place.parent.glob(f"*{place.suffix}")):
        if path.is_dir() or not path.exists():
            continue
        try:
            open_file(path, DATA_BYTES).close()
        except OSError as error:
            problem = f"holds {path.relative_to(root)}, which cannot be read ({error.strerror})"
            raise DataError("dataset.root", str(root), problem, "Fetch it again.") from None
    x, y = _split(name, source, root, source.train, download)
    test_x, test_y = _split(name, source, root, source.test, download)
    classes, provenance = source.classes, source.provenance
    return RawData(x=x, y=y, test_x=test_x, test_y=test_y, classes=classes, provenance=provenance)


def _split(
    name: str, source: _Source, root: Path, which: Mapping[str, Any], download: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    place = str(root / source.place)
    try:
        dataset = _loader(source.cls)(str(root), **which, download=download)
    except _UNREADABLE as error:
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        problem = f"gave no whole, unaltered copy of {name!r} below {place} ({reason})"
        remedy = "Delete the damaged files and fetch them again, for example with `dataset.download: true`."
        raise DataError("dataset.root", str(root), problem, remedy) from error
    data = np.asarray(dataset.data)
    if name == "svhn":
        data, labels = data.transpose(0, 2, 3, 1), np.asarray(dataset.labels)
    else:
        labels = np.asarray(dataset.targets)
    if name == "emnist":  # it stores every character transposed
        data = data.transpose(0, 2, 1)
    x, y = as_images(data, "dataset.root", place), as_labels(labels, "dataset.root", place)
    same_count(x, y, "dataset.root", place)
    largest = int(y.max())
    if largest >= source.classes:
        remedy = f"{name} has {source.classes} classes."
        raise DataError("dataset.root", place, f"holds the class {largest}", remedy)
    return x, y


def _loader(name: str) -> Any:
    import torchvision.datasets

    base = getattr(torchvision.datasets, name)
    if not hasattr(base, "_check_legacy_exist"):
        return base
    # A `processed/training.pt` beside `raw/` would be read with torch.load in place of the raw files. The
    # subclass keeps the name because torchvision derives the folder from it.
    return type(name, (base,), {"_check_legacy_exist": lambda self: False})

"""Load the records of a design: one dataset that is shared out, or a directory with a file for each site."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.data.datasets import DATASETS, load_dataset
from fdaudit.data.files import read_arrays
from fdaudit.data.partition import partition
from fdaudit.data.raw import as_images, as_labels, as_vectors, class_total, same_count
from fdaudit.data.resize import to_unit
from fdaudit.data.splits import set_aside
from fdaudit.data.tables.named import NAMED
from fdaudit.data.texts.files import TEXTS
from fdaudit.errors import DataError, UsageError, nearest
from fdaudit.limits import DATA_BYTES, MOST_CLIENTS
from fdaudit.rng import SecretStream
from fdaudit.spec.schema import DatasetSpec, PartitionSpec

__all__ = ["DesignSpec", "SiteRecords", "load_site_records"]

_SITE = re.compile(r"client-(0|[1-9][0-9]{0,3})\.npz")
_SHARED = ("auxiliary", "public", "test")
_DEFAULTS = {"auxiliary": 0.1, "public": 0.0, "test": 0.1}


class DesignSpec(Config):
    """The options of a design, without its data."""

    sites: int | None = Field(None, ge=1, le=MOST_CLIENTS)
    """Number of sites; may be left out if each site has a file."""
    fraction: float = Field(0.5, gt=0, le=1)
    """Share of each site's records that are candidates. Half of them are left out."""
    auxiliary: float | None = Field(None, ge=0, lt=1)
    """Share of a dataset that no site gets and an adversary is assumed to hold; default: 0.1."""
    public: float | None = Field(None, ge=0, lt=1)
    """Share of a dataset that every party gets; default: none."""
    test: float | None = Field(None, ge=0, lt=1)
    """Share of a dataset that is kept to measure accuracy; default: 0.1, or the dataset's own test split."""
    partition: PartitionSpec | None = None
    """How a dataset is shared out; default: evenly."""
    image_size: int | None = Field(None, ge=4, le=512)
    """Side of the square that a dataset's images are padded or resized to."""


@dataclass(frozen=True, eq=False)
class SiteRecords:
    """The records of all sites, and those that no site holds.

    Attributes:
        name: of the data, without the folders above it.
        x: images as an npz file holds them, (n, h, w) or (n, h, w, c), uint8 or floats in [0, 1]; or rows (n, d) of a
            table. None if the sites keep them.
        y: (n,) int64 classes, or (n, C) of the multi-label task.
        classes: number of classes, C.
        sites: the rows of each site, in its own order.
        shared: the rows of `auxiliary`, `public` and `test`.
        own_files: whether the sites have their records already, in files of their own.
    """

    name: str
    x: NDArray[Any] | None
    y: Tensor
    classes: int
    sites: tuple[Tensor, ...]
    shared: Mapping[str, Tensor]
    own_files: bool

    def arrays(self, rows: Tensor | None = None) -> dict[str, NDArray[Any]]:
        """Return `x` and `y` as an npz file holds them, for some rows or for all."""
        arrays = {"y": self.y.numpy()}
        if self.x is not None:
            arrays = {"x": self.x, **arrays}
        if rows is None:
            return arrays
        return {name: array[rows.numpy()] for name, array in arrays.items()}


def load_site_records(data: str, spec: DesignSpec, stream: SecretStream) -> SiteRecords:
    """Return the records that `data` names.

    Args:
        data: a dataset as in a spec, or a directory that holds `client-0.npz`, `client-1.npz`, ….
        spec: number of sites, and the shares of a dataset that no site gets.
        stream: decides which records of a dataset each site gets, and in which order.

    Raises:
        DataError: the data are absent, damaged or unfit.
        UsageError: an option does not belong to such data.
    """
    scheme, _, path = data.partition(":")
    if scheme == "masks":
        raise DataError("DATA", data, "is for segmentation", "Give records with labels, npz: or folder:.")
    if scheme == "text" or data in TEXTS:
        raise DataError("DATA", data, "holds texts", "Give records with labels, npz: or folder:.")
    if scheme == "table" or data in NAMED:
        remedy = "Give a directory with a file for each site: client-0.npz with x (n, d), as it is trained on, and y."
        raise DataError("DATA", data, "is a table, whose vectors your own code makes", remedy)
    if path and scheme in ("npz", "folder"):
        place = Path(path).expanduser().absolute()
        if not place.exists():
            raise DataError("DATA", data, "does not exist", "Give the path of your data.")
        records = _of_dataset(f"{scheme}:{place}", f"{scheme}:{place.name}", spec, stream)
    elif data in DATASETS:
        records = _of_dataset(data, data, spec, stream)
    elif Path(data).is_dir():
        records = _of_files(Path(data), spec)
    else:
        raise DataError("DATA", data, "is no directory and no known dataset", nearest(data, DATASETS))
    size = sum(array.nbytes for array in records.arrays().values())
    if size > DATA_BYTES.most:
        raise DataError("DATA", data, f"has {DATA_BYTES.refusal(size)}", "Give fewer or smaller images.")
    return records


# -- one dataset --------------------------------------------------------------------------------------------------


def _of_dataset(where: str, name: str, spec: DesignSpec, stream: SecretStream) -> SiteRecords:
    if spec.sites is None:
        raise UsageError("sites", None, "is missing", "Give the number of sites.")
    dataset = load_dataset(DatasetSpec(name=where, image_size=spec.image_size), stream)
    fractions = _fractions(spec, own_test=dataset.test_y is not None)
    shared, rest = set_aside(dataset.y, fractions, dataset.classes, stream)
    for kind, rows in shared.items():
        if fractions[kind] and not len(rows):
            problem = f"gives no record out of {len(dataset.y)}"
            raise DataError(kind, fractions[kind], problem, "Raise it, or give 0.")
    rule = spec.partition or PartitionSpec()
    sites = []
    for part in partition(dataset.y[rest], spec.sites, rule, stream, dataset.classes, minimum=2):
        order = torch.from_numpy(stream.permutation(len(part)))
        sites.append(rest[part[order]])
    x, y = dataset.x, dataset.y
    if "test" not in fractions and dataset.test_x is not None and dataset.test_y is not None:
        x, y = torch.cat((x, dataset.test_x)), torch.cat((y, dataset.test_y))
        shared["test"] = torch.arange(len(dataset.y), len(y))
    whole = (x * 255).round().to(torch.uint8)
    if torch.equal(to_unit(whole), x):  # a quarter of the size, and nothing is lost
        x = whole
    channels_last = x.permute(0, 2, 3, 1)
    if channels_last.shape[-1] == 1:
        channels_last = channels_last[..., 0]
    return SiteRecords(
        name=name,
        x=np.ascontiguousarray(channels_last.numpy()),
        y=y,
        classes=dataset.classes,
        sites=tuple(sites),
        shared=shared,
        own_files=False,
    )


def _fractions(spec: DesignSpec, *, own_test: bool) -> dict[str, float]:
    """Return the share of each kind of records that no site gets; none for `test` if the dataset has its own."""
    if own_test and spec.test:
        raise UsageError("test", spec.test, "is more than the dataset's own test split", "Leave it out.")
    fractions = dict(_DEFAULTS)
    if own_test:
        del fractions["test"]
    for name in _SHARED:
        fraction = getattr(spec, name)
        if fraction is not None:
            fractions[name] = fraction
    total = round(sum(fractions.values()), 6)
    if total >= 1:
        raise UsageError("auxiliary", total, "with public and test leaves no records", "Lower the three.")
    return fractions


# -- a file for each site -----------------------------------------------------------------------------------------


def _of_files(folder: Path, spec: DesignSpec) -> SiteRecords:
    for name in (*_SHARED, "partition", "image_size"):
        if getattr(spec, name) is not None:
            problem = "does not belong to sites that have records of their own"
            remedy = f"Put {name}.npz into DATA." if name in _SHARED else "Leave it out."
            raise UsageError(name, getattr(spec, name), problem, remedy)
    files = _files(folder, spec.sites)
    images, labels, size, total = list[NDArray[Any]](), list[Tensor](), 0, 0
    sites, shared = list[Tensor](), dict[str, Tensor]()
    first: dict[str, NDArray[Any]] | None = None
    for file in files:
        arrays = _records(file, files[0], first)
        first = first or arrays
        size += sum(array.nbytes for array in arrays.values())
        if size > DATA_BYTES.most:
            raise DataError("DATA", str(folder), f"has {DATA_BYTES.refusal(size)}", "Give fewer records.")
        if "x" in arrays:
            images.append(arrays["x"])
        labels.append(as_labels(arrays["y"], "DATA", f"y of {file}"))
        rows = torch.arange(total, total + len(labels[-1]))
        total += len(rows)
        if file.stem in _SHARED:
            shared[file.stem] = rows
        else:
            sites.append(rows)
    classes = class_total(labels, "DATA", str(folder))
    return SiteRecords(
        name=folder.resolve().name,
        x=np.concatenate(images) if images else None,
        y=torch.cat(labels),
        classes=classes,
        sites=tuple(sites),
        shared=shared,
        own_files=True,
    )


def _files(folder: Path, sites: int | None) -> list[Path]:
    """Return the files of the sites by number, then those of records that no site holds."""
    names = set[str]()
    for path in folder.iterdir():
        if path.suffix == ".npz":
            names.add(path.name)
    shared = [f"{name}.npz" for name in _SHARED if f"{name}.npz" in names]
    count = len(names) - len(shared)
    of_sites = [f"client-{k}.npz" for k in range(count)]
    for name in sorted(names.difference(shared)):
        if not _SITE.fullmatch(name):
            remedy = "Name them client-0.npz, client-1.npz, …."
            raise DataError("DATA", str(folder / name), "is no site's file", remedy)
    if not count:
        raise DataError("DATA", str(folder), "holds no client-0.npz", "Put a file for each site there.")
    for name in of_sites:
        if name not in names:
            problem = f"holds files of {count} sites and no {name}"
            raise DataError("DATA", str(folder), problem, "Number the sites from 0.")
    if sites not in (None, count):
        raise UsageError("sites", sites, f"is not the number of files, {count}", "Leave it out.")
    return [folder / name for name in (*of_sites, *shared)]


def _records(file: Path, first: Path, like: Mapping[str, NDArray[Any]] | None) -> dict[str, NDArray[Any]]:
    """Return `x`, if the file has it, and `y`, after a check against the first file's arrays."""
    arrays = read_arrays(file, ("x", "y"), "DATA")
    if "y" not in arrays:
        raise DataError("DATA", str(file), "lacks y", "Store the labels as y, and the images as x.")
    labels = as_labels(arrays["y"], "DATA", f"y of {file}")
    if "x" in arrays:
        checked = as_vectors if arrays["x"].ndim == 2 else as_images
        same_count(checked(arrays["x"], "DATA", f"x of {file}"), labels, "DATA", str(file))
    if like is not None and arrays.keys() != like.keys():
        problem = "has images, and the first file has none"
        if "x" in like:
            problem = "has no images, and the first file has"
        raise DataError("DATA", str(file), problem, "Store x in all files, or in none.")
    if like is not None and "x" in like:
        ours = f"{arrays['x'].dtype} {arrays['x'].shape[1:]}"
        theirs = f"{like['x'].dtype} {like['x'].shape[1:]}"
        if ours != theirs:
            problem = f"has images {ours}, and {first.name} {theirs}"
            raise DataError("DATA", str(file), problem, "Store all with one type and shape.")
    return arrays

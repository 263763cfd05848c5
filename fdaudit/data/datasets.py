"""Datasets by name, and the common form of loaded datasets."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fdaudit.data.composed import read_digits_multilabel
from fdaudit.data.files import read_folder, read_npz, resolve_path
from fdaudit.data.named import TORCHVISION, read_digits, read_torchvision
from fdaudit.data.raw import RawData
from fdaudit.data.resize import fit, to_unit
from fdaudit.data.stratify import stratified_draw
from fdaudit.errors import DataError, nearest
from fdaudit.rng import SecretStream
from fdaudit.spec.schema import DatasetSpec
from fdaudit.types import Task, task_of

__all__ = ["DATASETS", "Dataset", "load_dataset"]

DATASETS: tuple[str, ...] = ("digits", "digits-multilabel", *sorted(TORCHVISION), "folder:DIR", "npz:FILE")
"""Every name `dataset.name` may have; DIR and FILE are paths."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Images with their labels: one class each, or a yes or no for each class.

    Guarantees:
      * `x` and `test_x` are finite and in [0, 1];
      * labels are in [0, `classes`); multi-label ones are 1 (occurs), 0 (does not) or -1 (unknown);
      * there is one label, or one row of labels, per image;
      * training and test images have the same shape, and their labels belong to the same task;
      * there is one identity per image, or none at all.

    Attributes:
        name: name in the spec.
        x: (n, c, h, w) float32 in [0, 1].
        y: (n,) int64, or (n, C) of the multi-label task.
        test_x: (m, c, h, w), the official test split; None if there is none and one is held out.
        test_y: (m,) or (m, C), its labels.
        classes: number of classes C.
        provenance: one sentence: source, and licence if known.
        identities: (n,) int64, the person behind each image of `x`, negative if unknown; None without identities.
        class_names: C names, for people to read; empty if the classes have none.

    Raises:
        DataError: a guarantee would not hold.
    """

    name: str
    x: Tensor
    y: Tensor
    test_x: Tensor | None = None
    test_y: Tensor | None = None
    classes: int
    provenance: str
    identities: Tensor | None = None
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self.x, self.y, self.classes, self.name)
        whose = self.identities
        if whose is not None and (whose.shape != (len(self.x),) or whose.dtype != torch.int64):
            problem = f"has {len(self.x)} images but identities {whose.dtype} {tuple(whose.shape)}"
            raise DataError("dataset", self.name, problem, "Give one int64 identity for each image.")
        if (self.test_x is None) != (self.test_y is None):
            raise DataError(
                "dataset", self.name, "has half a test split", "Give test_x and test_y, or neither."
            )
        if self.test_x is not None and self.test_y is not None:
            _check(self.test_x, self.test_y, self.classes, self.name)
            if self.test_x.shape[1:] != self.x.shape[1:]:
                raise DataError(
                    "dataset", self.name, "has training and test images of unlike shape", "Give one shape."
                )
            if task_of(self.test_y) != self.task:
                problem = f"has {self.task} training and {task_of(self.test_y)} test labels"
                raise DataError("dataset", self.name, problem, "Give labels of one task.")

    @property
    def task(self) -> Task:
        """Return the task: one class per image, or a yes or no for each class."""
        return task_of(self.y)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Return (channels, height, width) of one image."""
        c, h, w = self.x.shape[1:]
        return int(c), int(h), int(w)

    def sha256(self) -> str:
        """Return the digest of every tensor's name, dtype, shape and little-endian bytes, in hexadecimal.

        It is unsalted, so it confirms a guess of the data: salt it before publication.
        """
        digest = hashlib.sha256()
        names = ("x", "y", "test_x", "test_y", *(("identities",) if self.identities is not None else ()))
        for name in names:
            tensor: Tensor | None = getattr(self, name)
            if tensor is None:
                digest.update(f"{name}:none;".encode())
                continue
            array = tensor.detach().cpu().contiguous().numpy()
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            digest.update(f"{name}:{array.dtype.name}:{tuple(array.shape)};".encode())
            digest.update(np.ascontiguousarray(little).data)
        return digest.hexdigest()


def load_dataset(spec: DatasetSpec, stream: SecretStream) -> Dataset:
    """Return the dataset that `spec` names.

    Args:
        spec: name, place and size.
        stream: draws the records that `spec.limit` keeps, from the labels only; otherwise unused.

    Raises:
        DataError: the name is unknown, or the files are absent, damaged or unfit.
    """
    raw = _read(spec)
    if not len(raw.y):
        raise DataError("dataset.name", spec.name, "holds no record", "Give one with records.")
    if spec.limit is not None and spec.limit < len(raw.y):
        kept, _ = stratified_draw(raw.y, spec.limit, raw.classes, stream)
        whose = None if raw.identities is None else raw.identities[kept]
        raw = replace(raw, x=raw.x[kept], y=raw.y[kept], identities=whose)
    return Dataset(
        name=spec.name,
        x=_sized(raw.x, spec.image_size),
        y=raw.y,
        test_x=None if raw.test_x is None else _sized(raw.test_x, spec.image_size),
        test_y=raw.test_y,
        classes=raw.classes,
        provenance=raw.provenance,
        identities=raw.identities,
        class_names=raw.class_names,
    )


def _read(spec: DatasetSpec) -> RawData:
    root = _root(spec.root)
    scheme, colon, rest = spec.name.partition(":")
    if colon and rest and scheme in ("npz", "folder"):
        path = resolve_path(rest, root, "dataset.name")
        return read_npz(path) if scheme == "npz" else read_folder(path, spec.image_size)
    if spec.name == "digits":
        return read_digits()
    if spec.name == "digits-multilabel":
        return read_digits_multilabel()
    if spec.name in TORCHVISION:
        return read_torchvision(spec.name, root, spec.download)
    raise DataError("dataset.name", spec.name, "is not a known dataset", nearest(spec.name, DATASETS))


def _root(root: str | None) -> Path:
    if root is not None:
        return Path(root).expanduser()
    if os.environ.get("FDAUDIT_DATA"):
        return Path(os.environ["FDAUDIT_DATA"]).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "fdaudit"


def _sized(x: Tensor, size: int | None) -> Tensor:
    return to_unit(x) if size is None else fit(x, size)


def _check(x: Tensor, y: Tensor, classes: int, name: str) -> None:
    if x.ndim != 4 or x.dtype != torch.float32 or min(x.shape[1:]) < 1:
        raise DataError(
            "dataset",
            name,
            f"has images {x.dtype} {tuple(x.shape)}",
            "Give float32 (n, c, h, w), h and w from 1 on.",
        )
    expected = (len(x),) if task_of(y) == "single-label" else (len(x), classes)
    if y.shape != expected or y.dtype != torch.int64:
        raise DataError(
            "dataset",
            name,
            f"has {len(x)} images but labels {y.dtype} {tuple(y.shape)}",
            "Give one int64 label for each image, or one for each image and class.",
        )
    if not len(x):
        return  # of a recording, an auditor may hold no record
    if not torch.isfinite(x).all():
        raise DataError("dataset", name, "holds NaN or infinite values", "Remove or repair those records.")
    low, high = x.aminmax()
    if low < 0.0 or high > 1.0:
        raise DataError("dataset", name, f"holds values in [{low:g}, {high:g}]", "Scale images to [0, 1].")
    least, most = (0, classes - 1) if task_of(y) == "single-label" else (-1, 1)
    if int(y.min()) < least or int(y.max()) > most:
        raise DataError(
            "dataset",
            name,
            f"holds labels from {int(y.min())} to {int(y.max())} for {classes} classes",
            "Number the classes from 0." if least == 0 else "Give -1, 0 or 1 for each class.",
        )

"""Datasets by name, and the common form of loaded datasets."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fdaudit.data.files import read_npz, resolve_path
from fdaudit.data.folders import read_folder
from fdaudit.data.masks import read_masks
from fdaudit.data.named import TORCHVISION, read_digits, read_digits_multilabel, read_torchvision
from fdaudit.data.raw import RawData
from fdaudit.data.stratify import stratified_draw
from fdaudit.data.tables.named import NAMED, named_table
from fdaudit.data.tables.reading import rows_of
from fdaudit.data.tables.sheet import sheet_in
from fdaudit.data.texts.files import TEXTS, read_named_texts, read_texts
from fdaudit.data.texts.wordpieces import numbering_of
from fdaudit.errors import DataError, nearest
from fdaudit.rng import SecretStream
from fdaudit.spec.schema import DatasetSpec
from fdaudit.tasks import TASKS, Task, task_of
from fdaudit.tasks.columns import Column, width_of

__all__ = ["DATASETS", "LENGTH", "VOCABULARY", "Dataset", "data_root", "load_dataset"]

DATASETS: tuple[str, ...] = (
    "digits",
    "digits-multilabel",
    *sorted((*TORCHVISION, *TEXTS, *NAMED)),
    "folder:DIR",
    "masks:FILE",
    "npz:FILE",
    "table:FILE",
    "text:FILE",
)
"""Every name `dataset.name` may have; DIR and FILE are paths."""
LENGTH, VOCABULARY = 32, 8192
"""Tokens of a text, and most words of a vocabulary, if the spec does not say."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Images with their labels: one class each, a yes or no for each class, or a class for each pixel.

    Or texts, or rows of a table.

    Guarantees:
      * images `x` and `test_x` are finite and in [0, 1]; texts have one class each and numbers of `words`;
      * rows have one class each, and `columns` says what each entry means;
      * labels are in [0, `classes`); multi-label ones are 1 (occurs), 0 (does not) or -1 (unknown);
      * there is one label, or one row of labels, per image;
      * training and test images have the same shape, and their labels belong to the same task;
      * there is one identity, one site and one picture per image, or none at all;
      * in segmentation, each pixel has one class; objects, if known, have the masks' shape.

    Attributes:
        name: name in the spec.
        x: (n, c, h, w) float32 in [0, 1], token numbers (n, L) int64, or rows (n, d) float32. Images and rows that were
            not brought to an import are on the device `meta`: they have a shape and no values, and code that reads one
            fails.
        y: (n,) int64, (n, C) of the multi-label task, or (n, h, w) of segmentation.
        test_x: (m, c, h, w) or (m, L), the official test split; None if there is none and one is held out.
        test_y: (m,) or (m, C), its labels.
        classes: number of classes C.
        provenance: one sentence: source, and licence if known.
        identities: (n,) int64, the person behind each image of `x`, negative if unknown; None without identities.
        class_names: C names, for people to read; empty if the classes have none.
        objects: (n, h, w) int32, for segmentation: 0, or the number of a pixel's object in its image; None if unknown.
        sites: (n,) int64, the site behind each image of `x`, counted from 0; None without sites.
        pictures: (n,) int64, the picture that each image of `x` was cut from; None if every image is one.
        words: the word of each token number, first padding and the unknown word; empty for images.
        columns: what the entries of rows mean, in order; empty for images and texts, and for rows of an import without
            a description.
        origins: (n, 2) int64, a digest of each record as its source stores it, whatever this run makes of it (size,
            vocabulary, length); None if the source is unknown. They are no part of `sha256`.
        groups: (n,) int64, the group that each record belongs to, for ε of the unit `group`: as the source says, or by
            picture, or by person; None if nothing is known. No part of `sha256`.

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
    objects: Tensor | None = None
    sites: Tensor | None = None
    pictures: Tensor | None = None
    words: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    origins: Tensor | None = None
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        n = len(self.x)
        self._check_records(self.x, self.y)
        for name in ("identities", "sites", "pictures", "groups"):
            numbers = getattr(self, name)
            if numbers is not None and (numbers.shape != (n,) or numbers.dtype != torch.int64):
                problem = f"has {n} images but {name} {numbers.dtype} {tuple(numbers.shape)}"
                raise self._unfit(problem, f"Give one int64 of {name} for each image.")
        if self.origins is not None and self.origins.shape != (n, 2):
            problem = f"has {n} records but origins {tuple(self.origins.shape)}"
            raise self._unfit(problem, "Give one digest for each record.")
        if self.objects is not None and self.objects.shape != self.y.shape:
            problem = f"has masks {tuple(self.y.shape)} but objects {tuple(self.objects.shape)}"
            raise self._unfit(problem, "Give the objects of each mask.")
        if self.columns and self.x.shape[1:] != (width_of(self.columns),):
            problem = f"has rows {tuple(self.x.shape)} and columns of {width_of(self.columns)} entries"
            raise self._unfit(problem, "Describe every entry of a row once.")
        if (self.test_x is None) != (self.test_y is None):
            raise self._unfit("has half a test split", "Give test_x and test_y, or neither.")
        if self.test_x is not None and self.test_y is not None:
            self._check_records(self.test_x, self.test_y)
            if self.test_x.shape[1:] != self.x.shape[1:]:
                raise self._unfit("has training and test images of unlike shape", "Give one shape.")
            test_task = task_of(self.test_x, self.test_y)
            if test_task != self.task:
                problem = f"has {self.task.name} training and {test_task.name} test labels"
                raise self._unfit(problem, "Give labels of one task.")

    def _check_records(self, x: Tensor, y: Tensor) -> None:
        try:
            task = task_of(x, y)
        except ValueError:
            problem = f"has inputs {x.dtype} {tuple(x.shape)} with labels {tuple(y.shape)}"
            remedy = (
                "Give float32 images (n, c, h, w) or rows (n, d), or int64 texts (n, L), and labels (n,), (n, C) or "
                "(n, h, w)."
            )
            raise self._unfit(problem, remedy) from None
        misfit = task.inputs.misfit(x, len(self.words))
        if misfit is not None:
            raise self._unfit(misfit.problem, misfit.remedy)
        label_shape = task.labels.shape(self.classes, tuple(x.shape[1:]))
        if y.shape != (len(x), *label_shape) or y.dtype != torch.int64:
            problem = f"has {len(x)} records but labels {y.dtype} {tuple(y.shape)}"
            remedy = (
                "Give one int64 label for each record, one for each record and class, or one for each pixel."
            )
            raise self._unfit(problem, remedy)
        if not len(x):
            return  # of a recording, an auditor may hold no record
        least, most = int(y.min()), int(y.max())
        bounds = task.labels.bounds(self.classes)
        if least < bounds.least or most > bounds.most:
            problem = f"holds labels from {least} to {most} for {self.classes} classes"
            raise self._unfit(problem, bounds.remedy)

    def _unfit(self, problem: str, remedy: str) -> DataError:
        return DataError("dataset", self.name, problem, remedy)

    @property
    def task(self) -> Task:
        """Return the learning task, which the records and their labels tell."""
        return task_of(self.x, self.y)

    @property
    def known_groups(self) -> Tensor | None:
        """Return the group (n,) of each record that a guess of its image may use: its class, or the site of a mask.

        None if a guess may use neither: several labels a record, texts, or masks without sites.
        """
        return self.task.known_groups(self.y, self.sites)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return (channels, height, width) of one image, or (L,) of one text."""
        return tuple(self.x.shape[1:])

    def sha256(self) -> str:
        """Return the digest of every tensor's name, dtype, shape and little-endian bytes, in hexadecimal.

        It is unsalted, so it confirms a guess of the data: salt it before publication.
        """
        digest = hashlib.sha256()
        optional = ("identities", "objects", "sites", "pictures")
        for name in ("x", "y", "test_x", "test_y", *optional):
            tensor: Tensor | None = getattr(self, name)
            if tensor is None and name in optional:
                continue
            if tensor is None or tensor.is_meta:
                digest.update(f"{name}:none;".encode())
                continue
            array = tensor.detach().cpu().contiguous().numpy()
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            digest.update(f"{name}:{array.dtype.name}:{tuple(array.shape)};".encode())
            digest.update(np.ascontiguousarray(little).data)
        if self.words:
            digest.update("\n".join(self.words).encode())
        if self.columns:
            digest.update(repr(self.columns).encode())
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
    inputs = task_of(raw.x, raw.y).inputs
    for other in TASKS.values():
        for name in other.inputs.fields:
            value = getattr(spec, name)
            if value is not None and name not in inputs.fields:
                problem = f"does not belong to {inputs.plural}, which {spec.name} holds"
                raise DataError(f"dataset.{name}", value, problem, "Remove it.")
    if not len(raw.y):
        raise DataError("dataset.name", spec.name, "holds no record", "Give one with records.")
    if spec.limit is not None and spec.limit < len(raw.y):
        kept, _ = stratified_draw(raw.y, spec.limit, raw.classes, stream)
        raw = raw.rows(kept)
    fitted = raw.fitted(spec.image_size, spec.threshold)
    fitted = replace(fitted, groups=raw.known_groups, origins=raw.known_origins)
    return Dataset(name=spec.name, **vars(fitted))


def _read(spec: DatasetSpec) -> RawData:
    """Return what the source holds, as it is stored there."""
    root = data_root(spec.root)
    scheme, _, place = spec.name.partition(":")
    length = LENGTH if spec.length is None else spec.length
    if spec.name in NAMED:
        sheet, provenance = named_table(spec.name)
        return rows_of(sheet, spec.label, spec.columns, provenance)
    if place and scheme in ("npz", "folder", "masks", "table", "text"):
        path = resolve_path(place, root, "dataset.name")
        if scheme == "npz":
            return read_npz(path)
        if scheme == "folder":
            return read_folder(path, spec.image_size)
        if scheme == "masks":
            return read_masks(path)
        if scheme == "text":
            return read_texts(path, numbering_of(length, spec.wordpieces, root))
        provenance = f"The user's file {path.name}; licence not stated in it."
        return rows_of(sheet_in(path), spec.label, spec.columns, provenance)
    if spec.name == "digits":
        return read_digits()
    if spec.name == "digits-multilabel":
        return read_digits_multilabel()
    if spec.name in TEXTS:
        return read_named_texts(spec.name, root, numbering_of(length, spec.wordpieces, root))
    if spec.name in TORCHVISION:
        return read_torchvision(spec.name, root, spec.download)
    raise DataError("dataset.name", spec.name, "is not a known dataset", nearest(spec.name, DATASETS))


def data_root(root: str | None = None) -> Path:
    """Return the folder of datasets: `root` if given, else FDAUDIT_DATA, else a folder in the user's cache."""
    if root is not None:
        return Path(root).expanduser()
    if os.environ.get("FDAUDIT_DATA"):
        return Path(os.environ["FDAUDIT_DATA"]).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "fdaudit"

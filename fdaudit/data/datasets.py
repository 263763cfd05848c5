"""Datasets by name, and the common form of loaded datasets."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fdaudit.data.composed import read_digits_multilabel
from fdaudit.data.files import read_folder, read_npz, resolve_path
from fdaudit.data.masks import read_masks
from fdaudit.data.named import TORCHVISION, read_digits, read_torchvision
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
            not brought to an import are on the device `meta`: they have a shape and no values, and whoever reads one
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
        _check(self.x, self.y, self.classes, self.name, len(self.words))
        for what in ("identities", "sites", "pictures", "groups"):
            given = getattr(self, what)
            if given is not None and (given.shape != (len(self.x),) or given.dtype != torch.int64):
                problem = f"has {len(self.x)} images but {what} {given.dtype} {tuple(given.shape)}"
                raise DataError("dataset", self.name, problem, f"Give one int64 of {what} for each image.")
        if self.origins is not None and self.origins.shape != (len(self.x), 2):
            problem = f"has {len(self.x)} records but origins {tuple(self.origins.shape)}"
            raise DataError("dataset", self.name, problem, "Give one digest for each record.")
        if self.objects is not None and self.objects.shape != self.y.shape:
            problem = f"has masks {tuple(self.y.shape)} but objects {tuple(self.objects.shape)}"
            raise DataError("dataset", self.name, problem, "Give the objects of each mask.")
        if self.columns and self.x.shape[1:] != (width_of(self.columns),):
            problem = f"has rows {tuple(self.x.shape)} and columns of {width_of(self.columns)} entries"
            raise DataError("dataset", self.name, problem, "Describe every entry of a row once.")
        if (self.test_x is None) != (self.test_y is None):
            raise DataError(
                "dataset", self.name, "has half a test split", "Give test_x and test_y, or neither."
            )
        if self.test_x is not None and self.test_y is not None:
            _check(self.test_x, self.test_y, self.classes, self.name, len(self.words))
            if self.test_x.shape[1:] != self.x.shape[1:]:
                raise DataError(
                    "dataset", self.name, "has training and test images of unlike shape", "Give one shape."
                )
            test_task = task_of(self.test_x, self.test_y)
            if test_task != self.task:
                problem = f"has {self.task.name} training and {test_task.name} test labels"
                raise DataError("dataset", self.name, problem, "Give labels of one task.")

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
        names = ("x", "y", "test_x", "test_y", *(n for n in optional if getattr(self, n) is not None))
        for name in names:
            tensor: Tensor | None = getattr(self, name)
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
    _refuse_other_fields(spec, task_of(raw.x, raw.y))
    if not len(raw.y):
        raise DataError("dataset.name", spec.name, "holds no record", "Give one with records.")
    if spec.limit is not None and spec.limit < len(raw.y):
        kept, _ = stratified_draw(raw.y, spec.limit, raw.classes, stream)
        raw = raw.rows(kept)
    fitted = raw.fitted(spec.image_size, spec.threshold)
    return Dataset(
        name=spec.name,
        x=fitted.x,
        y=fitted.y,
        test_x=fitted.test_x,
        test_y=raw.test_y,
        classes=raw.classes,
        provenance=raw.provenance,
        identities=raw.identities,
        class_names=raw.class_names,
        objects=fitted.objects,
        sites=raw.sites,
        pictures=raw.pictures,
        words=raw.words,
        columns=raw.columns,
        groups=raw.known_groups,
        origins=raw.known_origins,
    )


def _refuse_other_fields(spec: DatasetSpec, task: Task) -> None:
    """Refuse a field that only records of another form have."""
    for other in TASKS.values():
        for name in other.inputs.fields:
            if name not in task.inputs.fields and (value := getattr(spec, name)) is not None:
                problem = f"does not belong to {task.inputs.plural}, which {spec.name} holds"
                raise DataError(f"dataset.{name}", value, problem, "Remove it.")


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
        if scheme == "table":
            said = f"The user's file {path.name}; licence not stated in it."
            return rows_of(sheet_in(path), spec.label, spec.columns, said)
        if scheme == "text":
            return read_texts(path, numbering_of(length, spec.wordpieces, root))
        if scheme == "masks":
            return read_masks(path)
        return read_npz(path) if scheme == "npz" else read_folder(path, spec.image_size)
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


def _check(x: Tensor, y: Tensor, classes: int, name: str, words: int) -> None:
    try:
        task = task_of(x, y)
    except ValueError:
        problem = f"has inputs {x.dtype} {tuple(x.shape)} with labels {tuple(y.shape)}"
        remedy = (
            "Give float32 images (n, c, h, w) or rows (n, d), or int64 texts (n, L), and labels (n,), (n, C) or "
            "(n, h, w)."
        )
        raise DataError("dataset", name, problem, remedy) from None
    misfit = task.inputs.misfit(x, words)
    if misfit is not None:
        raise DataError("dataset", name, misfit.problem, misfit.remedy)
    if y.shape != (len(x), *task.labels.shape(classes, tuple(x.shape[1:]))) or y.dtype != torch.int64:
        raise DataError(
            "dataset",
            name,
            f"has {len(x)} records but labels {y.dtype} {tuple(y.shape)}",
            "Give one int64 label for each record, one for each record and class, or one for each pixel.",
        )
    if not len(x):
        return  # of a recording, an auditor may hold no record
    bounds = task.labels.bounds(classes)
    if int(y.min()) < bounds.least or int(y.max()) > bounds.most:
        problem = f"holds labels from {int(y.min())} to {int(y.max())} for {classes} classes"
        raise DataError("dataset", name, problem, bounds.remedy)

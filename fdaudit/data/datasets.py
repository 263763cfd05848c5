"""Datasets by name, and the common form of loaded datasets."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fdaudit.data.composed import read_digits_multilabel
from fdaudit.data.files import read_folder, read_npz, resolve_path
from fdaudit.data.masks import read_masks
from fdaudit.data.named import TORCHVISION, read_digits, read_torchvision
from fdaudit.data.raw import RawData, image_origins
from fdaudit.data.resize import fit, fit_masks, to_unit
from fdaudit.data.stratify import stratified_draw
from fdaudit.data.texts.files import TEXTS, read_named_texts, read_texts
from fdaudit.data.texts.wordpieces import Pieces, find_pieces, read_pieces
from fdaudit.errors import DataError, nearest
from fdaudit.rng import SecretStream
from fdaudit.spec.schema import DatasetSpec
from fdaudit.types import Task, task_of

__all__ = ["DATASETS", "LENGTH", "VOCABULARY", "Dataset", "data_root", "load_dataset"]

DATASETS: tuple[str, ...] = (
    "digits",
    "digits-multilabel",
    *sorted((*TORCHVISION, *TEXTS)),
    "folder:DIR",
    "masks:FILE",
    "npz:FILE",
    "text:FILE",
)
"""Every name `dataset.name` may have; DIR and FILE are paths."""
LENGTH, VOCABULARY = 32, 8192
"""Tokens of a text, and most words of a vocabulary, if the spec does not say."""
_BY_RECORD = ("x", "y", "identities", "objects", "sites", "pictures", "origins", "groups")
"""Tensors of raw data with a row for each training record."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Images with their labels: one class each, a yes or no for each class, or a class for each pixel. Or texts.

    Guarantees:
      * images `x` and `test_x` are finite and in [0, 1]; texts have one class each and numbers of `words`;
      * labels are in [0, `classes`); multi-label ones are 1 (occurs), 0 (does not) or -1 (unknown);
      * there is one label, or one row of labels, per image;
      * training and test images have the same shape, and their labels belong to the same task;
      * there is one identity, one site and one picture per image, or none at all;
      * in segmentation, each pixel has one class; objects, if known, have the masks' shape.

    Attributes:
        name: name in the spec.
        x: (n, c, h, w) float32 in [0, 1], or token numbers (n, L) int64.
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
            if task_of(self.test_y) != task_of(self.y):
                problem = f"has {self.task} training and {task_of(self.test_y)} test labels"
                raise DataError("dataset", self.name, problem, "Give labels of one task.")

    @property
    def task(self) -> Task:
        """Return the task: one class per image, a yes or no for each class, a class for each pixel, or texts."""
        return "text" if self.words else task_of(self.y)

    @property
    def known_groups(self) -> Tensor | None:
        """Return the group (n,) of each record that a guess of its image may use: its class, or the site of a mask.

        None if a guess may use neither: several labels a record, texts, or masks without sites.
        """
        if self.task == "segmentation":
            return self.sites
        return self.y if self.task == "single-label" else None

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
            if tensor is None:
                digest.update(f"{name}:none;".encode())
                continue
            array = tensor.detach().cpu().contiguous().numpy()
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            digest.update(f"{name}:{array.dtype.name}:{tuple(array.shape)};".encode())
            digest.update(np.ascontiguousarray(little).data)
        if self.words:
            digest.update("\n".join(self.words).encode())
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
    _refuse_other_fields(spec, bool(raw.words))
    if not len(raw.y):
        raise DataError("dataset.name", spec.name, "holds no record", "Give one with records.")
    if spec.limit is not None and spec.limit < len(raw.y):
        kept, _ = stratified_draw(raw.y, spec.limit, raw.classes, stream)
        rows: dict[str, Any] = {
            name: None if (t := getattr(raw, name)) is None else t[kept] for name in _BY_RECORD
        }
        raw = replace(raw, **rows)
    return Dataset(
        name=spec.name,
        x=_sized(raw.x, spec.image_size),
        y=_sized_masks(raw.y, spec.image_size),
        test_x=None if raw.test_x is None else _sized(raw.test_x, spec.image_size),
        test_y=raw.test_y,
        classes=raw.classes,
        provenance=raw.provenance,
        identities=raw.identities,
        class_names=raw.class_names,
        objects=None if raw.objects is None else _sized_masks(raw.objects, spec.image_size),
        sites=raw.sites,
        pictures=raw.pictures,
        words=raw.words,
        groups=_groups(raw),
        origins=image_origins(raw.x) if raw.origins is None and not raw.words else raw.origins,
    )


def _groups(raw: RawData) -> Tensor | None:
    """Return the groups (n,) of records that a source states, or its pictures, or its persons; None without any.

    A record of an unknown person is a group of its own.
    """
    if raw.groups is not None or raw.pictures is not None:
        return raw.pictures if raw.groups is None else raw.groups
    if raw.identities is None:
        return None
    return torch.where(raw.identities < 0, -1 - torch.arange(len(raw.y)), raw.identities)


def _refuse_other_fields(spec: DatasetSpec, text: bool) -> None:
    """Refuse a field of images for texts, and a field of texts for images."""
    for name in ("image_size",) if text else ("length", "vocabulary", "wordpieces"):
        if (value := getattr(spec, name)) is not None:
            problem = f"does not belong to {'texts' if text else 'images'}, which {spec.name} holds"
            raise DataError(f"dataset.{name}", value, problem, "Remove it.")


def _read(spec: DatasetSpec) -> RawData:
    root = data_root(spec.root)
    scheme, colon, rest = spec.name.partition(":")
    length = LENGTH if spec.length is None else spec.length
    if colon and rest and scheme in ("npz", "folder", "masks", "text"):
        path = resolve_path(rest, root, "dataset.name")
        if scheme == "text":
            return read_texts(path, length, _pieces(spec, root))
        if scheme == "masks":
            return read_masks(path)
        return read_npz(path) if scheme == "npz" else read_folder(path, spec.image_size)
    if spec.name == "digits":
        return read_digits()
    if spec.name == "digits-multilabel":
        return read_digits_multilabel()
    if spec.name in TEXTS:
        return read_named_texts(spec.name, root, length, _pieces(spec, root))
    if spec.name in TORCHVISION:
        return read_torchvision(spec.name, root, spec.download)
    raise DataError("dataset.name", spec.name, "is not a known dataset", nearest(spec.name, DATASETS))


def _pieces(spec: DatasetSpec, root: Path) -> Pieces | None:
    """Return the word pieces that the spec's texts are cut into; None if they have words of their own."""
    field = "dataset.wordpieces"
    return None if spec.wordpieces is None else read_pieces(find_pieces(spec.wordpieces, root, field), field)


def data_root(root: str | None = None) -> Path:
    """Return the folder of datasets: `root` if given, else FDAUDIT_DATA, else a folder in the user's cache."""
    if root is not None:
        return Path(root).expanduser()
    if os.environ.get("FDAUDIT_DATA"):
        return Path(os.environ["FDAUDIT_DATA"]).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "fdaudit"


def _sized_masks(y: Tensor, size: int | None) -> Tensor:
    """Return masks (n, h, w) fitted to `size`; other labels as they are."""
    return y if size is None or y.ndim != 3 else fit_masks(y, size)


def _sized(x: Tensor, size: int | None) -> Tensor:
    """Return images as float32 in [0, 1], fitted to `size`; texts as they are."""
    if x.ndim == 2:
        return x
    return to_unit(x) if size is None else fit(x, size)


def _check(x: Tensor, y: Tensor, classes: int, name: str, words: int) -> None:
    if words:
        _check_texts(x, y, name, words)
    elif x.ndim != 4 or x.dtype != torch.float32 or min(x.shape[1:]) < 1:
        raise DataError(
            "dataset",
            name,
            f"has images {x.dtype} {tuple(x.shape)}",
            "Give float32 (n, c, h, w), h and w from 1 on.",
        )
    one = {"single-label": (), "multi-label": (classes,), "segmentation": x.shape[2:]}[task_of(y)]
    if y.shape != (len(x), *one) or y.dtype != torch.int64:
        raise DataError(
            "dataset",
            name,
            f"has {len(x)} images but labels {y.dtype} {tuple(y.shape)}",
            "Give one int64 label for each image, one for each image and class, or one for each pixel.",
        )
    if not len(x):
        return  # of a recording, an auditor may hold no record
    if not torch.isfinite(x).all():
        raise DataError("dataset", name, "holds NaN or infinite values", "Remove or repair those records.")
    low, high = x.aminmax()
    if not words and (low < 0.0 or high > 1.0):
        raise DataError("dataset", name, f"holds values in [{low:g}, {high:g}]", "Scale images to [0, 1].")
    least, most = (-1, 1) if task_of(y) == "multi-label" else (0, classes - 1)
    if int(y.min()) < least or int(y.max()) > most:
        raise DataError(
            "dataset",
            name,
            f"holds labels from {int(y.min())} to {int(y.max())} for {classes} classes",
            "Number the classes from 0." if least == 0 else "Give -1, 0 or 1 for each class.",
        )


def _check_texts(x: Tensor, y: Tensor, name: str, words: int) -> None:
    if x.ndim != 2 or x.dtype != torch.int64 or x.shape[1] < 1 or y.ndim != 1:
        problem = f"has texts {x.dtype} {tuple(x.shape)} with labels {tuple(y.shape)}"
        raise DataError("dataset", name, problem, "Give int64 (n, L), L from 1 on, and one class a text.")
    if len(x) and (int(x.min()) < 0 or int(x.max()) >= words):
        problem = f"holds tokens from {int(x.min())} to {int(x.max())} of {words} words"
        raise DataError("dataset", name, problem, "Number the words from 0.")

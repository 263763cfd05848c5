"""Images with one mask each: `masks:FILE`, for segmentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fdaudit.data.files import read_arrays
from fdaudit.data.raw import RawData, as_identities, as_images, printable
from fdaudit.errors import DataError

__all__ = ["read_masks"]

_FIELD = "dataset.name"
_MOST_NAMED = 12
"""Most sites that the provenance names."""


def read_masks(file: Path) -> RawData:
    """Read an npz file of images with the objects in them: two classes, background (0) and object (1).

    Its arrays, for n images of one size:

    * `images`: uint8 or floats in [0, 1], (n, h, w) or (n, h, w, c);
    * `instances`: whole numbers (n, h, w), 0 for the background and another number for each object of an image;
    * `source`, optional: (n,) the site that an image comes from, as text or a whole number;
    * `picture`, optional: (n,) the number of the picture that an image was cut from.

    Sites are numbered from 0 by their number of images, the largest first; sites of equal size by name.

    Raises:
        DataError: the file is absent or damaged, holds pickled objects, or has another layout.
    """
    if not file.exists():
        remedy = "Give a path below `dataset.root`, or an absolute path."
        raise DataError(_FIELD, f"masks:{file}", "names no file", remedy)
    arrays = read_arrays(file, ("images", "instances", "source", "picture"), _FIELD)
    missing = list[str]()
    for name in ("images", "instances"):
        if name not in arrays:
            missing.append(name)
    if missing:
        problem = f"lacks {', '.join(missing)}"
        raise DataError(_FIELD, str(file), problem, "Store the arrays under these names.")
    x = as_images(arrays["images"], _FIELD, f"images of {file}")
    objects = _objects(arrays["instances"], x, f"instances of {file}")
    sites, names = _sites(arrays.get("source"), len(x), f"source of {file}")
    pictures = None
    if "picture" in arrays:
        pictures = as_identities(arrays["picture"], len(x), _FIELD, f"picture of {file}")
    note = f"; sites, the largest first: {', '.join(names)}" if names else ""
    return RawData(
        x=x,
        y=(objects > 0).long(),
        classes=2,
        provenance=f"The user's file {file.name}{note}; licence not stated in it.",
        class_names=("background", "object"),
        objects=objects,
        sites=sites,
        pictures=pictures,
    )


def _objects(array: NDArray[Any], x: Tensor, what: str) -> Tensor:
    """Return the numbers of the objects (n, h, w), int32."""
    if array.dtype.kind not in "iu":
        remedy = "Store whole numbers, 0 for the background."
        raise DataError(_FIELD, what, f"has dtype {array.dtype}", remedy)
    if array.shape != (len(x), *x.shape[2:]):
        problem = f"has shape {array.shape} for {len(x)} images of {x.shape[2]}x{x.shape[3]}"
        raise DataError(_FIELD, what, problem, "Store one mask (h, w) for each image.")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > np.iinfo(np.int32).max:
        problem = f"holds the number {low if low < 0 else high}"
        raise DataError(_FIELD, what, problem, "Number the objects of an image 1, 2, …; 0 is the background.")
    if high == 0:
        raise DataError(_FIELD, what, "holds no object", "Give data with objects.")
    return torch.from_numpy(array.astype(np.int32))


def _sites(array: NDArray[Any] | None, n: int, what: str) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return the number of each image's site (n,), int64, and the names of the largest sites."""
    if array is None:
        return None, ()
    if array.dtype.kind not in "iuU":
        raise DataError(_FIELD, what, f"has dtype {array.dtype}", "Store text or whole numbers.")
    if array.shape != (n,):
        raise DataError(_FIELD, what, f"has shape {array.shape}", f"Store one site for each of {n} images.")
    names, number, counts = np.unique(array, return_inverse=True, return_counts=True)
    rank = np.empty(len(names), dtype=np.int64)
    order = np.argsort(-counts, kind="stable")
    rank[order] = np.arange(len(names))
    examples = list[str]()
    for name in names[order[:_MOST_NAMED]]:
        examples.append(printable(str(name)[:60]))
    return torch.from_numpy(rank[number]), tuple(examples)

"""Classes of the records behind an upload, and auxiliary batches of the same classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fdaudit.errors import UsageError
from fdaudit.models.network import last_layer

from .labels import recover_labels
from .mixtures import LastLayer, halfway, mixture_of
from .uploads import Upload

__all__ = ["batch_like", "class_means", "labels_behind"]

_MOST_AUXILIARY = 1024
"""Largest number of auxiliary records that represent the classes."""


def labels_behind(
    upload: Upload, module: nn.Module, n: int, probes: Tensor, auxiliary: tuple[Tensor, Tensor] | None
) -> Tensor:
    """Return the labels (n,) of n records behind an upload, in ascending order.

    One step shows each class's count (`recover_counts`); so do several where the network ends in no linear layer,
    as if they were one. Else an update of several steps is a mixture of per-class updates.
    Its shares do not depend on the number of steps or of records. Steps of Adam show little but signs: the classes
    whose last bias rose are those of the records, and their counts are assumed to be about equal.

    Args:
        upload: the upload.
        module: the architecture.
        n: number of labels to return; if one step mixes more records, n of them, evenly spaced.
        probes: (m, c, h, w) images that stand in for the clients'.
        auxiliary: records (x, y), needed for several steps; without them one step is assumed.
    """
    as_one = upload.update is None or upload.training.adaptive
    if as_one or auxiliary is None or not _answers_linearly(module, auxiliary[0]):
        images = upload.training.images
        labels = recover_labels(upload.gradient, module, upload.start, images, probes)
        return labels if images == n else labels[torch.linspace(0, images - 1, n).round().long()]
    shares = _shares(upload, module, *(t[:_MOST_AUXILIARY] for t in auxiliary))
    counts = _apportioned(shares, n)
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def batch_like(labels: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers (n,) of auxiliary records, one for each label (n,), in random order.

    A class without auxiliary records is replaced by records of any class. A class with too few shows some twice.

    Args:
        labels: the classes wanted.
        y: (N,) classes of the auxiliary records.
        generator: draws records and their order.
    """
    rows = []
    for label, count in zip(*labels.unique(return_counts=True), strict=True):
        pool = (y == label).nonzero()[:, 0]
        pool = pool if len(pool) else torch.arange(len(y))
        passes = [torch.randperm(len(pool), generator=generator) for _ in range(-(-int(count) // len(pool)))]
        rows.append(pool[torch.cat(passes)[: int(count)]])
    return torch.cat(rows)[torch.randperm(len(labels), generator=generator)]


def class_means(auxiliary: tuple[Tensor, Tensor], classes: int) -> Tensor:
    """Return the mean auxiliary image (C, c, h, w) of each class; the mean of all for a class without records."""
    x, y = auxiliary
    means = []
    for c in range(classes):
        own = x[y == c]
        means.append((own if len(own) else x).mean(0))
    return torch.stack(means)


def _answers_linearly(module: nn.Module, x: Tensor) -> bool:
    try:
        last_layer(module, x)
    except UsageError:
        return False
    return True


def _shares(upload: Upload, module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return class shares (C,) behind an update of several steps, from the gradients at both of its ends."""
    weight, bias = last_layer(module, x)
    classes = len(upload.gradient[weight])
    update = upload.update or {}
    after = {}
    for name, value in upload.start.items():
        after[name] = value + update[name] if name in update else value
    ends = [LastLayer.of(module, at, x, y, classes) for at in (upload.start, after)]
    if not ends[1].finite:
        ends[1] = ends[0]
    delta = update[weight].flatten(1)
    last = delta.new_zeros(classes) if bias is None else update[bias]
    shares = mixture_of(halfway(ends[0], ends[1], -torch.cat([delta, last[:, None]], 1)), classes)
    return shares if bool(shares.sum() > 0) else torch.full_like(shares, 1 / classes)


def _apportioned(shares: Tensor, n: int) -> Tensor:
    """Return counts (C,) that sum to n, by largest remainders."""
    exact = shares.double() * n
    counts = exact.floor()
    short = n - int(counts.sum())
    counts[(exact - counts).topk(min(short, len(counts))).indices] += 1
    return counts.long()

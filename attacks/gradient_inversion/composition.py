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
        if images == n:
            return labels
        return labels[torch.linspace(0, images - 1, n).round().long()]
    x, y = auxiliary
    expected = n * _shares(upload, module, x[:_MOST_AUXILIARY], y[:_MOST_AUXILIARY]).double()
    # Counts that sum to n, by largest remainders.
    counts = expected.floor()
    short = min(n - int(counts.sum()), len(counts))
    counts[(expected - counts).topk(short).indices] += 1
    return torch.repeat_interleave(torch.arange(len(counts)), counts.long())


def batch_like(labels: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers (n,) of auxiliary records, one for each label (n,), in random order.

    A class without auxiliary records is replaced by records of any class. A class with too few shows some twice.

    Args:
        labels: the classes wanted.
        y: (N,) classes of the auxiliary records.
        generator: draws records and their order.
    """
    rows = []
    classes, counts = labels.unique(return_counts=True)
    for label, count in zip(classes.tolist(), counts.tolist(), strict=True):
        pool = (y == label).nonzero()[:, 0]
        if not len(pool):
            pool = torch.arange(len(y))
        while count > 0:
            order = torch.randperm(len(pool), generator=generator)[:count]
            rows.append(pool[order])
            count -= len(order)
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
    end = dict(upload.start)
    for name in update.keys() & end.keys():
        end[name] = end[name] + update[name]
    before = LastLayer.of(module, upload.start, x, y, classes)
    after = LastLayer.of(module, end, x, y, classes)
    if not after.finite:
        after = before
    delta = update[weight].flatten(1)
    delta_bias = delta.new_zeros(classes) if bias is None else update[bias]
    sent = -torch.cat([delta, delta_bias[:, None]], 1)
    shares = mixture_of(halfway(before, after, sent), classes)
    if not shares.sum() > 0:
        return torch.full_like(shares, 1 / classes)
    return shares

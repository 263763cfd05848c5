"""Draws of records in proportion to the classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fdaudit.rng import SecretStream
from fdaudit.tasks import labels_of

__all__ = ["apportion", "stratified_draw"]


def apportion(total: int, weights: Sequence[int], caps: Sequence[int] | None = None) -> list[int]:
    """Return whole shares of `total` in proportion to `weights`, by the largest-remainder (Hamilton) method.

    Guarantees:
      * the shares sum to `total`, and none exceeds its cap;
      * if no cap binds, a share differs from its exact quota by less than one.

    Args:
        total: number of units to distribute.
        weights: non-negative integers; quotas are exact integer arithmetic.
        caps: the largest possible share of each; default: the weights.

    Raises:
        ValueError: `total` is negative or exceeds the sum of the caps.
    """
    caps = weights if caps is None else caps
    if not 0 <= total <= sum(caps):
        span = f"between 0 and {sum(caps)}, the sum of the caps"
        raise ValueError(f"apportion: total = {total} must lie {span}.")
    whole = max(sum(weights), 1)
    shares = [min(total * weight // whole, cap) for weight, cap in zip(weights, caps, strict=True)]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    remainder = total - sum(shares)
    while remainder:
        for i in by_remainder:
            if remainder and shares[i] < caps[i]:
                shares[i] += 1
                remainder -= 1
    return shares


def stratified_draw(y: Tensor, total: int, classes: int, stream: SecretStream) -> tuple[Tensor, Tensor]:
    """Return a random sample of `total` records with the classes in proportion, and the rest.

    Records that belong to several classes, or whose pixels do, are sampled at random.

    Args:
        y: (n,) class labels, (n, C) multi-label ones or masks (n, h, w); the only input to the draw.
        total: size of the sample, at most n.
        classes: number of classes, C; labels are in [0, C).
        stream: decides which records of each class are drawn.

    Returns:
        Two ascending index tensors (total,) and (n - total,) into `y`.
    """
    if not labels_of(y).one_class:
        order = torch.from_numpy(stream.permutation(len(y)))
        return order[:total].sort().values, order[total:].sort().values
    shares = apportion(total, torch.bincount(y, minlength=classes).tolist())
    sample = torch.zeros(len(y), dtype=torch.bool)
    for label, share in enumerate(shares):
        of_class = (y == label).nonzero().flatten()
        sample[of_class[torch.from_numpy(stream.permutation(len(of_class)))[:share]]] = True
    return sample.nonzero().flatten(), (~sample).nonzero().flatten()

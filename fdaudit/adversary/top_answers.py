"""Answers about the k most likely classes of a sample: attacks read them with a value for every class.

Guarantees:
  * a class that a row names keeps its value; the other classes of the row share one value;
  * another class never gets more than the smallest value that the row names;
  * probabilities: the other classes share what the row leaves of 1. A row that was scaled to sum to 1 leaves nothing;
  * logits: the others get one less than the smallest logit of the whole message. How much less they really had is not
    on record, and a row's own smallest logit would hide how sure an answer with k = 1 is;
  * with k = C the values are those of the message, ordered by class.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["every_class", "only_top", "strange_classes"]

_BELOW = 1.0
"""Distance of the classes that no row names from the smallest logit of a message, in nats."""


def every_class(tensors: Mapping[str, Tensor], read_as: str, classes: int) -> dict[str, Tensor]:
    """Return a message's tensors with `values` (n, C) in place of `values` (n, k) and `classes` (n, k).

    Args:
        tensors: the message's tensors; others are kept.
        read_as: `logits` or `soft_labels`.
        classes: number of classes C.

    Raises:
        ValueError: a row names a class twice, or one that does not exist.
    """
    if strange := strange_classes(tensors["classes"], classes):
        raise ValueError(f"answers about the most likely classes: {strange}.")
    values = tensors["values"].float()
    named = tensors["classes"].to(values.device).long()
    n, k = values.shape
    if not n or not k:
        rest = torch.zeros(n, 1, device=values.device)
    elif read_as == "logits":
        rest = (values.min() - _BELOW).expand(n, 1)
    else:
        left = (1 - values.sum(1, keepdim=True)) / max(classes - k, 1)
        rest = torch.minimum(left, values.amin(1, keepdim=True)).clamp_min(0)
    answers = dict(tensors)
    del answers["classes"]
    answers["values"] = rest.expand(n, classes).scatter(1, named, values)
    return answers


def only_top(values: Tensor, k: int, read_as: str) -> Tensor:
    """Return answers (n, C) about every class as `every_class` would return them had only the k largest been sent."""
    top = values.topk(min(k, values.shape[1]), dim=1)
    return every_class({"values": top.values, "classes": top.indices}, read_as, values.shape[1])["values"]


def strange_classes(named: Tensor, classes: int) -> str:
    """Return the first row that names a class twice, or one that does not exist; empty if there is none.

    Args:
        named: (n, k) the classes that each row names.
        classes: number of classes C.
    """
    if named.is_floating_point() and bool((named != named.round()).any()):
        return "classes are no whole numbers"
    ordered = named.cpu().long().sort(1).values
    outside = ((ordered < 0) | (ordered >= classes)).any(1)
    twice = (ordered.diff(dim=1) == 0).any(1)
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        wrong = ordered[row][(ordered[row] < 0) | (ordered[row] >= classes)]
        return f"row {row} names class {int(wrong[0])} of {classes}, which are numbered from 0"
    if bool(twice.any()):
        return f"row {int(twice.nonzero()[0])} names a class twice"
    return ""

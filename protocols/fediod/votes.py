"""Votes in place of logits: the count by FedIOD's aggregator, and the server's reading of the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["count_votes", "shares_of"]


def count_votes(ballots: Iterable[Mapping[str, Tensor]], samples: int, classes: int) -> Tensor:
    """Return the votes (n, C) for each class of each sample, as whole numbers.

    Guarantees:
      * a client casts at most one vote a sample: the last of several counts;
      * a sample or class that does not exist gets no vote.

    Args:
        ballots: of each client `index` (m,) and the classes `values` (m,).
        samples: n.
        classes: C.
    """
    total = torch.zeros(samples, classes, dtype=torch.int64)
    for ballot in ballots:
        vote = torch.full((samples,), -1)
        for i, c in zip(ballot["index"].tolist(), ballot["values"].tolist(), strict=True):
            if 0 <= i < samples and 0 <= c < classes:
                vote[i] = c
        cast = (vote >= 0).nonzero().flatten()
        total[cast, vote[cast]] += 1
    return total


def shares_of(told: Mapping[str, Tensor], samples: int, classes: int) -> Tensor:
    """Return the server's labels of each sample as shares of classes (n, C); zeros for a sample without a label.

    Args:
        told: `index` (m,) with `counts` (m, C) of votes, or with the classes `values` (m,) that a defence made of
            them. Values that a defence has moved out of range are ignored.
        samples: n.
        classes: C.
    """
    index = told["index"].cpu()
    known = (index >= 0) & (index < samples)
    if "counts" in told:
        votes = told["counts"].cpu().float().clamp_min(0)
    else:
        values = told["values"].cpu()
        known &= (values >= 0) & (values < classes)
        votes = F.one_hot(values.clamp(0, classes - 1), classes).float()
    found = torch.zeros(samples, classes)
    found[index[known]] = votes[known]
    total = found.sum(1, keepdim=True)
    return torch.where(total > 0, found / torch.where(total > 0, total, 1.0), 0.0)

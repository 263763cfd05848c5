"""Votes in place of logits: the count by FedIOD's aggregator, and the server's reading of the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from fdaudit.transcript.samples import sample_index

__all__ = ["count_votes", "shares_of"]


def count_votes(ballots: Iterable[Mapping[str, Tensor]], samples: int, classes: int) -> Tensor:
    """Return the votes (n, C) for each class of each sample, as whole numbers.

    Guarantees:
      * a client casts at most one vote a sample: the last of several counts;
      * a sample or class that does not exist gets no vote.

    Args:
        ballots: of each client the classes `values` (m,), and their `index` (m,) if they are not of all samples.
        samples: n.
        classes: C.
    """
    total = torch.zeros(samples, classes, dtype=torch.int64)
    for ballot in ballots:
        vote = torch.full((samples,), -1)
        for i, c in zip(sample_index(ballot).tolist(), ballot["values"].tolist(), strict=True):
            if 0 <= i < samples and 0 <= c < classes:
                vote[i] = c
        cast = (vote >= 0).nonzero().flatten()
        total[cast, vote[cast]] += 1
    return total


def shares_of(told: Mapping[str, Tensor], samples: int, classes: int) -> Tensor:
    """Return the server's labels of each sample as shares of classes (n, C); zeros for a sample without a label.

    Args:
        told: `counts` (m, C) of votes, or the classes `values` (m,) that a defence made of them, with their `index`
            (m,) if they are not of all samples. Values that a defence has moved out of range are ignored.
        samples: n.
        classes: C.
    """
    index = sample_index(told)
    valid = (index >= 0) & (index < samples)
    if "counts" in told:
        votes = told["counts"].cpu().float().clamp_min(0)
    else:
        values = told["values"].cpu().long()
        valid &= (values >= 0) & (values < classes)
        votes = F.one_hot(values.clamp(0, classes - 1), classes).float()
    labels = torch.zeros(samples, classes)
    labels[index[valid]] = votes[valid]
    total = labels.sum(1, keepdim=True)
    return torch.where(total > 0, labels / torch.where(total > 0, total, 1.0), 0.0)

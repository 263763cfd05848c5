"""Votes on public samples: what a client casts, what whoever counts them makes of it, and what is learnt from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["ballot", "count", "targets"]


def ballot(logits: Tensor, accepted: Tensor | None = None) -> Tensor:
    """The predicted classes (n,) of logits (n, C), and -1 for every sample that is not accepted: abstentions.

    A sample stays in the ballot whether it is voted on or not, so that the numbers of samples tell nothing.
    """
    votes = logits.argmax(1)
    if accepted is not None:
        votes = votes.where(accepted.to(votes.device), -1)
    return votes.to(torch.int8 if logits.shape[1] <= 128 else torch.int32)


def count(ballots: Iterable[Mapping[str, Tensor]], asked: Tensor, classes: int) -> Tensor:
    """Votes (n, C), int64, on the samples asked (n,), each named once: at most one a client and sample.

    What is no class is an abstention, and a sample that was not asked about does not exist. Of several votes of one
    client on one sample the first counts.
    """
    asked = asked.cpu().long()
    size = int(asked.max()) + 1 if len(asked) else 0
    position = torch.full((size,), -1)
    position[asked] = torch.arange(len(asked))
    counts = torch.zeros(len(asked), classes, dtype=torch.int64)
    for cast in ballots:
        index, votes = cast["index"].cpu().long(), cast["values"].cpu().long()
        known = (index >= 0) & (index < size)
        rows, votes = position[index[known]], votes[known]
        rows, votes = rows[rows >= 0], votes[rows >= 0]
        first = torch.full((len(asked),), len(rows))
        first.scatter_reduce_(0, rows, torch.arange(len(rows)), "amin")
        valid = (first[rows] == torch.arange(len(rows))) & (votes >= 0) & (votes < classes)
        counts[rows[valid], votes[valid]] += 1
    return counts


def targets(sent: Mapping[str, Tensor], samples: int, classes: int) -> dict[str, Tensor]:
    """What a model learns from `vote_counts`, or from the `hard_labels` that an aggregator with PATE makes of them.

    Returns:
        `index` (m,) int32 and `values` (m, C) float32: the shares of the votes, or one-hot labels. Samples on which
        nobody voted are left out, and what a defence has moved out of range: a sample or a class that does not exist,
        a count below nought.
    """
    index = sent["index"].cpu().long()
    if "counts" in sent:
        votes = sent["counts"].cpu().double().nan_to_num(posinf=0.0).clamp_min(0)
    else:
        labels = sent["values"].cpu().long()
        votes = F.one_hot(labels.clamp(0, classes - 1), classes).double()
        votes[(labels < 0) | (labels >= classes)] = 0
    total = votes.sum(1)
    kept = (index >= 0) & (index < samples) & (total > 0)
    return {"index": index[kept].int(), "values": (votes[kept] / total[kept, None]).float()}

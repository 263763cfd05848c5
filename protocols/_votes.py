"""Votes on public samples: the clients' ballots, their count, and the targets learnt from the count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from fdaudit.transcript.samples import narrow, sample_index

__all__ = ["ballot", "count", "targets"]


def ballot(logits: Tensor, accepted: Tensor | None = None) -> Tensor:
    """Return the predicted classes (n,) of logits (n, C), with -1 (abstention) for samples that are not accepted.

    Every sample stays in the ballot, so the sample numbers reveal nothing.
    """
    votes = logits.argmax(1)
    if accepted is not None:
        votes = votes.where(accepted.to(votes.device), -1)
    return narrow(votes, logits.shape[1], 0 if accepted is None else -1)


def count(ballots: Iterable[Mapping[str, Tensor]], asked: Tensor, classes: int) -> Tensor:
    """Return the votes (n, C), int64, on the requested samples (n,), each named once; at most one a client and sample.

    A vote for a class that does not exist is an abstention. A vote on a sample that was not requested is ignored. Of
    several votes of one client on one sample the first counts.
    """
    asked = asked.cpu().long()
    size = int(asked.max()) + 1 if len(asked) else 0
    position = torch.full((size,), -1)
    position[asked] = torch.arange(len(asked))
    counts = torch.zeros(len(asked), classes, dtype=torch.int64)
    for cast in ballots:
        index, votes = sample_index(cast), cast["values"].cpu().long()
        known = (index >= 0) & (index < size)
        rows, votes = position[index[known]], votes[known]
        rows, votes = rows[rows >= 0], votes[rows >= 0]
        first = torch.full((len(asked),), len(rows))
        first.scatter_reduce_(0, rows, torch.arange(len(rows)), "amin")
        valid = (first[rows] == torch.arange(len(rows))) & (votes >= 0) & (votes < classes)
        counts[rows[valid], votes[valid]] += 1
    return counts


def targets(sent: Mapping[str, Tensor], samples: int, classes: int) -> dict[str, Tensor]:
    """Return training targets from `vote_counts`, or from the `hard_labels` that a PATE aggregator made of them.

    Samples without votes are left out. So are values that a defence has moved out of range: a sample or a class that
    does not exist, or a negative count.

    Returns:
        `index` (m,) int32 and `values` (m, C) float32: the shares of the votes, or one-hot labels.
    """
    index = sample_index(sent)
    if "counts" in sent:
        votes = sent["counts"].cpu().double().nan_to_num(posinf=0.0).clamp_min(0)
    else:
        labels = sent["values"].cpu().long()
        votes = F.one_hot(labels.clamp(0, classes - 1), classes).double()
        votes[(labels < 0) | (labels >= classes)] = 0
    total = votes.sum(1)
    kept = (index >= 0) & (index < samples) & (total > 0)
    return {"index": index[kept].int(), "values": (votes[kept] / total[kept, None]).float()}

"""Scores of whole clients: one coin decided which of two sets of records a client holds.

An attack scores single records. The guess for a client is the set with the higher mean score. Its strength is the
difference of the means in units of the scores' spread, so that clients can be ranked.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["by_client"]


def by_client(scores: Mapping[str, Tensor], member: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return one matched pair a client: the set that it holds, and the set that its coin rejected.

    Args:
        scores: (n,) by client, of the records of both sets.
        member: (n,) booleans by client: which records it holds.

    Returns:
        Scores (2 K,) of both sets, which set is held (2 K,), and the number of the client (2 K,).
    """
    values, held = [], []
    for client, one in scores.items():
        score, inside = one.double(), member[client]
        spread = float(score.std(correction=0)) or 1.0
        apart = float(score[inside].mean() - score[~inside].mean()) / spread
        values += [apart / 2, -apart / 2]
        held += [True, False]
    pair = torch.arange(len(scores)).repeat_interleave(2)
    return torch.tensor(values, dtype=torch.float64), torch.tensor(held), pair

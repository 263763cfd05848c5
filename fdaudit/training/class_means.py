"""Mean predictions by class: the table (C, C) that FKD and PLS exchange, and the targets that a client makes of it.

Row c is the mean prediction for records of class c. A class without records has an all-zero row. Protocols use these
functions, and so do attacks that imitate their clients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["combine", "known", "mean_by_class", "mixed_targets", "predictions"]


def predictions(logits: Tensor, share: str) -> Tensor:
    """Return what a client averages (..., C): softmax outputs, or with `share` "hard" one-hot predicted classes."""
    if share == "soft":
        return logits.softmax(-1)
    return F.one_hot(logits.argmax(-1), logits.shape[-1]).float()


def mean_by_class(predictions: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the mean prediction of each class's records: row c of (C, C) is the mean over y = c.

    Args:
        predictions: (n, C), rows summing to 1.
        labels: (n,) true classes.
        classes: C.

    Returns:
        The table; the row of a class without records is all zero.
    """
    one_hot = F.one_hot(labels, classes).double()
    count = one_hot.sum(0)
    return ((one_hot.T @ predictions.double()) / count.clamp(min=1)[:, None]).float()


def known(table: Tensor) -> Tensor:
    """Return which rows of a table (C, C) are known (C,): rows that sum to more than a half.

    A known row sums to 1, an absent class's row to 0. A defence's noise can move a row across this threshold.
    """
    return table.sum(1) > 0.5


def combine(tables: Sequence[Tensor], classes: int) -> Tensor:
    """Return the mean of each class's rows over the tables that have it; a row that no table has is zero."""
    total = torch.zeros(classes, classes, dtype=torch.float64)
    count = torch.zeros(classes, 1, dtype=torch.float64)
    for table in tables:
        says = known(table)[:, None]
        total += torch.where(says, table.double(), 0.0)
        count += says
    return (total / count.clamp(min=1)).float()


def mixed_targets(labels: Tensor, teacher: Tensor, gamma: float) -> Tensor:
    """Return targets (n, C) whose cross-entropy is φ(F, y) + γ φ(F, teacher_y), if the teacher knows class y.

    Cross-entropy is linear in its target, so one cross-entropy with the sum of both targets gives both terms.
    """
    taught = torch.where(known(teacher)[:, None], teacher, 0.0)
    return F.one_hot(labels, len(teacher)).float() + gamma * taught[labels]

"""Shared parts of FKD and PLS: knowledge is a table of C rows, one mean prediction a class, without single records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fdaudit.federation.protocol import Setting
from fdaudit.transcript.wire import Delivery

from ._clients import ClientModels
from ._local import LocalTraining

__all__ = ["ClasswiseDistillation", "ClasswiseTraining", "combine", "known", "mean_by_class", "mixed_targets"]


class ClasswiseTraining(LocalTraining):
    """Local SGD with the class-wise teacher in the loss."""

    share: Literal["soft", "hard"] = "soft"
    """Average each class's softmax outputs, or its predicted classes."""
    gamma: float = Field(1.0, ge=0)
    """γ: weight of the teacher's cross-entropy; 0 trains alone."""


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
    total, count = (
        torch.zeros(classes, classes, dtype=torch.float64),
        torch.zeros(classes, 1, dtype=torch.float64),
    )
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


class ClasswiseDistillation(ClientModels):
    """The shared client steps of FKD and PLS: training towards labels and teacher, and predicting."""

    def __init__(self, config: ClasswiseTraining, setting: Setting) -> None:
        super().__init__(config, setting)
        self._classwise, self._classes = config, setting.classes
        for k in self._clients:
            self.state[f"{k}/teacher"] = torch.zeros(setting.classes, setting.classes)
            self.state[f"{k}/teacher_seq"] = torch.zeros(0, dtype=torch.int64)

    def _train_towards(self, t: int) -> dict[str, float]:
        """Run local SGD on φ(F, y) + γ φ(F, teacher_y)."""
        targets = {
            k: mixed_targets(data.y, self.state[f"{k}/teacher"], self._classwise.gamma)
            for k, data in self._clients.items()
        }
        taught = {k: self.state[f"{k}/teacher_seq"].tolist() for k in self._clients}
        return self._train("batches", t, targets=targets, taught=taught)

    def _own_predictions(self, k: str) -> Tensor:
        """Return client k's predictions (n, C) for its own records: softmax outputs, or one-hot predicted classes."""
        logits = self._predict(k, self._clients[k].x)
        if self._classwise.share == "soft":
            return logits.softmax(1)
        return F.one_hot(logits.argmax(1), self._classes).float()

    def _learn(self, k: str, sent: Delivery) -> None:
        """Give client k the teacher that it received, for its next local training."""
        self.state[f"{k}/teacher"] = sent["values"].cpu()
        self.state[f"{k}/teacher_seq"] = torch.tensor([sent.seq])

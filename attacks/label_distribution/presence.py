"""The classes that a client holds, from empty rows of its messages and from classes that never occur in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fdaudit.config import Config
from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.registry import AttackCard
from fdaudit.training.class_means import known
from fdaudit.transcript.messages import role
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._uploads import with_payload
from ._guesses import guesses

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["LabelPresence", "LabelPresenceConfig", "present_in_tables", "records_of_class", "top_classes"]

_TABLES = "class_prototypes"
_ANSWERS = ("hard_labels", "soft_labels", "logits")
_MOST_RECORDS = 1000
"""Largest number of records of a class that fractions are read as."""
_EXACT = 1e-4
"""Largest distance of a share times n from a whole number; float32 leaves 6e-5 of shares of 1,000."""


class LabelPresenceConfig(Config):
    """No settings."""


@reads_forms
class LabelPresence:
    """Names the classes that a client holds: those whose row of class means is ever filled, or that it ever predicts.

    A class without records has an empty row, of zeros or NaN, in FKD's and PLS's class means. Shares of hard
    predictions are fractions k/n: the smallest n that explains a row is the number of records behind it. Without such
    fractions the classes present get equal shares. A client sees means of others: a class is absent there if no other
    client has it. Where clients answer on public samples instead, the attack counts the classes that their first
    answers rank highest. It needs no records and no model.
    """

    card = AttackCard(
        name="label-presence",
        work={"once": 1400, "each": 40},
        goal="label-distribution",
        needs=("class_prototypes", "hard_labels", "soft_labels", "logits"),
        assumes=(),
        oracle=None,
        source="Jeong et al. 2018, Algorithm 1: a device without records of a class sends no mean for it",
        control={"on": "labels", "rounds": 20},
        tasks=("single-label", "text", "table"),
        profiles={"quick": {}, "standard": {}, "full": {}},
    )
    Config: ClassVar[type[LabelPresenceConfig]] = LabelPresenceConfig

    def __init__(self, config: LabelPresenceConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for class means of a victim or of several clients in view, or for a victim's answers."""
        if not task.targets:
            return Applicability(
                False, "every client belongs to the adversary: nobody is left to be attacked"
            )
        if any(self._shares(view, knowledge, target) is not None for target in task.targets):
            return Applicability(True)
        return Applicability(
            False, f"no {_TABLES}, and no {', '.join(_ANSWERS[:-1])} or {_ANSWERS[-1]} of a victim"
        )

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[LabelDistribution, ...]:
        """Return one guess a victim; the attack is deterministic."""
        return guesses(task.targets, lambda target: self._shares(view, knowledge, target), knowledge.classes)

    def _shares(self, view: View, knowledge: Knowledge, target: str) -> Tensor | None:
        """Return a victim's shares (C,), float64; None if nothing of it is in view."""
        # A table a message: also soft labels with a row for each class.
        tables = []
        for m in with_payload(view.select(sender=target)):
            by_class = m.kind == _TABLES or (m.kind == "soft_labels" and "index" not in m.tensors)
            if by_class and m.tensors["values"].shape == (knowledge.classes, knowledge.classes):
                tables.append(view.tensors(m)["values"].cpu())
        if tables and view.hyperparameters.get("share") == "hard":
            counts = records_of_class(tables)
            if counts is not None:
                return _shares_of(counts)
        if not tables:
            # Means over clients, without rows that equal a member's own: no other client has such a class.
            for m in with_payload(view.select(kind=_TABLES)):
                if role(m.sender) == "client":
                    continue
                table = view.tensors(m)["values"].cpu().clone()
                for member in view.members:
                    for own in with_payload(view.select(kind=_TABLES, sender=member, round=m.round)):
                        mine = view.tensors(own)["values"].cpu()
                        table[(table - mine).abs().amax(1) < 1e-6] = 0
                tables.append(table)
        if tables:
            return _shares_of(present_in_tables(tables).double())
        return top_classes(view, target, knowledge.classes)


def present_in_tables(tables: Sequence[Tensor]) -> Tensor:
    """Return the classes (C,), bool, whose row of any table (C, C) is filled: it has no NaN and sums to more than 1/2.

    Noise is averaged: of noisy tables the mean decides. Rows of tables without noise are filled or exactly empty.
    """
    plain = torch.stack([table.double().nan_to_num(0.0) for table in tables])
    empty = (plain == 0).all(2)
    if bool(empty.any()) or bool((plain.sum(2) - 1).abs().max() < _EXACT):
        return torch.stack([known(table) for table in plain]).any(0)
    return known(plain.mean(0))


def records_of_class(tables: Sequence[Tensor]) -> Tensor | None:
    """Return the numbers of records (C,), float64, that rows of hard predictions are fractions of, 0 for empty rows.

    The smallest n for which all of a row's shares, in all tables, are k/n. A divisor of the true number shows if the
    predictions have it in common; more rounds make this rarer. A row whose predictions always agree tells no number
    and gets the mean of the others. None if some row is no such fraction.
    """
    plain = torch.stack([table.double().nan_to_num(0.0) for table in tables])
    n = torch.arange(1, _MOST_RECORDS + 1, dtype=torch.float64)
    counts = torch.zeros(plain.shape[1], dtype=torch.float64)
    for label in present_in_tables(tables).nonzero().flatten().tolist():
        scaled = plain[:, label].flatten() * n[:, None]
        error = (scaled - scaled.round()).abs().amax(1)
        whole = n[error < _EXACT * n]
        if not len(whole):
            return None
        counts[label] = whole[0]
    certain = counts[counts > 1]
    if not len(certain):
        return counts
    return torch.where(counts == 1, certain.mean(), counts)


def top_classes(view: View, client: str, classes: int) -> Tensor | None:
    """Return the shares (C,), float64, of classes that a client's first answers rank highest; None without answers."""
    for message in view.select(sender=client):
        if message.kind not in _ANSWERS or message.payload is None:
            continue
        values = view.tensors(message)["values"].cpu()
        if message.kind == "hard_labels":
            top = values.long()
        else:
            plain = values.nan_to_num(0.0)
            answered = plain.amax(1) > plain.amin(1)  # an abstention is NaN, or gives all classes the same
            top = plain[answered].argmax(1)
        top = top[(top >= 0) & (top < classes)]
        if len(top):
            return _shares_of(torch.bincount(top, minlength=classes).double())
    return None


def _shares_of(counts: Tensor) -> Tensor | None:
    """Return counts (C,) divided by their sum; None if all are zero."""
    total = float(counts.sum())
    if not total > 0:
        return None
    return counts / total

"""Class shares from the counts, or the labels, that a client sends in clear."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from fdaudit.config import Config
from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._uploads import with_payload
from ._guesses import guesses, sent_by, uniform

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["LabelCounts", "LabelCountsConfig"]

_KINDS = ("class_counts", "private_labels")


class LabelCountsConfig(Config):
    """No settings."""


@reads_forms
class LabelCounts:
    """Divides a client's class counts by their sum: exact, unless a defence changed the counts.

    FedKD and FedIOD weight clients by their records of each class, so every client sends its counts first; of masks
    they count pixels, and the shares are those of pixels. Negative counts, which only noise can produce, count as zero.
    AsynDGAN's clients send the labels of records, which it counts. For a victim whose counts are not in view it guesses
    equal shares.
    """

    card = AttackCard(
        name="label-counts",
        work={"once": 3500, "each": 70},
        goal="label-distribution",
        needs=("class_counts", "private_labels"),
        assumes=(),
        oracle=None,
        source="Gong et al. 2022, Eq. 1: what FedKD sends in clear",
        tasks=("single-label", "multi-label", "segmentation", "text", "table"),
        control={"on": "labels", "trained": False},
        profiles={"quick": {}, "standard": {}, "full": {}},
    )
    Config: ClassVar[type[LabelCountsConfig]] = LabelCountsConfig

    def __init__(self, config: LabelCountsConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for the counts or labels of a victim in view."""
        return sent_by(view, task.targets, _KINDS)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[LabelDistribution, ...]:
        """Return one guess a victim; the attack is deterministic."""

        def shares(target: str) -> Tensor | None:
            by_message = []
            for kind in _KINDS:
                for message in with_payload(view.select(kind=kind, sender=target)):
                    tensors = view.tensors(message)
                    if "counts" in tensors:
                        by_message.append(tensors["counts"].double())
                    else:
                        labels = tensors["values"].flatten().long()
                        counts = torch.bincount(labels, minlength=knowledge.classes)
                        by_message.append(counts[: knowledge.classes].double())
            if not by_message:
                return None
            # The mean over messages, where counts are sent more than once: each may have noise of its own.
            counts = torch.stack(by_message).mean(0).clamp_min(0)
            if not counts.sum() > 0:
                return uniform(knowledge.classes)
            return counts / counts.sum()

        return guesses(task.targets, shares, knowledge.classes)

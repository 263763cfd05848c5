"""Chosen few: an aggregator that adds up the messages of some clients, and says that the others are silent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.registry import DeviationCard
from fdaudit.transcript.wire import Outgoing

from ._rounds import SomeRounds

__all__ = ["ChosenFew", "ChosenFewConfig"]


class ChosenFewConfig(SomeRounds):
    """Settings of chosen few."""

    few: int = Field(1, ge=1, le=100_000)
    """Clients that are added up in a round; the next ones in the next round."""


class ChosenFew:
    """The aggregator of a secure sum or count takes few clients' messages, by turns, and drops the others.

    With one client the sum is its upload, and the server that receives it sees what secure aggregation is to hide.
    """

    card = DeviationCard(
        name="chosen-few",
        source="ours; a server that decides who takes part in secure aggregation: Boenisch et al. 2023",
        roles=("aggregator",),
        changes=("model_update", "vote_counts"),
        read_by=("analytic", "inverting-gradients", "update-projection"),
        noticed="A server sees a sum over fewer clients than answered, unless it lies. Clients see nothing.",
        detectors=("few-clients", "change"),
    )
    Config: ClassVar[type[ChosenFewConfig]] = ChosenFewConfig

    def __init__(self, config: ChosenFewConfig, knowledge: Knowledge) -> None:
        self._config = config

    def sends(self, draft: Outgoing, generator: torch.Generator) -> Sequence[Outgoing]:
        """Return the sum of the updates of few clients, or the count of their votes."""
        if draft.kind not in self.card.changes or not self._config.within(draft.round):
            return (draft,)
        kind = "hard_labels" if draft.kind == "vote_counts" else draft.kind
        answered = {m.sender: m for m in draft.received if (m.kind, m.step) == (kind, draft.step)}
        uploads = list(answered.values())
        turn = (draft.round * self._config.few) % len(uploads)
        chosen = (uploads[turn:] + uploads[:turn])[: self._config.few]
        if draft.kind == "vote_counts":
            counts = torch.zeros_like(draft.tensors["counts"])
            n, classes = counts.shape
            requested = draft.tensors.get("index", torch.arange(n)).tolist()
            row_of = {sample: row for row, sample in enumerate(requested)}
            for ballot in chosen:
                votes = ballot.tensors["values"].tolist()
                samples = ballot.tensors["index"].tolist() if "index" in ballot.tensors else range(len(votes))
                for sample, vote in zip(samples, votes, strict=True):
                    if sample in row_of and 0 <= vote < classes:  # another value than a class is no vote
                        counts[row_of[sample], int(vote)] += 1
            tensors = {**draft.tensors, "counts": counts}
            return (replace(draft, tensors=tensors),)
        total = {}
        for name in draft.tensors:
            parts = torch.stack([upload.tensors[name].double() for upload in chosen])
            total[name] = parts.sum(0).to(chosen[0].tensors[name].dtype).cpu()
        weight = sum(float(upload.fields["weight"]) for upload in chosen)
        fields = {**draft.fields, "weight": weight, "clients": [upload.sender for upload in chosen]}
        return (replace(draft, tensors=total, fields=fields),)

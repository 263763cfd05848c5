"""Crafted consensus: clients are taught wrong classes, and what they answer next shows what their own records say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fdaudit.registry import DeviationCard
from fdaudit.transcript.wire import Outgoing

from ._candidates import CandidateQuestions
from ._rounds import SomeRounds

__all__ = ["CraftedConsensus", "CraftedConsensusConfig"]


class CraftedConsensusConfig(SomeRounds):
    """Settings of a crafted consensus."""

    share: float = Field(0.1, gt=0, le=1)
    """Share of the candidates that are taught in a round, drawn anew each time. Of a class table every row is wrong."""
    each: bool = False
    """Each client gets a consensus of its own, about other candidates and with other wrong classes."""


class CraftedConsensus(CandidateQuestions):
    """The server plants the candidates, and in each round teaches all clients wrong classes of some of them.

    Nothing else is in the crafted consensus, so clients learn it by heart. Wrong classes are drawn at random: a rule
    would be unlearnt at once. The client that trains on the candidate itself is taught the right class again, so its
    next answer differs from everybody else's. `candidate-answers` compares them.

    Where the consensus is a table of the classes, each row teaches a wrong class. A client is then torn between a
    record's label and the row, so that its predicted classes differ from record to record. Their shares are fractions
    of the number of its records in the class, which `label-presence` reads off tables of hard predictions.
    """

    card = DeviationCard(
        name="crafted-consensus",
        source="ours; wrong labels that raise what a model tells of others' records: Tramèr et al. 2022, section 4",
        roles=("server",),
        changes=("class_prototypes", "ensemble_labels", "logits"),
        read_by=("candidate-answers", "label-presence"),
        noticed="The consensus is about few samples, and contradicts what clients answered for them, or every class.",
        detectors=("disagreement", "other-classes", "certainty"),
        knows=("candidates",),
    )
    Config: ClassVar[type[CraftedConsensusConfig]] = CraftedConsensusConfig
    config: CraftedConsensusConfig

    def sends(self, draft: Outgoing, generator: torch.Generator) -> Sequence[Outgoing]:
        """Return a request with candidates in it, a consensus (n, C) on some that is wrong, or a wrong table (C, C)."""
        if draft.kind not in self.card.changes or not self.config.within(draft.round):
            return super().sends(draft, generator)
        if not self.config.each:
            return self._crafted(draft, generator)
        crafted: list[Outgoing] = []
        for receiver in draft.receivers:
            crafted += self._crafted(replace(draft, receivers=(receiver,)), generator)
        return crafted

    def _crafted(self, draft: Outgoing, generator: torch.Generator) -> tuple[Outgoing, ...]:
        """Return a consensus or table for the receivers of a message."""
        values = draft.tensors["values"]
        if draft.kind == "class_prototypes":
            wrong = self._wrong(torch.arange(len(values)), generator)
            return (replace(draft, tensors={"values": wrong.to(values)}),)
        if not len(self.places):
            return (draft,)
        count = max(1, round(self.config.share * len(self.places)))
        taught = torch.randperm(len(self.places), generator=generator)[:count]
        wrong = self._wrong(self.y[taught], generator).to(values)
        if bool((values < 0).any()):  # logits, as long as the honest ones
            wrong = wrong * values.abs().max()
        index = self.places[taught]
        if "index" in draft.tensors:
            index = index.to(draft.tensors["index"].dtype)
        return (replace(draft, tensors={"index": index, "values": wrong}),)

    def _wrong(self, y: Tensor, generator: torch.Generator) -> Tensor:
        """Return one-hot rows (n, C) of classes other than y (n,)."""
        step = torch.randint(1, self.classes, (len(y),), generator=generator)
        return F.one_hot((y + step) % self.classes, self.classes)

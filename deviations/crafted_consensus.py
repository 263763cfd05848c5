"""Crafted consensus: clients are taught wrong classes of candidates, and those who hold one unlearn it again."""

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
    """Share of the candidates that are taught in a round, drawn anew each time."""


class CraftedConsensus(CandidateQuestions):
    """The server plants the candidates, and in each round teaches all clients wrong classes of some of them.

    Nothing else is in the crafted consensus, so clients learn it by heart. Wrong classes are drawn at random: a rule
    would be unlearnt at once. The client that trains on the candidate itself is taught the right class again, so its
    next answer differs from everybody else's. `candidate-answers` compares them.
    """

    card = DeviationCard(
        name="crafted-consensus",
        source="ours; wrong labels that raise what a model tells of others' records: Tramèr et al. 2022, section 4",
        roles=("server",),
        changes=("ensemble_labels", "logits"),
        read_by=("candidate-answers",),
        noticed="The consensus is about few samples, and contradicts what clients answered for them.",
        detectors=("disagreement", "other-classes", "certainty"),
        knows=("candidates",),
    )
    Config: ClassVar[type[CraftedConsensusConfig]] = CraftedConsensusConfig
    config: CraftedConsensusConfig

    def sends(self, draft: Outgoing, generator: torch.Generator) -> Sequence[Outgoing]:
        """Return a request with candidates in it, or a consensus (n, C) on some of them that is wrong."""
        if draft.kind not in self.card.changes or not self.config.within(draft.round) or not len(self.places):
            return super().sends(draft, generator)
        taught = torch.randperm(len(self.places), generator=generator)
        taught = taught[: max(1, round(self.config.share * len(self.places)))]
        tensors = {
            "index": self.places[taught],
            "values": self._wrong(taught, draft.tensors["values"], generator),
        }
        if "index" in draft.tensors:
            tensors["index"] = tensors["index"].to(draft.tensors["index"].dtype)
        return (replace(draft, tensors=tensors),)

    def _wrong(self, taught: Tensor, values: Tensor, generator: torch.Generator) -> Tensor:
        """Return wrong classes of candidates (n,) as values (n, C): probabilities, or logits as long as the honest."""
        step = torch.randint(1, self.classes, (len(taught),), generator=generator)
        wrong = F.one_hot((self.y[taught] + step) % self.classes, self.classes).to(values)
        scores = bool((values < 0).any())
        return wrong * values.abs().max() if scores else wrong

"""What deviations that send clients another model than the protocol's share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.config import Config
from fdaudit.errors import ProtocolError, SpecError
from fdaudit.transcript.wire import Outgoing

__all__ = ["CraftedModel", "CraftedRounds"]


class CraftedRounds(Config):
    """Settings common to crafted models."""

    rounds: tuple[Annotated[int, Field(ge=0)], ...] = Field((0,), max_length=10_000)
    """Rounds, counted from 0, in which clients are sent a crafted model. None: the run is the honest one."""


class CraftedModel(ABC):
    """A server that sends clients a crafted model in some rounds.

    Args:
        config: in which rounds.
        knowledge: the network.

    Attributes:
        network: what a model is built from.
        module: the network with some weights.
        needed: names of the tensors without which a model cannot be crafted.

    Raises:
        SpecError: the network is not known.
    """

    needed: frozenset[str] = frozenset()

    def __init__(self, config: CraftedRounds, knowledge: Knowledge) -> None:
        if knowledge.architecture is None:
            raise SpecError("model.name", None, "is needed by a crafted model", "Name the network.")
        self._rounds = config.rounds
        self.network = knowledge.architecture
        self.module = self.network.build(torch.Generator().manual_seed(0))

    def sends(self, draft: Outgoing, generator: torch.Generator) -> Sequence[Outgoing]:
        """Return the crafted model, if a model goes to clients in one of the rounds."""
        to_clients = all(receiver.startswith("client/") for receiver in draft.receivers)
        if draft.kind != "model_parameters" or draft.round not in self._rounds or not to_clients:
            return (draft,)
        if absent := self.needed - draft.tensors.keys():
            raise ProtocolError(f"a deviation cannot craft {min(absent)}: it is not sent with these settings")
        turn = self._rounds.index(draft.round)
        crafted = self.crafted(draft.tensors, turn, generator)
        return (replace(draft, tensors={**draft.tensors, **crafted}),)

    @abstractmethod
    def crafted(
        self, model: Mapping[str, Tensor], turn: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Return the tensors that the model is sent with in place of its own, in the n-th crafted round."""

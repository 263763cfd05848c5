"""What deviations that craft the first layer of a network share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from fdaudit.config import Config
from fdaudit.errors import ProtocolError, SpecError
from fdaudit.models.normalization import first_linear, normalization_of
from fdaudit.transcript.wire import Outgoing

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge

__all__ = ["CraftedFirstLayer", "CraftedRounds"]

_LEAST = 8
"""Fewest records from which a server learns how its neurons respond."""


class CraftedRounds(Config):
    """Settings common to crafted models."""

    rounds: tuple[Annotated[int, Field(ge=0)], ...] = Field((0,), max_length=10_000)
    """Rounds, counted from 0, in which clients are sent a crafted model. None: the run is the honest one."""


class CraftedFirstLayer:
    """A server that crafts the first layer of the model it sends to clients, in some rounds.

    Args:
        config: in which rounds.
        knowledge: the network, and records like the clients'.

    Raises:
        SpecError: the network does not start with a fully connected layer and a ReLU, or the server holds no records.
    """

    def __init__(self, config: CraftedRounds, knowledge: Knowledge) -> None:
        self._rounds = config.rounds
        network = knowledge.architecture
        if network is None:
            raise SpecError("model.name", None, "is needed by a crafted model", "Name the network.")
        module = network.build(torch.Generator().manual_seed(0))
        layer = first_linear(module, network.input_shape)
        if layer is None or not _rectified(module, layer):
            problem = "does not start with a fully connected layer that a ReLU follows"
            raise SpecError("model.name", network.name, problem, "Choose such a network, for example 'mlp'.")
        self.layer, self.module = layer, module
        records = knowledge.public if knowledge.auxiliary is None else knowledge.auxiliary[0]
        if records is None or len(records) < _LEAST:
            problem = "leave a deviating server no records to craft a layer from"
            raise SpecError("auxiliary.others", "none", problem, "Set it to 'same', or share public samples.")
        normalization = normalization_of(module)
        inputs = records if normalization is None else normalization(records)
        self.inputs = inputs.flatten(1)
        """(n, d) inputs of the layer for the server's own records."""

    def sends(self, draft: Outgoing, generator: torch.Generator) -> Sequence[Outgoing]:
        """Return the model with a crafted layer, if it goes to clients in one of the rounds."""
        to_clients = all(receiver.startswith("client/") for receiver in draft.receivers)
        if draft.kind != "model_parameters" or draft.round not in self._rounds or not to_clients:
            return (draft,)
        needed = {f"{name}.weight" for name in (self.layer, self.next_layer) if name}
        if absent := needed - draft.tensors.keys():
            raise ProtocolError(f"a deviation cannot craft {min(absent)}: it is not sent with these settings")
        crafted = {**draft.tensors, **self.crafted(draft.tensors, generator)}
        return (replace(draft, tensors=crafted),)

    def crafted(self, model: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Return the tensors that the model is sent with in place of its own."""
        raise NotImplementedError

    @property
    def next_layer(self) -> str:
        """Return the name of the fully connected layer after the first one; empty if there is none."""
        linear = [name for name, m in self.module.named_modules() if isinstance(m, nn.Linear)]
        after = linear[linear.index(self.layer) + 1 :]
        return after[0] if after else ""


def _rectified(module: nn.Module, layer: str) -> bool:
    """Return whether the layer with parameters or a function that follows a layer is a ReLU."""
    leaves = [(name, m) for name, m in module.named_modules() if not list(m.children())]
    names = [name for name, _ in leaves]
    after = leaves[names.index(layer) + 1 : names.index(layer) + 2]
    return bool(after) and isinstance(after[0][1], nn.ReLU)

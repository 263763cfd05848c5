"""What deviations that craft the first layer of a network share."""

from __future__ import annotations

from torch import nn

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.errors import SpecError
from fdaudit.models.normalization import first_linear, normalization_of

from ._crafted_models import CraftedModel, CraftedRounds

__all__ = ["CraftedFirstLayer"]

_LEAST = 8
"""Fewest records from which a server learns how its neurons respond."""


class CraftedFirstLayer(CraftedModel):
    """A server that crafts the first layer of the model it sends to clients, in some rounds.

    Args:
        config: in which rounds.
        knowledge: the network, and records like the clients'.

    Raises:
        SpecError: the network does not start with a fully connected layer and a ReLU, or the server holds no records.
    """

    def __init__(self, config: CraftedRounds, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        layer = first_linear(self.module, self.network.input_shape)
        # Layers with parameters, and functions, as they follow one another.
        names, leaves = list[str](), list[nn.Module]()
        for name, module in self.module.named_modules():
            if not list(module.children()):
                names.append(name)
                leaves.append(module)
        follower = None
        if layer is not None and layer != names[-1]:
            follower = leaves[names.index(layer) + 1]
        if layer is None or not isinstance(follower, nn.ReLU):
            problem = "does not start with a fully connected layer that a ReLU follows"
            remedy = "Choose such a network, for example 'mlp'."
            raise SpecError("model.name", self.network.name, problem, remedy)
        self.layer = layer
        self.needed = frozenset(f"{name}.weight" for name in (layer, self.next_layer) if name)
        records = knowledge.public if knowledge.auxiliary is None else knowledge.auxiliary[0]
        if records is None or len(records) < _LEAST:
            problem = "leave a deviating server no records to craft a layer from"
            raise SpecError("auxiliary.others", "none", problem, "Set it to 'same', or share public samples.")
        normalization = normalization_of(self.module)
        inputs = records if normalization is None else normalization(records)
        self.inputs = inputs.flatten(1)
        """(n, d) inputs of the layer for the server's own records."""

    @property
    def next_layer(self) -> str:
        """Return the name of the fully connected layer after the first one; empty if there is none."""
        linear = [name for name, m in self.module.named_modules() if isinstance(m, nn.Linear)]
        after = linear[linear.index(self.layer) + 1 :]
        return after[0] if after else ""

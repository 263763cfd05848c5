"""Candidate neurons: a hidden layer in which each neuron is active for one candidate of membership alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.adversary.hidden_layer import hidden_layer
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.config import Config
from fdaudit.errors import SpecError
from fdaudit.registry import DeviationCard

from ._candidates import by_turns
from ._crafted_models import CraftedModel, CraftedRounds

__all__ = ["CandidateNeurons", "CandidateNeuronsConfig"]

_MOST_RECORDS, _MOST_VALUES = 1000, 1 << 24
"""Records of the server's own that neurons are silent for, and values that a layer receives for them, at most."""
_MOST_ROWS = 4096
"""Inputs of the layer of which the covariance is taken."""
_PATCHES = 64
"""Patches of a candidate that are tried at most, evenly spread."""
_RIDGE = 0.1
"""Share of the mean variance that is added to every variance."""
_NEAR = 0.8
"""Where a threshold lies between the largest response of all others, 0, and that of the candidate, 1."""
_APART = 1e-3
"""Standard deviations between these two below which rounding may decide which is larger."""


class CandidateNeuronsConfig(Config):
    """Settings of candidate neurons."""

    rounds: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(None, max_length=10_000)
    """Rounds, counted from 0, in each of which the next candidates are asked about, as many as there are neurons.
    Default: the first ones, until each candidate had its turn. None at all: the run is the honest one."""
    activation: float = Field(1e-4, gt=0)
    """Output of a neuron for its candidate. If small, the layers below hardly change while a client trains. If large,
    neurons withstand noise."""


class CandidateNeurons(CraftedModel):
    """The server sends a last hidden layer whose neurons are silent, but for one candidate each.

    A neuron's weights and bias have a gradient only if a client's batch holds its candidate. `neuron-updates` reads
    membership from that. The direction of a neuron is the candidate's whitened difference from the mean input of the
    layer, which separates one record from many if the layer has many inputs. Its threshold lies above the response of
    all other candidates and of the server's own records. The last layer lowers the candidate's class where the neuron
    is active: the neuron of a member falls silent after a few steps, and does not come to include others.

    Nguyen et al. train the layer by gradient descent; here it has a closed form, at any depth. A convolution before the
    answers takes the layer's place, with patches for inputs, if no other layer is fully connected.
    """

    card = DeviationCard(
        name="candidate-neurons",
        source="Nguyen, Lai, Phan & Thai 2023, section 4; Boenisch et al. 2023, section 4",
        roles=("server",),
        changes=("model_parameters",),
        read_by=("neuron-updates", "update-projection"),
        noticed="The model answers the same for all records but a few of the receiver's own.",
        detectors=("silence", "change"),
        knows=("candidates",),
    )
    Config: ClassVar[type[CandidateNeuronsConfig]] = CandidateNeuronsConfig

    def __init__(self, config: CandidateNeuronsConfig, knowledge: Knowledge) -> None:
        super().__init__(CraftedRounds(rounds=config.rounds or ()), knowledge)
        layer = hidden_layer(self.network)
        if isinstance(layer, str):
            remedy = "Choose a network with a hidden layer and a ReLU before the last, for example 'mlp'."
            raise SpecError("model.name", self.network.name, layer, remedy)
        self._layer, self._activation = layer, config.activation
        self.needed = layer.tensors
        self._x, self._y = by_turns(knowledge)
        own = [self._x[:0]]
        if knowledge.auxiliary is not None:
            own.append(knowledge.auxiliary[0])
        if knowledge.public is not None:
            own.append(knowledge.public)
        records = torch.cat(own)
        values = layer.inputs({}, self._x[:1]).numel()
        most = min(_MOST_RECORDS, max(1, _MOST_VALUES // values))
        records = records[:: max(1, -(-len(records) // most))]
        candidates = {x.numpy().tobytes() for x in self._x}
        others = [number for number, x in enumerate(records) if x.numpy().tobytes() not in candidates]
        self._records = records[others]
        if config.rounds is None:
            self._rounds = tuple(range(-(-len(self._y) // layer.neurons)))

    def crafted(
        self, model: Mapping[str, Tensor], turn: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Return both layers: neurons of the turn's candidates, and a last layer that lowers their classes."""
        layer = self._layer
        count = len(self._y)
        # As many candidates as there are neurons, from where the turn before ended.
        candidates = (torch.arange(min(count, layer.neurons)) + turn * layer.neurons) % count
        weight = model[layer.weight]
        inputs = layer.inputs(model, torch.cat([self._x, self._records]))
        whiten = _Whitening(inputs.flatten(0, 1))
        # The other neurons are silent, and so is that of a candidate that other records equal.
        rows = torch.zeros(layer.neurons, inputs.shape[2], dtype=torch.float64)
        thresholds = torch.ones(layer.neurons, dtype=torch.float64)
        for neuron, candidate in enumerate(candidates.tolist()):
            own = inputs[candidate, :: -(-inputs.shape[1] // _PATCHES)]
            others = torch.cat([inputs[:candidate], inputs[candidate + 1 :]]).flatten(0, 1)
            directions = whiten(own)
            response, rest = (directions * own).sum(1), directions @ others.T
            apart = (response - rest.amax(1)) / rest.std(1)
            best = apart.argmax()
            low, high = rest[best].max(), response[best]
            if apart[best] > _APART:
                threshold = low + _NEAR * (high - low)
                scale = self._activation / (high - threshold)
                rows[neuron], thresholds[neuron] = scale * directions[best], scale * threshold
        answers = torch.zeros_like(model[layer.answers])
        for neuron, y in enumerate(self._y[candidates].tolist()):
            answers[y, layer.neuron == neuron] = -1.0
        return {
            layer.weight: rows.reshape(weight.shape).to(weight),
            layer.bias: -thresholds.to(model[layer.bias]),
            layer.answers: answers,
            layer.answers_bias: torch.zeros_like(model[layer.answers_bias]),
        }


class _Whitening:
    """Whitens differences from the mean of inputs: multiplies with the inverse of their covariance.

    Args:
        inputs: (n, d).
    """

    def __init__(self, inputs: Tensor) -> None:
        some = inputs[:: max(1, -(-len(inputs) // _MOST_ROWS))]
        self._mean = some.mean(0)
        _, values, self._basis = torch.linalg.svd(some - self._mean, full_matrices=False)
        variance = values.square() / len(some)
        self._ridge = (_RIDGE * variance.sum() / inputs.shape[1]).clamp_min(1e-12)
        self._inside = 1 / (variance + self._ridge) - 1 / self._ridge

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the whitened differences (p, d) of inputs (p, d)."""
        difference = inputs - self._mean
        whitened: Tensor = (
            difference / self._ridge + (difference @ self._basis.T * self._inside) @ self._basis
        )
        return whitened

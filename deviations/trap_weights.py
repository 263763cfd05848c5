"""Trap weights: a first layer whose neurons are active for few records each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.registry import DeviationCard

from ._crafted_models import CraftedRounds
from ._first_layer import CraftedFirstLayer

__all__ = ["TrapWeights", "TrapWeightsConfig"]

_SCALES = torch.linspace(0.5, 1.0, 51, dtype=torch.float64)
"""Scales of the positive weights that are tried."""


class TrapWeightsConfig(CraftedRounds):
    """Settings of trap weights."""

    share: float = Field(1 / 32, gt=0, lt=1)
    """Share of records that activate a neuron; the paper's choice is one in a batch."""


class TrapWeights(CraftedFirstLayer):
    """The server sends a first layer in which half of each neuron's weights are negative, and slightly larger.

    Most records then leave a neuron silent. A neuron that one record of a batch activates has that record's pixels in
    its gradient, which `analytic` reads. How much smaller the positive weights are is tuned on the server's own
    records.
    """

    card = DeviationCard(
        name="trap-weights",
        source="Boenisch, Dziedzic, Schuster, Shamsabadi, Shumailov & Papernot 2023, section 4",
        roles=("server",),
        changes=("model_parameters",),
        read_by=("analytic",),
        noticed="Most neurons of the first layer are silent on a receiver's records.",
        detectors=("silence", "change"),
    )
    Config: ClassVar[type[TrapWeightsConfig]] = TrapWeightsConfig

    def __init__(self, config: TrapWeightsConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        self._share = config.share

    def crafted(
        self, model: Mapping[str, Tensor], turn: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Return rows with as many negative as positive weights, and biases of zero."""
        weight = model[f"{self.layer}.weight"]
        neurons, size = weight.shape
        values = torch.randn(neurons, size, generator=generator, dtype=torch.float64).abs() / size**0.5
        negative = torch.rand(neurons, size, generator=generator).argsort(1) < size // 2
        low, high = torch.where(negative, -values, 0.0), torch.where(negative, 0.0, values)
        inputs = self.inputs.double()
        below, above = inputs @ low.T, inputs @ high.T
        active = torch.stack([(below + scale * above > 0).double().mean() for scale in _SCALES])
        scale = _SCALES[(active - self._share).abs().argmin()]
        return {
            f"{self.layer}.weight": (low + scale * high).to(weight.dtype),
            f"{self.layer}.bias": torch.zeros(neurons, dtype=weight.dtype),
        }

"""Imprint: a first layer that sorts a batch's records into bins, so that their gradients come apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.errors import SpecError
from fdaudit.registry import DeviationCard

from ._crafted_models import CraftedRounds
from ._first_layer import CraftedFirstLayer

__all__ = ["Imprint", "ImprintConfig"]


class ImprintConfig(CraftedRounds):
    """Settings of the imprint."""


class Imprint(CraftedFirstLayer):
    """The server sends a first layer whose neurons all measure a record in one direction, each with another threshold.

    Neuron i is active for records above the i-th quantile, and all neurons lead on alike. The gradients of two
    neighbours then differ by the records between their thresholds: one record, if no other is as close. `analytic`
    reads them. The paper puts such a block in front of the model, and measures brightness, of which small pictures have
    few values. Here it takes the place of the model's own first layer, so clients find the network that they expect.
    """

    card = DeviationCard(
        name="imprint",
        source="Fowl, Geiping, Czaja, Goldblum & Goldstein 2022, section 3",
        roles=("server",),
        changes=("model_parameters",),
        read_by=("analytic",),
        noticed="All rows of the first layer are equal, which those of an honest model never are.",
        detectors=("equal-rows", "change"),
    )
    Config: ClassVar[type[ImprintConfig]] = ImprintConfig

    def __init__(self, config: ImprintConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        if not self.next_layer:
            problem = "has one layer, and an imprint needs two"
            raise SpecError("model.name", None, problem, "Choose a deeper one.")

    def crafted(
        self, model: Mapping[str, Tensor], turn: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Return equal rows, thresholds at quantiles of what they measure, and equal columns of the layer after."""
        weight, after = model[f"{self.layer}.weight"], model[f"{self.next_layer}.weight"]
        neurons, size = weight.shape
        direction = torch.randn(size, generator=generator, dtype=torch.float64) / size
        measured = self.inputs.double() @ direction
        quantiles = torch.linspace(0, 1, neurons + 2, dtype=torch.float64)[1:-1]
        # A few records are no fine scale: between two of them, quantiles are interpolated.
        thresholds = torch.quantile(measured, quantiles)
        same = after.mean(1, keepdim=True).expand_as(after)
        return {
            f"{self.layer}.weight": direction.to(weight.dtype).expand_as(weight).clone(),
            f"{self.layer}.bias": -thresholds.to(weight.dtype),
            f"{self.next_layer}.weight": same.clone(),
        }

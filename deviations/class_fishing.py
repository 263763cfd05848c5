"""Class fishing: a last layer that silences the gradients of all classes but one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.errors import SpecError, UsageError
from fdaudit.models.network import call_with, inputs_of, last_layer
from fdaudit.registry import DeviationCard

from ._crafted_models import CraftedModel, CraftedRounds

__all__ = ["ClassFishing", "ClassFishingConfig"]

_CERTAIN = 1e3
"""A logit this far above another leaves that class a probability of zero."""
_STEEPNESS = 100.0
"""Change of a logit over one standard deviation of what separates the class's own records."""
_LEAST = 8
"""Fewest records of a class from which a server learns which of them look like it."""


class ClassFishingConfig(CraftedRounds):
    """Settings of class fishing."""

    target: int = Field(0, ge=0)
    """The class whose records are fished for."""
    share: float = Field(1.0, gt=0, le=1)
    """Share of the class's records that keep their gradient; below 1, those that look least like the class."""


class ClassFishing(CraftedModel):
    """The server sends a last layer that rules out one class, so that only records of that class have a gradient.

    All other rows of the layer's weights are zero, and their biases are large. Below the last layer, the gradient of a
    large batch is then that of its few records of the class. A `share` below 1 fishes by features: the layer is certain
    of the class for its typical records, as the server's own show, and these have no gradient either.
    """

    card = DeviationCard(
        name="class-fishing",
        source="Wen, Geiping, Fowl, Goldblum & Goldstein 2022, section 4",
        roles=("server",),
        changes=("model_parameters",),
        read_by=("analytic", "dlg", "inverting-gradients"),
        noticed="All rows of the last layer but one are zero, and the model answers alike for most records.",
        detectors=("change",),
    )
    Config: ClassVar[type[ClassFishingConfig]] = ClassFishingConfig

    def __init__(self, config: ClassFishingConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        if not knowledge.task.labels.one_class:
            problem = "has labels of other forms than one class a record, and class fishing needs that"
            raise SpecError("dataset.name", knowledge.task.name, problem, "Choose another deviation.")
        if config.target >= self.network.classes:
            problem = f"is none of the {self.network.classes} classes, counted from 0"
            raise SpecError("deviations.params.target", config.target, problem, "Choose a smaller number.")
        try:
            weight, bias = last_layer(self.module, self.network.blank_inputs(2))
        except UsageError:
            weight, bias = "", None
        if bias is None:
            problem = "does not end in a fully connected layer with a bias"
            remedy = "Choose such a network, for example 'mlp'."
            raise SpecError("model.name", self.network.name, problem, remedy)
        self.needed = frozenset({weight, bias})
        self._weight, self._bias = weight, bias
        self._target, self._share = config.target, config.share
        self._auxiliary = knowledge.auxiliary
        count = 0
        if knowledge.auxiliary is not None:
            count = int((knowledge.auxiliary[1] == config.target).sum())
        if config.share < 1 and count < _LEAST:
            records = f"{count} records of class {config.target}"
            problem = f"leaves a deviating server {records} to learn features from"
            raise SpecError("splits.auxiliary", count, problem, f"Leave it {_LEAST}, or set share to 1.")

    def crafted(
        self, model: Mapping[str, Tensor], turn: int, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Return a last layer with one row that is not zero."""
        weight = torch.zeros_like(model[self._weight])
        if self._share < 1:
            if self._auxiliary is None:
                raise ValueError("class-fishing: no records of the server's own.")
            x, y = self._auxiliary
            last = self.module.get_submodule(self._weight.rpartition(".")[0])
            with torch.no_grad(), inputs_of(last) as inputs:
                call_with(self.module.eval(), model, x)
            features = inputs[0].double()  # (n, d)
            own, others = features[y == self._target], features[y != self._target]
            variance = features.var(0)
            # A linear discriminant with independent features: differences of means over variances.
            row = own.mean(0) - others.mean(0)
            row /= variance + 1e-3 * variance.mean()
            row *= _STEEPNESS / (own @ row).std()
            weight[self._target] = row.to(weight)
            bias = torch.zeros_like(model[self._bias])
            bias[self._target] = -float(torch.quantile(own @ row, self._share))
        else:
            weight[self._target] = model[self._weight][self._target]
            bias = torch.full_like(model[self._bias], _CERTAIN)
            bias[self._target] = model[self._bias][self._target]
        return {self._weight: weight, self._bias: bias}

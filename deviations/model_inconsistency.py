"""Model inconsistency: one client is sent a model of its own, so that a sum of updates is that client's alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.registry import DeviationCard
from fdaudit.transcript.wire import Outgoing

from ._crafted_models import CraftedRounds
from .imprint import Imprint, ImprintConfig

__all__ = ["ModelInconsistency", "ModelInconsistencyConfig"]

_DEAD = 1e4
"""A neuron with less this bias is silent for any record."""


class ModelInconsistencyConfig(CraftedRounds):
    """Settings of model inconsistency."""

    rounds: tuple[Annotated[int, Field(ge=0)], ...] = Field((0,), max_length=10_000)
    """Rounds, counted from 0: in the n-th of them client n is sent a model of its own. None: the honest run."""


class ModelInconsistency:
    """The server sends one client an imprint, and all others a first layer whose neurons are silent.

    A silent layer has no gradient. The first layer's part of a sum of updates, however securely added up, is then the
    one client's, and `analytic` reads its records from it. In the paper that client's model is the honest one.
    """

    card = DeviationCard(
        name="model-inconsistency",
        source="Pasquini, Francati & Ateniese 2022, section 4; imprint: Fowl et al. 2022",
        roles=("server",),
        changes=("model_parameters",),
        read_by=("analytic",),
        noticed="The model has no better accuracy than chance, and clients that compare theirs see different ones.",
        detectors=("silence", "equal-rows", "change"),
    )
    Config: ClassVar[type[ModelInconsistencyConfig]] = ModelInconsistencyConfig

    def __init__(self, config: ModelInconsistencyConfig, knowledge: Knowledge) -> None:
        self._order = config.rounds
        self._imprint = Imprint(ImprintConfig(rounds=config.rounds), knowledge)

    def sends(self, draft: Outgoing, generator: torch.Generator) -> Sequence[Outgoing]:
        """Return an imprint for the round's client, and a silent first layer for the others."""
        crafted = self._imprint.sends(draft, generator)
        if tuple(crafted) == (draft,):
            return crafted
        victim = f"client/{self._order.index(draft.round)}"
        if victim not in draft.receivers:
            return (draft,)
        (mine,) = crafted
        alone = replace(mine, receivers=(victim,))
        others = tuple(receiver for receiver in draft.receivers if receiver != victim)
        if not others:
            return (alone,)
        bias = f"{self._imprint.layer}.bias"
        silent = {**draft.tensors, bias: torch.full_like(draft.tensors[bias], -_DEAD)}
        return (alone, replace(draft, receivers=others, tensors=silent))

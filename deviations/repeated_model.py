"""Repeated model: clients are sent one model again and again, so that noise on their answers averages out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.errors import ProtocolError
from fdaudit.registry import DeviationCard
from fdaudit.transcript.wire import Outgoing

from ._rounds import SomeRounds

__all__ = ["RepeatedModel", "RepeatedModelConfig"]


class RepeatedModelConfig(SomeRounds):
    """Settings of a repeated model."""

    of: int = Field(0, ge=0)
    """The round, counted from 0, whose model clients are sent again in later rounds."""


class RepeatedModel:
    """The server sends clients the model of one round again in each later round, and goes on from its own.

    A client that takes its step on all its records then sends one update under noise that is drawn anew each time. The
    mean of m uploads has the noise of one over the root of m, and attacks on its gradient read that. Under DP-SGD the
    ledger counts each release, and its ε bounds what the mean tells.
    """

    card = DeviationCard(
        name="repeated-model",
        source="ours; the mean of answers to one question, against which privacy composes: Dwork & Roth 2014",
        roles=("server",),
        changes=("model_parameters",),
        read_by=("analytic", "dlg", "inverting-gradients"),
        noticed="A client is sent the very model that it was sent before.",
        detectors=("nothing-new",),
    )
    Config: ClassVar[type[RepeatedModelConfig]] = RepeatedModelConfig

    def __init__(self, config: RepeatedModelConfig, knowledge: Knowledge) -> None:
        self._config = config
        self._model: Mapping[str, Tensor] | None = None

    def sends(self, draft: Outgoing, generator: torch.Generator) -> Sequence[Outgoing]:
        """Return the first model of the round `of`, as on record, if a model goes to clients in a later round.

        Raises:
            ProtocolError: the party sent no model in that round.
        """
        to_clients = all(receiver.startswith("client/") for receiver in draft.receivers)
        later = draft.round > self._config.of and self._config.within(draft.round)
        if draft.kind != "model_parameters" or not to_clients or not later:
            return (draft,)
        if self._model is None:
            repeated = (self._config.of, draft.sender, draft.kind)
            models = (m.tensors for m in draft.earlier if (m.round, m.sender, m.kind) == repeated)
            self._model = next(models, None)
        if self._model is None:
            raise ProtocolError(f"repeated-model: {draft.sender} sent no model in round {self._config.of}")
        return (replace(draft, tensors=self._model),)

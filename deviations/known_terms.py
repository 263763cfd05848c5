"""Known terms: clients whose part in a sum or mean says nothing, so that what is left is another client's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.registry import DeviationCard
from fdaudit.transcript.wire import Outgoing

from ._rounds import SomeRounds
from ._uploads import UPLOADS

__all__ = ["KnownTerms", "KnownTermsConfig"]


class KnownTermsConfig(SomeRounds):
    """Settings of known terms."""

    silent: bool = True
    """Whether the client sends nothing, so that a mean is over the others alone. Otherwise it sends a constant."""


class KnownTerms:
    """A client, one of several for one adversary, adds nothing of its own to what others are averaged with.

    It is silent, or sends an update of zeros, the model that it received, or the same answer for every sample. A
    coalition of all clients but one can also subtract what its members sent honestly, so its sum tells no more. But the
    model or consensus that follows is then made of the victim's records alone, and whoever sees that learns more.
    """

    card = DeviationCard(
        name="known-terms",
        source="ours; sybils that leave a secure sum of one client: Boenisch et al. 2023",
        roles=("client",),
        changes=UPLOADS,
        read_by=("analytic", "lira-online", "rmia", "update-projection"),
        noticed="Nothing by other clients. A server that is not of the coalition sees silence, or constants.",
        detectors=("nothing-new",),
    )
    Config: ClassVar[type[KnownTermsConfig]] = KnownTermsConfig

    def __init__(self, config: KnownTermsConfig, knowledge: Knowledge) -> None:
        self._config = config

    def sends(self, draft: Outgoing, generator: torch.Generator) -> Sequence[Outgoing]:
        """Return nothing, or the message with a constant in place of what was learnt."""
        if draft.kind not in self.card.changes or not self._config.within(draft.round):
            return (draft,)
        if self._config.silent:
            return ()
        constant = {}
        for name, tensor in draft.tensors.items():
            constant[name] = torch.zeros_like(tensor)
            if draft.kind in ("soft_labels", "class_prototypes"):  # rows are distributions over classes
                constant[name] = torch.full_like(tensor, 1 / tensor.shape[-1])
        if "index" in draft.tensors:
            constant["index"] = draft.tensors["index"]
        if draft.kind == "model_parameters":
            models = [message.tensors for message in draft.received if message.kind == draft.kind]
            received = models[-1] if models else {}
            for name, zeros in constant.items():
                constant[name] = received.get(name, zeros)
        return (replace(draft, tensors=constant),)

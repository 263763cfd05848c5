"""Read the models on record, and check them against parameters that a card says do not move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

from fdaudit.importing.record_check import first_of
from fdaudit.kinds import MODELS
from fdaudit.names import visible
from fdaudit.storage.files import decode
from fdaudit.transcript.encoding import Naming, weights_of
from fdaudit.transcript.messages import Message, role
from fdaudit.transcript.payloads import read_payload

if TYPE_CHECKING:
    from fdaudit.planning.case import Case

__all__ = ["ModelsOnRecord", "frozen_that_moved", "never_moved"]

_MOST_SHOWN = 10
"""Messages that a check names one by one."""
_LEAST = 2
"""Uploads without a movement from which a parameter counts as one that does not move."""


class ModelsOnRecord:
    """The models of a record, and what training changed in them.

    Args:
        case: the recording's case.
        transcript: the record's messages on disk.
        messages: the same.
    """

    def __init__(self, case: Case, transcript: Path, messages: Sequence[Message]) -> None:
        self.case, self.messages = case, messages
        self._transcript = transcript
        self._naming = Naming.of(case.settings)
        self._starts = dict[int, Message]()
        last_model = dict[str, Message]()
        for message in messages:
            if message.sender in last_model:
                self._starts[message.seq] = last_model[message.sender]
            if message.kind == "model_parameters":
                last_model |= dict.fromkeys(message.receivers, message)

    def start(self, message: Message) -> Message | None:
        """Return the model that a message's sender had received last before it."""
        return self._starts.get(message.seq)

    def is_readable(self, message: Message | None) -> TypeGuard[Message]:
        """Return whether there is such a message, with its payload and without NaN or infinite values."""
        if message is None or message.payload is None:
            return False
        return message.seq not in self.case.system.not_finite

    def weights(self, message: Message) -> Mapping[str, Tensor]:
        """Return a message's tensors by the names that the network gives them."""
        return weights_of(decode(read_payload(self._transcript, message)), self._naming)


def frozen_that_moved(models: ModelsOnRecord) -> list[str]:
    """Return a sentence for the first uploads in which a parameter moves that the card calls frozen."""
    case = models.case
    if not case.system.card.training.frozen or case.networks is None:
        return []
    sentences = []
    for message, moved in _movements(models):
        frozen = case.named_networks.of(message.sender).frozen_parameters
        names = [name for name, is_moved in moved.items() if is_moved and name in frozen]
        if names:
            movement = f"message {message.seq} of {message.sender} moves {_listed(names)}"
            sentences.append(f"{movement}, and the card's `training.frozen` says that it does not move")
        if len(sentences) == _MOST_SHOWN:
            break
    return sentences


def never_moved(models: ModelsOnRecord) -> list[str]:
    """Return a sentence about parameters that no upload moves and that the card does not call frozen."""
    if models.case.networks is None:
        return []
    unmoved: set[str] | None = None
    uploads = 0
    for message, moved in _movements(models):
        uploads += 1
        here = {name for name, is_moved in moved.items() if not is_moved}
        here &= models.case.named_networks.of(message.sender).trained_parameters
        unmoved = here if unmoved is None else unmoved & here
    if not unmoved or uploads < _LEAST:
        return []
    remedy = "state `training.frozen` in the card: inversion assumes that their gradient is zero."
    return [f"No upload moves {_listed(sorted(unmoved))}. If clients freeze them, {remedy}"]


def _movements(models: ModelsOnRecord) -> Iterator[tuple[Message, Mapping[str, bool]]]:
    """Yield the clients' readable uploads, and for each tensor by name whether it moved. Defended ones are left out."""
    card = models.case.system.card
    defended = {attested.kind for attested in card.attested}
    if card.defenses:
        defended |= {*MODELS}
    for message in models.messages:
        if role(message.sender) != "client" or message.kind not in MODELS or message.kind in defended:
            continue
        if not models.is_readable(message):
            continue
        if message.kind != "model_parameters":  # a gradient or a difference, which shows what moved by itself
            moved = {}
            for name, change in models.weights(message).items():
                moved[name] = bool(change.any())
            yield message, moved
            continue
        start = models.start(message)
        if start is None or start.payload is None:
            continue
        weights, before = models.weights(message), models.weights(start)
        moved = {}
        for name in weights.keys() & before.keys():
            new, old = weights[name], before[name]
            moved[name] = new.shape != old.shape or not torch.equal(new, old.to(new.dtype))
        yield message, moved


def _listed(names: Sequence[str]) -> str:
    return first_of([visible(name)[:60] for name in names], 3)

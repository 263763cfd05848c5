"""Checks of the record against parameters that a card says do not move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fdaudit.kinds import MODELS
from fdaudit.names import visible
from fdaudit.storage.files import decode
from fdaudit.transcript.encoding import Naming, weights_of
from fdaudit.transcript.messages import Message, role
from fdaudit.transcript.payloads import read_payload

if TYPE_CHECKING:
    from fdaudit.planning.case import Case

__all__ = ["frozen_that_moved", "never_moved", "starts_of"]

_MOST_SHOWN = 10
"""Messages, and parameters, that a sentence names one by one."""
_LEAST = 2
"""Uploads without a movement from which a parameter counts as one that does not move."""


def frozen_that_moved(case: Case, transcript: Path, messages: Sequence[Message]) -> list[str]:
    """Return a sentence for the first uploads in which a parameter moves that the card calls frozen."""
    if not case.system.card.training.frozen or case.networks is None:
        return []
    sentences = []
    for message, moved in _movements(case, transcript, messages):
        frozen = case.named_networks.of(message.sender).frozen_parameters
        names = [name for name, is_moved in moved.items() if is_moved and name in frozen]
        if names:
            movement = f"message {message.seq} of {message.sender} moves {_listed(names)}"
            sentences.append(f"{movement}, and the card's `training.frozen` says that it does not move")
        if len(sentences) == _MOST_SHOWN:
            break
    return sentences


def never_moved(case: Case, transcript: Path, messages: Sequence[Message]) -> list[str]:
    """Return a sentence about parameters that no upload moves and that the card does not call frozen."""
    if case.networks is None:
        return []
    unmoved: set[str] | None = None
    uploads = 0
    for message, moved in _movements(case, transcript, messages):
        uploads += 1
        here = {name for name, is_moved in moved.items() if not is_moved}
        here &= case.named_networks.of(message.sender).trained_parameters
        unmoved = here if unmoved is None else unmoved & here
    if not unmoved or uploads < _LEAST:
        return []
    remedy = "state `training.frozen` in the card: inversion assumes that their gradient is zero."
    return [f"No upload moves {_listed(sorted(unmoved))}. If clients freeze them, {remedy}"]


def starts_of(messages: Sequence[Message]) -> dict[int, Message]:
    """Return by number of a message the model that its sender had received last before it."""
    last_model: dict[str, Message] = {}
    starts: dict[int, Message] = {}
    for message in messages:
        if message.sender in last_model:
            starts[message.seq] = last_model[message.sender]
        if message.kind == "model_parameters":
            last_model |= dict.fromkeys(message.receivers, message)
    return starts


def _movements(
    case: Case, transcript: Path, messages: Sequence[Message]
) -> Iterator[tuple[Message, Mapping[str, bool]]]:
    """Yield the clients' readable uploads, and for each tensor by name whether it moved. Defended ones are left out."""
    card, starts = case.system.card, starts_of(messages)
    defended = {attested.kind for attested in card.attested}
    if card.defenses:
        defended |= {*MODELS}
    naming = Naming.of(case.settings)
    for message in messages:
        if role(message.sender) != "client" or message.kind not in MODELS or message.kind in defended:
            continue
        if message.payload is None or message.seq in case.system.not_finite:
            continue
        is_update = message.kind != "model_parameters"
        start = starts.get(message.seq)
        if not is_update and (start is None or start.payload is None):
            continue
        weights = weights_of(decode(read_payload(transcript, message)), naming)
        if is_update or start is None:
            yield message, {name: bool(change.any()) for name, change in weights.items()}
            continue
        before = weights_of(decode(read_payload(transcript, start)), naming)
        moved = {}
        for name in weights.keys() & before.keys():
            new, old = weights[name], before[name]
            moved[name] = new.shape != old.shape or not torch.equal(new, old.to(new.dtype))
        yield message, moved


def _listed(names: Sequence[str]) -> str:
    first = [visible(name)[:60] for name in names[:3]]
    if len(names) > 3:
        first.append("…")
    return ", ".join(first)

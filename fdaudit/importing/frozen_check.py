"""Checks of the record against parameters that a card says do not move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

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
    found = []
    for message, moves in _movements(case, transcript, messages):
        frozen = case.named_networks.of(message.sender).frozen_parameters
        moved = [name for name, moves_here in moves.items() if moves_here and name in frozen]
        if moved:
            said = f"message {message.seq} of {message.sender} moves {_named(moved)}"
            found.append(f"{said}, and the card's `training.frozen` says that it does not move")
        if len(found) == _MOST_SHOWN:
            break
    return found


def never_moved(case: Case, transcript: Path, messages: Sequence[Message]) -> list[str]:
    """Return a sentence about parameters that no upload moves and that the card does not call frozen."""
    if case.networks is None:
        return []
    still: set[str] | None = None
    uploads = 0
    for message, moves in _movements(case, transcript, messages):
        uploads += 1
        unmoved = {name for name, moves_here in moves.items() if not moves_here}
        unmoved &= case.named_networks.of(message.sender).trained_parameters
        still = unmoved if still is None else still & unmoved
    if not still or uploads < _LEAST:
        return []
    said = f"No upload moves {_named(sorted(still))}. If clients freeze"
    return [
        f"{said} them, state `training.frozen` in the card: inversion assumes that their gradient is zero."
    ]


def starts_of(messages: Sequence[Message]) -> dict[int, Message]:
    """Return by number of a message the model that its sender had received last before it."""
    held: dict[str, Message] = {}
    found: dict[int, Message] = {}
    for message in messages:
        if message.sender in held:
            found[message.seq] = held[message.sender]
        if message.kind == "model_parameters":
            held |= dict.fromkeys(message.receivers, message)
    return found


def _movements(
    case: Case, transcript: Path, messages: Sequence[Message]
) -> Iterator[tuple[Message, Mapping[str, bool]]]:
    """Yield the clients' readable uploads, and for each tensor by name whether it moved. Defended ones are left out."""
    card, starts = case.system.card, starts_of(messages)
    changed = {a.kind for a in card.attested} | ({*MODELS} if card.defenses else set())
    naming = Naming.of(case.settings)
    for message in messages:
        if role(message.sender) != "client" or message.kind not in MODELS or message.kind in changed:
            continue
        start = starts.get(message.seq) if message.kind == "model_parameters" else None
        absent = message.kind == "model_parameters" and (start is None or start.payload is None)
        if absent or message.payload is None or message.seq in case.system.not_finite:
            continue
        sent = weights_of(decode(read_payload(transcript, message)), naming)
        if start is None:
            yield message, {name: bool(change.any()) for name, change in sent.items()}
        else:
            before = weights_of(decode(read_payload(transcript, start)), naming)
            yield message, {name: _differ(sent[name], before[name]) for name in sent.keys() & before.keys()}


def _differ(sent: Tensor, before: Tensor) -> bool:
    return sent.shape != before.shape or not torch.equal(sent, before.to(sent.dtype))


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(visible(name)[:60] for name in names[:3])
    return f"{shown}, …" if len(names) > 3 else shown

"""A client's uploads for one model that a deviating server sent it in several rounds (`repeated-model`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fdaudit.transcript.messages import DEVIATION

from .._uploads import received_before, with_payload

if TYPE_CHECKING:
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

__all__ = ["uploads_for_one_model"]


def uploads_for_one_model(view: View, message: Message, origin: Message, target: str) -> list[Message]:
    """Return a client's uploads for one model, the given one first; that one alone if no member of the view deviated.

    Args:
        view: the adversary's view.
        message: an upload of the client.
        origin: the model that it started from.
        target: the client.
    """
    reached = set[str]()  # by messages of deviating members
    for other in view.messages:
        if DEVIATION in other.fields and other.sender in view.members:
            reached.update(other.receivers)
    if message.sender != target or target not in reached:
        return [message]
    start = view.tensors(origin)
    uploads = [message]
    for other in with_payload(view.select(kind=message.kind, sender=target)):
        if other.round == message.round or other.fields != message.fields:
            continue
        received = received_before(view, other, target)
        if not received:
            continue
        model = view.tensors(received[-1])
        if model.keys() == start.keys() and all(torch.equal(model[name], start[name]) for name in model):
            uploads.append(other)
    return uploads

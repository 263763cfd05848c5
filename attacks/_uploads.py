"""A client's uploads of gradients, updates and models, each with the model that it started from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fdaudit.kinds import MODELS
from fdaudit.transcript.messages import Message, role

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters

__all__ = [
    "WEIGHTS",
    "after",
    "broadcasts",
    "clients_of",
    "received_before",
    "updates_without_broadcast",
    "uploads_of",
    "weight_of",
    "with_payload",
]

WEIGHTS = ("model_update", "model_parameters")
"""Kinds of uploads that reveal a client's whole model."""


def with_payload(messages: Iterable[Message]) -> list[Message]:
    """Return the messages that were recorded with their tensors, without those recorded as digests only."""
    return [message for message in messages if message.payload is not None]


def clients_of(view: View) -> list[str]:
    """Return the parties of a view that are clients."""
    return [party for party in view.parties if role(party) == "client"]


def broadcasts(view: View) -> list[Message]:
    """Return the federation's model as the view holds it at each round's start, and the last one."""
    models = with_payload(view.select(kind="model_parameters"))
    models = [m for m in models if role(m.sender) != "client"]
    by_round = dict[int, Message]()
    for model in models:
        by_round.setdefault(model.round, model)
    first = list(by_round.values())
    if models and models[-1] is not first[-1]:
        first.append(models[-1])
    return first


def received_before(view: View, message: Message, target: str) -> list[Message]:
    """Return the models that a client received before one of its messages, if they are in view with their tensors."""
    models = list[Message]()
    for model in with_payload(view.select(kind="model_parameters")):
        if model.seq < message.seq and target in model.receivers:
            models.append(model)
    return models


def uploads_of(view: View, target: str, kinds: Sequence[str] = MODELS) -> list[tuple[Message, Message]]:
    """Return a client's uploads of the first of these kinds that it sent, each with the last model received before."""
    models = with_payload(view.select(kind="model_parameters"))
    received = [m for m in models if target in m.receivers]
    for kind in kinds:
        uploads = []
        for message in with_payload(view.select(kind=kind, sender=target)):
            before = [m for m in received if m.seq < message.seq]
            if before:
                uploads.append((message, before[-1]))
        if uploads:
            return uploads
    return []


def weight_of(message: Message) -> float:
    """Return the weight by which an update was multiplied before it was sent, or the total of a sum; 1 without one."""
    return float(message.fields.get("weight", 1.0)) or 1.0


def after(view: View, message: Message, start: Parameters) -> Parameters:
    """Return the model that a client had when it sent an update, or the uploaded model itself."""
    tensors = view.tensors(message)
    if message.kind == "model_update":
        weight = weight_of(message)
        tensors = {name: start[name] + value / weight for name, value in tensors.items()}
    return {**start, **tensors}


def updates_without_broadcast(
    view: View, target: str, initial: Parameters
) -> list[tuple[Message, Parameters]]:
    """Return a client's updates, each with the model it was trained from, where the view holds no broadcast.

    Secure aggregation receives updates and sends their sums, but receives no model. The first round starts from the
    initial weights. A sum over its total weight leads to the next round's model, unless the server uses momentum: then
    the first round counts alone.

    Args:
        view: the adversary's view.
        target: the client.
        initial: the initial weights, which every participant receives.
    """
    if view.select(kind="model_parameters"):
        return []
    aggregates = with_payload(view.select(kind="model_update", sender="aggregator"))
    sums = {m.round: m for m in aggregates}
    updates: list[tuple[Message, Parameters]] = []
    start = dict(initial)
    first = min((m.round for m in view.messages), default=0)
    for now in range(first, max((m.round for m in view.messages), default=-1) + 1):
        for message in with_payload(view.select(kind="model_update", sender=target, round=now)):
            unknown = message.tensors.keys() - start.keys()
            if not unknown:
                updates.append((message, start))
        if now not in sums or view.hyperparameters.get("server_momentum"):
            break
        total = view.tensors(sums[now])
        weight = weight_of(sums[now])
        following = dict(start)
        for name, value in total.items():
            following[name] = start[name] + value.cpu() / weight
        start = following
    return updates

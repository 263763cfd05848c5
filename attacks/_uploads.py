"""A client's uploads of gradients, updates and models, each with the model that it started from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fdaudit.kinds import MODELS
from fdaudit.transcript.messages import Message, role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters

__all__ = ["WEIGHTS", "after", "broadcasts", "updates_without_broadcast", "uploads_of"]

WEIGHTS = ("model_update", "model_parameters")
"""Kinds of uploads that reveal a client's whole model."""


def broadcasts(view: View) -> list[Message]:
    """Return the federation's model as the view holds it at each round's start, and the last one."""
    sent = [m for m in view.select(kind="model_parameters") if m.payload is not None]
    sent = [m for m in sent if role(m.sender) != "client"]
    first = list({m.round: m for m in reversed(sent)}.values())[::-1]
    return [*first, *(sent[-1:] if sent and sent[-1] is not first[-1] else ())]


def uploads_of(view: View, target: str, kinds: Sequence[str] = MODELS) -> list[tuple[Message, Message]]:
    """Return a client's uploads of the first of these kinds that it sent, each with the last model received before."""
    received = [
        m for m in view.select(kind="model_parameters") if target in m.receivers and m.payload is not None
    ]
    for kind in kinds:
        found = [
            (message, before[-1])
            for message in view.select(kind=kind, sender=target)
            if message.payload is not None and (before := [m for m in received if m.seq < message.seq])
        ]
        if found:
            return found
    return []


def after(view: View, message: Message, start: Parameters) -> Parameters:
    """Return the model that a client had when it sent an update, or the uploaded model itself."""
    sent = view.tensors(message)
    if message.kind == "model_update":
        weight = float(message.fields.get("weight", 1.0))  # of an update that was weighted before it was sent
        sent = {name: start[name] + value / weight for name, value in sent.items()}
    return {**start, **sent}


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
    sums = {
        m.round: m for m in view.select(kind="model_update", sender="aggregator") if m.payload is not None
    }
    found: list[tuple[Message, Parameters]] = []
    start = dict(initial)
    first = min((m.round for m in view.messages), default=0)
    for now in range(first, max((m.round for m in view.messages), default=-1) + 1):
        sent = [
            m for m in view.select(kind="model_update", sender=target, round=now) if m.payload is not None
        ]
        found += [(m, start) for m in sent if m.tensors.keys() <= start.keys()]
        if now not in sums or view.hyperparameters.get("server_momentum"):
            break
        total, weight = view.tensors(sums[now]), float(sums[now].fields.get("weight", 1.0))
        start = {**start, **{name: start[name] + value.cpu() / weight for name, value in total.items()}}
    return found

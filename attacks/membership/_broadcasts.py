"""Read each broadcast model as its change since the one before, which is a sum of the clients' changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._uploads import WEIGHTS, after, broadcasts, clients_of, uploads_of, with_payload
from ._derived import Reading
from ._ridge import unexplained

if TYPE_CHECKING:
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters
    from fdaudit.transcript.messages import Message

    from ._matched import Matched

__all__ = ["broadcast_changes", "changes_of"]

_MOST_PARAMETERS = 100_000
"""Values of all changes together."""


def broadcast_changes(view: View) -> list[tuple[Message, Message]]:
    """Return each broadcast model with the next one, if it is an average of models that clients sent.

    It is one if the adversary sent its own model, or if it sees what secure aggregation made of all. Models of rounds
    that do not follow each other tell of rounds between them too, and are left out.
    """
    senders = {m.sender for m in with_payload(view.messages) if m.kind in WEIGHTS}
    if senders.isdisjoint({*view.members, "aggregator"}):
        return []
    return [(start, end) for start, end in pairwise(broadcasts(view)) if end.round - start.round <= 1]


def changes_of(
    view: View, most: int, shadows: Callable[[Parameters], Mapping[str, Matched]]
) -> list[Reading]:
    """Return the changes of the first broadcast models, each as a sum of what the shadows of every client change.

    A server that distils, or a defence, adds more than the clients do. It is taken for noise on all values, as much as
    makes the change likeliest.

    Args:
        view: the adversary's view.
        most: changes, at most.
        shadows: from a broadcast model, shadows of every client that is no member, which start from it.
    """
    readings: list[Reading] = []
    pairs = broadcast_changes(view)[:most]
    for before, now in pairs:
        start = view.tensors(before)
        end = view.tensors(now)
        if {n: t.shape for n, t in start.items()} != {n: t.shape for n, t in end.items()}:
            continue
        by_client = {client: one for client, one in shadows(start).items() if client in before.receivers}
        if not by_client:
            continue
        values = _MOST_PARAMETERS // len(pairs)
        mine = {}
        for member in view.members:
            for message, origin in uploads_of(view, member, WEIGHTS):
                if origin.seq == before.seq:
                    mine[member] = after(view, message, start)
        records = {client: float(one.held.sum(1).double().mean()) for client, one in by_client.items()}
        records |= {member: float(len(view.own_data[member][1])) for member in mine}
        weights = _weights(view, records)
        change = _change(end, start, values)
        for member, model in mine.items():
            change = change - weights[member] * _change(model, start, values)
        parts = {}
        for client, one in by_client.items():
            changes = torch.stack([_change(model, start, values) for model in one.models])
            parts[client] = weights[client] * changes
        readings.append(Reading(seen=change, parts=parts, noise=unexplained([*parts.values()], change)))
    return readings


def _change(model: Mapping[str, Tensor], start: Mapping[str, Tensor], most: int) -> Tensor:
    """Return what was changed (P,), in float32; of more than `most` parameters every so many."""
    change = torch.cat([(model[name] - start[name]).flatten().float() for name in sorted(start)])
    return change[:: -(-len(change) // most)]


def _weights(view: View, records: Mapping[str, float]) -> dict[str, float]:
    """Return each client's weight in the average, by the public configuration."""
    public: Mapping[str, Any] = view.hyperparameters
    public_weights = public.get("weights")
    if (
        public.get("weighting") == "public"
        and isinstance(public_weights, Sequence)
        and not isinstance(public_weights, str)
    ):
        by_name = dict(zip(clients_of(view), map(float, public_weights), strict=False))
        weights = {client: by_name.get(client, 1.0) for client in records}
    elif public.get("weighting") == "uniform":
        weights = dict.fromkeys(records, 1.0)
    else:
        weights = dict(records)
    total = sum(weights.values())
    return {client: n / total for client, n in weights.items()}

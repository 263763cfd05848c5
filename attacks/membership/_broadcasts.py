"""Read each broadcast model as its change since the one before, which is a sum of the clients' changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fdaudit.transcript.messages import role

from .._uploads import WEIGHTS, after, broadcasts, uploads_of
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
    averaged = any(
        m.kind in WEIGHTS and m.payload is not None and (m.sender in view.members or m.sender == "aggregator")
        for m in view.messages
    )
    if not averaged:
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
    found: list[Reading] = []
    pairs = broadcast_changes(view)[:most]
    for before, now in pairs:
        start, end = view.tensors(before), view.tensors(now)
        if {n: t.shape for n, t in start.items()} != {n: t.shape for n, t in end.items()}:
            continue
        made = {client: one for client, one in shadows(start).items() if client in before.receivers}
        if not made:
            continue
        values = _MOST_PARAMETERS // len(pairs)
        mine = {
            member: after(view, message, start)
            for member in view.members
            for message, origin in uploads_of(view, member, WEIGHTS)
            if origin.seq == before.seq
        }
        records = {client: float(one.held.sum(1).double().mean()) for client, one in made.items()}
        records |= {member: float(len(view.own_data[member][1])) for member in mine}
        weights = _weights(view, records)
        seen = _change(end, start, values)
        for member, model in mine.items():
            seen = seen - weights[member] * _change(model, start, values)
        parts = {
            client: weights[client] * torch.stack([_change(model, start, values) for model in one.models])
            for client, one in made.items()
        }
        found.append(Reading(seen=seen, parts=parts, noise=unexplained([*parts.values()], seen)))
    return found


def _change(model: Mapping[str, Tensor], start: Mapping[str, Tensor], most: int) -> Tensor:
    """Return what was changed (P,), in float32; of more than `most` parameters every so many."""
    found = torch.cat([(model[name] - start[name]).flatten().float() for name in sorted(start)])
    return found[:: -(-len(found) // most)]


def _weights(view: View, records: Mapping[str, float]) -> dict[str, float]:
    """Return each client's weight in the average, by the public configuration."""
    public: Mapping[str, Any] = view.hyperparameters
    given = public.get("weights")
    if public.get("weighting") == "public" and isinstance(given, Sequence) and not isinstance(given, str):
        clients = [p for p in view.parties if role(p) == "client"]
        named = dict(zip(clients, map(float, given), strict=False))
        held = {client: named.get(client, 1.0) for client in records}
    elif public.get("weighting") == "uniform":
        held = dict.fromkeys(records, 1.0)
    else:
        held = dict(records)
    total = sum(held.values())
    return {client: n / total for client, n in held.items()}

"""Values in view that follow from all clients' models, each read as a sum of what every client adds to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fdaudit.rng import child

from .._uploads import WEIGHTS, after, broadcasts, clients_of, uploads_of, with_payload
from ._ridge import unexplained

if TYPE_CHECKING:
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters
    from fdaudit.transcript.messages import Message

    from ._study import Study

__all__ = [
    "MOST_PARAMETERS",
    "Reading",
    "broadcast_changes",
    "centred",
    "change_in",
    "changes_of",
    "from_teachers",
    "joined",
]

_FLOOR = 1e-6
"""Smallest scale of an answer."""
MOST_PARAMETERS = 100_000
"""Values of all changes together."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """Values in view that follow from all clients' models.

    Attributes:
        seen: (d,) the values.
        parts: by client, (m, d) what each of its shadows adds to them.
        noise: variance of a defence's noise on each value.
        residual: (r, d) what no client's part explains of r federations; None if nothing is left.
        rehearsed: (r, d) the values of these; in federation i each client holds the records of its shadow i.
    """

    seen: Tensor
    parts: Mapping[str, Tensor]
    noise: float = 0.0
    residual: Tensor | None = None
    rehearsed: Tensor | None = None


def joined(readings: Sequence[Reading]) -> Reading:
    """Join readings of the same shadows, each scaled by how much these and a defence's noise differ in it.

    Where some have rehearsed federations and others none, those of the others follow from their shadows and noise.
    """
    rows: dict[str, int] = {}
    parts: dict[str, list[Tensor]] = {}
    for one in readings:
        for client, part in one.parts.items():
            rows[client] = len(part)
            parts[client] = []
    count = min((len(one.rehearsed) for one in readings if one.rehearsed is not None), default=0)
    draws = child(0, "joined")
    width = sum(len(r.seen) for r in readings)
    values = list[Tensor]()
    noise = 0.0
    residual = list[Tensor]()
    rehearsed = list[Tensor]()
    for one in readings:
        spread = torch.zeros(())
        for part in one.parts.values():
            spread = spread + (part - part.mean(0)).square().sum(1).mean()
        scale = float((spread + one.noise * len(one.seen)).sqrt().clamp_min(_FLOOR))
        values.append(one.seen / scale)
        noise += one.noise / scale**2 * len(one.seen) / width
        for client, count_of_shadows in rows.items():
            if client in one.parts:
                parts[client].append(one.parts[client] / scale)
            else:
                parts[client].append(torch.zeros(count_of_shadows, len(one.seen)))
        if count and one.residual is not None and one.rehearsed is not None:
            residual.append(one.residual[:count] / scale)
            rehearsed.append(one.rehearsed[:count] / scale)
        elif count:
            noisy = one.noise**0.5 * torch.randn(count, len(one.seen), generator=draws, dtype=torch.float64)
            residual.append(noisy / scale)
            rehearsed.append((noisy + sum(part[:count] for part in one.parts.values())) / scale)
    return Reading(
        seen=torch.cat(values),
        parts={client: torch.cat(pieces, 1) for client, pieces in parts.items()},
        noise=noise,
        residual=torch.cat(residual, 1) if count else None,
        rehearsed=torch.cat(rehearsed, 1) if count else None,
    )


def from_teachers(seen: Tensor, teachers: Mapping[str, Tensor], taught: Tensor, rehearsed: Tensor) -> Reading:
    """Return the answers of a distilled model as a sum over its teachers and a residual.

    A distilled model answers a · Σ_k t_k and a residual, with one gain a for all samples, by least squares.

    Args:
        seen: (d,) the model's answers.
        teachers: by client, (m, d) what its shadows add to the average that was distilled, t_k.
        taught: (r, d) the averages that were distilled in rehearsals, Σ_k t_k.
        rehearsed: (r, d) the answers of the rehearsals' models.
    """
    moved = taught - taught.mean(0)
    gain = ((rehearsed - rehearsed.mean(0)) * moved).sum() / moved.square().sum().clamp_min(1e-300)
    return Reading(
        seen=seen,
        parts={client: gain * part for client, part in teachers.items()},
        residual=rehearsed - gain * taught,
        rehearsed=rehearsed,
    )


def centred(z: Tensor) -> Tensor:
    """Return answers (…, C) without the mean over their classes."""
    return z - z.mean(-1, keepdim=True)


# -- changes of the broadcast model -----------------------------------------------------------------------------------


def broadcast_changes(view: View) -> list[tuple[Message, Message]]:
    """Return each broadcast model with the next one, if it is an average of models that clients sent.

    It is one if the adversary sent its own model, or if it sees what secure aggregation made of all. Models of rounds
    that do not follow each other tell of rounds between them too, and are left out.
    """
    senders = set[str]()
    for m in with_payload(view.messages):
        if m.kind in WEIGHTS:
            senders.add(m.sender)
    if senders.isdisjoint({*view.members, "aggregator"}):
        return []
    changes = []
    for start, end in pairwise(broadcasts(view)):
        if end.round - start.round <= 1:
            changes.append((start, end))
    return changes


def changes_of(view: View, most: int, shadows: Callable[[Parameters], Mapping[str, Study]]) -> list[Reading]:
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
        by_client = {}
        records = {}
        for client, one in shadows(start).items():
            if client in before.receivers:
                by_client[client] = one
                records[client] = float(one.held.sum(1).double().mean())
        if not by_client:
            continue
        values = MOST_PARAMETERS // len(pairs)
        mine = {}
        for member in view.members:
            for message, origin in uploads_of(view, member, WEIGHTS):
                if origin.seq == before.seq:
                    mine[member] = after(view, message, start)
                    records[member] = float(len(view.own_data[member][1]))
        weights = _weights(view, records)
        change = change_in(end, start, values)
        for member, model in mine.items():
            change = change - weights[member] * change_in(model, start, values)
        parts = {}
        for client, one in by_client.items():
            changes = torch.stack([change_in(model, start, values) for model in one.models])
            parts[client] = weights[client] * changes
        readings.append(Reading(seen=change, parts=parts, noise=unexplained([*parts.values()], change)))
    return readings


def change_in(model: Mapping[str, Tensor], start: Mapping[str, Tensor], most: int) -> Tensor:
    """Return the change of a model by training (P,), in float32; of more than `most` parameters every so many."""
    changes = list[Tensor]()
    for name in sorted(start):
        changes.append((model[name] - start[name]).flatten().float())
    change = torch.cat(changes)
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

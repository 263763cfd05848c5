"""A distilled model as a sum of what its teachers answer and a residual, which rehearsed federations show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.rng import child_seed
from fdaudit.storage.cache import digest_of, remembered_parts
from fdaudit.transcript.messages import role

from ._derived import Reading

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters

    from ._matched import Matched

__all__ = ["distilled", "rounds_of"]

_FLOOR = 1e-30
"""Smallest probability before a logarithm."""


def rounds_of(view: View) -> int:
    """Return how many exchanges of messages a rehearsal of the protocol has, by its public configuration."""
    public = view.hyperparameters
    return int(public.get("rounds") or 1) * int(public.get("steps_per_round") or 1)


def distilled(
    view: View,
    knowledge: Knowledge,
    made: Mapping[str, Matched],
    weights: Mapping[str, Tensor],
    x: Tensor,
    answers: Tensor,
    *,
    rehearsals: int,
    seed: int,
) -> Reading | None:
    """Return how a released model's answers follow from its teachers'; None if a rehearsal ends in another network.

    In each rehearsal every client holds the records of one of its shadows. The released model of the rehearsal answers
    a · Σ_k w_k z_k and a residual, with one gain a for all samples.

    Args:
        view: for the parties and members' own records.
        knowledge: with `rehearse` and a training core.
        made: shadows of every client that is no member.
        weights: (C,) of each of these clients in the average that was distilled.
        x: (s, c, h, w) samples that the model was asked about.
        answers: (s, C) its probabilities.
        rehearsals: federations, at most the number of shadows.
        seed: of the rehearsals.
    """
    train = knowledge.train
    if train is None or knowledge.rehearse is None or knowledge.architecture is None:
        return None
    shapes = knowledge.architecture.parameter_shapes
    released, taught = list[Tensor](), list[Tensor]()
    for models in _rehearsed(view, knowledge, made, rehearsals, seed):
        teachers = [models.get(client) for client in made]
        for model in (models.get("server"), *teachers):
            if model is None or any(
                name not in model or tuple(model[name].shape) != s for name, s in shapes.items()
            ):
                return None
        released.append(_centred(train.predict(models["server"], x).double().log_softmax(1)).flatten())
        total = sum(weights[client] * train.predict(models[client], x).double() for client in made)
        taught.append(_centred(torch.as_tensor(total)).flatten())
    f, e = torch.stack(released), torch.stack(taught)
    moved = e - e.mean(0)
    gain = float(((f - f.mean(0)) * moved).sum() / moved.square().sum().clamp_min(1e-300))
    parts = {
        client: gain
        * _centred(
            weights[client] * torch.stack([train.predict(model, x) for model in one.models]).double()
        ).flatten(1)
        for client, one in made.items()
    }
    seen = _centred(answers.double().clamp_min(_FLOOR).log()).flatten()
    return Reading(seen=seen, parts=parts, residual=f - gain * e, rehearsed=f)


def _centred(z: Tensor) -> Tensor:
    return z - z.mean(-1, keepdim=True)


def _rehearsed(
    view: View, knowledge: Knowledge, made: Mapping[str, Matched], count: int, seed: int
) -> list[dict[str, Parameters]]:
    """Return the last model of each party of rehearsed federations."""
    clients = [p for p in view.parties if role(p) == "client"]
    count = min(count, *(len(one.models) for one in made.values()))

    def records(client: str, number: int) -> tuple[Tensor, Tensor]:
        if client in view.own_data:
            return view.own_data[client]
        (x, y), held = made[client].pool, made[client].held[number]
        return x[held], y[held]

    works: dict[str, Callable[[], dict[str, Tensor]]] = {}
    own = getattr(knowledge.rehearse, "setting", None)
    found: list[dict[str, Parameters]] = []
    for number in range(count):
        data, drawn = [records(k, number) for k in clients], child_seed(seed, "rehearsed", number)
        run = partial(_models, knowledge, data, drawn)
        if own is None or view.own_data:  # what follows from a member's records is kept from others
            found.append(_by_party(run()))
        else:
            described = {"what": "rehearsed federation", "setting": dict(own), "seed": drawn}
            network = {"network": knowledge.architecture.described} if knowledge.architecture else {}
            works[digest_of({**described, **network}, *(t for pair in data for t in pair))] = run
    return found or [_by_party(tensors) for tensors in remembered_parts(works)]


def _models(knowledge: Knowledge, data: list[tuple[Tensor, Tensor]], seed: int) -> dict[str, Tensor]:
    models: dict[str, Parameters] = {}
    if knowledge.rehearse is not None:
        knowledge.rehearse(data, seed, models)
    return {f"{party}:{name}": t.detach().cpu() for party, one in models.items() for name, t in one.items()}


def _by_party(tensors: Mapping[str, Tensor]) -> dict[str, Parameters]:
    found: dict[str, Parameters] = {}
    for name, tensor in tensors.items():
        party, _, parameter = name.partition(":")
        found.setdefault(party, {})[parameter] = tensor
    return found

"""A distilled model as a sum of what its teachers answer and a residual, which rehearsed federations show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.rng import child_seed
from fdaudit.storage.cache import digest_of, remembered_parts

from .._shadows import stacked_logits
from .._uploads import clients_of
from ._derived import Reading

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters

    from ._matched import Matched

__all__ = ["centred", "distilled", "rounds_of"]

_FLOOR = 1e-30
"""Smallest probability before a logarithm."""


def rounds_of(view: View) -> int:
    """Return how many exchanges of messages a rehearsal of the protocol has, by its public configuration."""
    public = view.hyperparameters
    return int(public.get("rounds") or 1) * int(public.get("steps_per_round") or 1)


def distilled(
    view: View,
    knowledge: Knowledge,
    shadows: Mapping[str, Matched],
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
        shadows: shadows of every client that is no member.
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
    released = list[Tensor]()
    taught = list[Tensor]()
    for models in _rehearsed(view, knowledge, shadows, rehearsals, seed):
        teachers = [models.get(client) for client in shadows]
        for model in (models.get("server"), *teachers):
            if model is None or any(
                name not in model or tuple(model[name].shape) != s for name, s in shapes.items()
            ):
                return None
        released.append(centred(train.predict(models["server"], x).double().log_softmax(1)).flatten())
        total = sum(weights[client] * train.predict(models[client], x).double() for client in shadows)
        taught.append(centred(torch.as_tensor(total)).flatten())
    f = torch.stack(released)
    e = torch.stack(taught)
    moved = e - e.mean(0)
    gain = float(((f - f.mean(0)) * moved).sum() / moved.square().sum().clamp_min(1e-300))
    parts = {}
    for client, one in shadows.items():
        z = stacked_logits(train, one.models, x).double()
        parts[client] = gain * centred(weights[client] * z).flatten(1)
    values = centred(answers.double().clamp_min(_FLOOR).log()).flatten()
    return Reading(seen=values, parts=parts, residual=f - gain * e, rehearsed=f)


def centred(z: Tensor) -> Tensor:
    """Return answers (…, C) without the mean over their classes."""
    return z - z.mean(-1, keepdim=True)


def _rehearsed(
    view: View, knowledge: Knowledge, shadows: Mapping[str, Matched], count: int, seed: int
) -> list[dict[str, Parameters]]:
    """Return the last model of each party of rehearsed federations."""
    clients = clients_of(view)
    count = min(count, *(len(one.models) for one in shadows.values()))

    def records(client: str, number: int) -> tuple[Tensor, Tensor]:
        if client in view.own_data:
            return view.own_data[client]
        (x, y), mask = shadows[client].pool, shadows[client].held[number]
        return x[mask], y[mask]

    works: dict[str, Callable[[], dict[str, Tensor]]] = {}
    own = getattr(knowledge.rehearse, "setting", None)
    federations: list[dict[str, Parameters]] = []
    for number in range(count):
        data = [records(k, number) for k in clients]
        run_seed = child_seed(seed, "rehearsed", number)
        run = partial(_models, knowledge, data, run_seed)
        if own is None or view.own_data:  # what follows from a member's records is kept from others
            federations.append(_by_party(run()))
        else:
            described = {"what": "rehearsed federation", "setting": dict(own), "seed": run_seed}
            network = {"network": knowledge.architecture.described} if knowledge.architecture else {}
            works[digest_of({**described, **network}, *chain.from_iterable(data))] = run
    return federations or list(map(_by_party, remembered_parts(works)))


def _models(knowledge: Knowledge, data: list[tuple[Tensor, Tensor]], seed: int) -> dict[str, Tensor]:
    models: dict[str, Parameters] = {}
    if knowledge.rehearse is not None:
        knowledge.rehearse(data, seed, models)
    tensors = {}
    for party, model in models.items():
        for name, tensor in model.items():
            tensors[f"{party}:{name}"] = tensor.detach().cpu()
    return tensors


def _by_party(tensors: Mapping[str, Tensor]) -> dict[str, Parameters]:
    models: dict[str, Parameters] = {}
    for name, tensor in tensors.items():
        party, _, parameter = name.partition(":")
        models.setdefault(party, {})[parameter] = tensor
    return models

"""Read a model that was distilled from clients' answers as a sum of what their shadows would answer, and a residual.

FedED's server sends its model and gets answers of the models that clients trained from it. It distils their average.
A client that holds both models knows where that distillation began, on which samples, and for how many steps. For a
model that is released at the end the adversary rehearses the whole protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fdaudit.rng import child, child_seed
from fdaudit.storage.cache import digest_of, remembered_parts
from fdaudit.training.trainer import Job, draw_batches
from fdaudit.transcript.messages import role
from fdaudit.transcript.samples import sample_index

from .._shadows import many_at_once, stacked_logits
from .._uploads import WEIGHTS, broadcasts, clients_of, with_payload
from ._derived import Reading, centred, from_teachers
from ._rounds import distillation_of

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters, Trainer
    from fdaudit.transcript.messages import Message

    from ._study import Study

__all__ = ["distilled", "distilled_broadcasts", "readings_of_distilled", "rounds_of", "targets_of"]

_ANSWERS = ("soft_labels", "hard_labels")
_FLOOR = 1e-30
"""Smallest probability before a logarithm."""


# -- broadcast models -------------------------------------------------------------------------------------------------


class Distilled(NamedTuple):
    """Two broadcast models, and the request for answers between them."""

    start: Message
    asked: Message
    end: Message


def distilled_broadcasts(view: View) -> list[Distilled]:
    """Return each broadcast model with the next one, if the server distilled clients' answers in between.

    It did if it named the samples, clients sent answers and no models, and the configuration has distillation steps.
    """
    public = view.hyperparameters
    if "distill_steps" not in public or public.get("share") not in _ANSWERS:
        return []
    for message in view.messages:
        if message.kind in WEIGHTS and role(message.sender) == "client":
            return []
    distilled = []
    for start, end in pairwise(broadcasts(view)):
        if end.round - start.round > 1:
            continue
        for m in with_payload(view.select(kind="proxy_indices", round=start.round)):
            if start.seq < m.seq < end.seq and role(m.sender) != "client":
                distilled.append(Distilled(start, m, end))
                break
    return distilled


def readings_of_distilled(
    view: View,
    knowledge: Knowledge,
    samples: Tensor,
    shadows: Callable[[Parameters], Mapping[str, Study]],
    *,
    most: int,
    rehearsals: int,
    seed: int,
) -> list[Reading]:
    """Return what the first distilled models answer, each as a sum over the clients' shadows and a residual.

    The distillation is rehearsed from the answers of one shadow of every client. A rehearsed model answers
    a · Σ_k p_k / K and a residual, with one gain a for all samples; p_k are a client's centred probabilities.

    Args:
        view: the adversary's view.
        knowledge: with public samples and a training core.
        samples: (s, c, h, w) about which models are asked, in addition to those of the round.
        shadows: from a broadcast model, shadows of every client that is no member, which start from it.
        most: models, at most.
        rehearsals: of each distillation, at most the number of shadows.
        seed: of the rehearsals' batches.
    """
    train = many_at_once(knowledge)
    if train is None or knowledge.public is None:
        return []
    readings = []
    for number, one in enumerate(distilled_broadcasts(view)[:most]):
        start = view.tensors(one.start)
        index = sample_index(view.tensors(one.asked))
        by_client = {client: m for client, m in shadows(start).items() if client in one.start.receivers}
        if not by_client:
            continue
        taught = knowledge.public[index]
        count = min(rehearsals, *(len(m.models) for m in by_client.values()))
        targets = targets_of(view, knowledge, one, index, by_client, train, count)
        own = child_seed(seed, "distilled broadcast", number)
        fitted = _distilled(view, train, start, taught, targets, own)
        questions = torch.cat([taught, samples])
        clients = len(clients_of(view))
        parts = {}
        for client, m in by_client.items():
            z = stacked_logits(train, m.models, questions)
            parts[client] = centred(z.double().softmax(-1)).flatten(1) / clients
        rehearsed = torch.stack([_answers(train, model, questions) for model in fitted])
        mean = torch.stack([part[:count] for part in parts.values()]).sum(0)
        seen = _answers(train, view.tensors(one.end), questions)
        readings.append(from_teachers(seen, parts, mean, rehearsed))
    return readings


def targets_of(
    view: View,
    knowledge: Knowledge,
    one: Distilled,
    index: Tensor,
    by_client: Mapping[str, Study],
    train: Trainer,
    count: int,
) -> list[Tensor]:
    """Return the average answers (n, C) of `count` federations, with what the members sent themselves."""
    if knowledge.public is None:
        raise ValueError("targets_of: no public samples.")
    hard = view.hyperparameters.get("share") == "hard_labels"
    total = torch.zeros(count, len(index), knowledge.classes)
    answered = len(by_client)
    for member in view.members:
        for message in with_payload(view.select(sender=member, round=one.start.round)):
            if message.kind in _ANSWERS:
                values = view.tensors(message)["values"].cpu()
                total += _shares(values, knowledge.classes)
                answered += 1
    for study in by_client.values():
        for i, model in enumerate(study.models[:count]):
            z = train.predict(model, knowledge.public[index])
            total[i] += _shares(z.argmax(1), knowledge.classes) if hard else z.softmax(1)
    return [*(total / answered)]


def _shares(values: Tensor, classes: int) -> Tensor:
    """Return probabilities (n, C): those given, or all of it on each given class (n,)."""
    if values.ndim == 2:
        return values.float()
    return torch.nn.functional.one_hot(values.long(), classes).float()


def _distilled(
    view: View, train: Trainer, start: Parameters, x: Tensor, targets: list[Tensor], seed: int
) -> list[Parameters]:
    """Return the model distilled from each of the targets, as the server would."""
    public = view.hyperparameters
    jobs = []
    for i, target in enumerate(targets):
        batches = draw_batches(
            len(x),
            int(public.get("distill_batch_size") or len(x)),
            steps=int(public["distill_steps"]),
            epochs=None,
            generator=child(seed, i, "batches"),
        )
        jobs.append(
            Job(
                party=f"rehearsal {i}",
                parameters=start,
                x=x,
                targets=target,
                batches=batches,
                seed=child_seed(seed, i, "dropout"),
            )
        )
    return [fitted.parameters for fitted in train.fit(jobs, distillation_of(public))]


def _answers(train: Trainer, model: Parameters, x: Tensor) -> Tensor:
    """Return a model's centred log-probabilities (s · C,)."""
    return centred(train.predict(model, x).double().log_softmax(-1)).flatten()


# -- released models --------------------------------------------------------------------------------------------------


def rounds_of(view: View) -> int:
    """Return how many exchanges of messages a rehearsal of the protocol has, by its public configuration."""
    public = view.hyperparameters
    return int(public.get("rounds") or 1) * int(public.get("steps_per_round") or 1)


def distilled(
    view: View,
    knowledge: Knowledge,
    shadows: Mapping[str, Study],
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
        for party in ("server", *shadows):
            model = models.get(party)
            if model is None or any(
                name not in model or tuple(model[name].shape) != s for name, s in shapes.items()
            ):
                return None
        released.append(centred(train.predict(models["server"], x).double().log_softmax(1)).flatten())
        total: Tensor | int = 0
        for client in shadows:
            total = total + weights[client] * train.predict(models[client], x).double()
        taught.append(centred(torch.as_tensor(total)).flatten())
    parts = {}
    for client, one in shadows.items():
        z = stacked_logits(train, one.models, x).double()
        parts[client] = centred(weights[client] * z).flatten(1)
    values = centred(answers.double().clamp_min(_FLOOR).log()).flatten()
    return from_teachers(values, parts, torch.stack(taught), torch.stack(released))


def _rehearsed(
    view: View, knowledge: Knowledge, shadows: Mapping[str, Study], count: int, seed: int
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

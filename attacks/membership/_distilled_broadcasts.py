"""Read each broadcast model that was distilled from clients' answers as a sum of what their shadows would answer.

FedED's server sends its model and gets answers of the models that clients trained from it. It distils their average.
A client that holds both models knows where that distillation began, on which samples, and for how many steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fdaudit.rng import child, child_seed
from fdaudit.training.trainer import Job, draw_batches
from fdaudit.transcript.messages import role
from fdaudit.transcript.samples import sample_index

from .._shadows import many_at_once, stacked_logits
from .._uploads import WEIGHTS, broadcasts, clients_of, with_payload
from ._derived import Reading
from ._followed import distillation_of
from ._rehearsed import centred

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters, Trainer
    from fdaudit.transcript.messages import Message

    from ._matched import Matched

__all__ = ["distilled_broadcasts", "readings_of_distilled", "targets_of"]

_ANSWERS = ("soft_labels", "hard_labels")


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
        requests = with_payload(view.select(kind="proxy_indices", round=start.round))
        requests = [m for m in requests if start.seq < m.seq < end.seq and role(m.sender) != "client"]
        if requests and end.round - start.round <= 1:
            distilled.append(Distilled(start, requests[0], end))
    return distilled


def readings_of_distilled(
    view: View,
    knowledge: Knowledge,
    samples: Tensor,
    shadows: Callable[[Parameters], Mapping[str, Matched]],
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
        samples: (s, c, h, w) about which models are asked, besides those of the round.
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
        moved = mean - mean.mean(0)
        gain = ((rehearsed - rehearsed.mean(0)) * moved).sum() / moved.square().sum().clamp_min(1e-300)
        readings.append(
            Reading(
                seen=_answers(train, view.tensors(one.end), questions),
                parts={client: gain * part for client, part in parts.items()},
                residual=rehearsed - gain * mean,
                rehearsed=rehearsed,
            )
        )
    return readings


def targets_of(
    view: View,
    knowledge: Knowledge,
    one: Distilled,
    index: Tensor,
    by_client: Mapping[str, Matched],
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
    for matched in by_client.values():
        for i, model in enumerate(matched.models[:count]):
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

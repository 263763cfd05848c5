"""Averages of clients' answers in view: their inputs, their weights, and the known shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from fdaudit.transcript.messages import role
from fdaudit.transcript.samples import sample_index
from fdaudit.types import AttackTask

from ._matched import told_counts
from ._treatment import treatment_of

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

__all__ = ["Ensemble", "Form", "answered_as", "ensemble_of"]

Form = Literal["logits", "soft_labels", "hard_labels"]
_SHARPENED = "era"
_FLOOR = 1e-30
"""Smallest probability before a logarithm: the smallest that a softmax in float32 gives."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ensemble:
    """One average of all clients' answers, minus the contribution of the adversary's own members.

    Attributes:
        index: (n,) numbers of the public samples.
        values: (n, C) the average, less the answers that the view holds, each times its weight.
        form: the averaged values: logits, probabilities or one-hot votes.
        weights: (C,) weight of each class's values, by client whose answers are not in view.
        noise: variance of a defence's noise on each value.
    """

    index: Tensor
    values: Tensor
    form: Form
    weights: Mapping[str, Tensor]
    noise: float


def answered_as(z: Tensor, form: Form) -> Tensor:
    """Return logits z (..., C) in the form of clients' answers."""
    if form == "logits":
        return z
    if form == "soft_labels":
        return z.softmax(-1)
    return torch.nn.functional.one_hot(z.argmax(-1), z.shape[-1]).to(z.dtype)


def ensemble_of(view: View, knowledge: Knowledge, task: AttackTask) -> Ensemble | None:
    """Return the first average in view of clients' answers on public samples, or None if it cannot be read.

    It cannot be read if the set of averaged clients is not public, as in Selective-FD.
    """
    form = _form(view.hyperparameters)
    sent = [m for m in view.messages if m.kind in ("ensemble_labels", "vote_counts") and m.payload]
    if form is None or not sent or knowledge.public is None:
        return None
    message, clients = sent[0], [p for p in view.parties if role(p) == "client"]
    tensors = view.tensors(message)
    index, values = sample_index(tensors), _values(tensors, view.hyperparameters, len(clients))
    if not len(index) or int(index.max()) >= len(knowledge.public):
        return None
    weights = _weights(view, task, clients, knowledge.classes)
    for client in clients:
        mine = _answer(view, client, message, index, form, knowledge.classes)
        if mine is not None:
            values = values - weights.pop(client) * mine
    noise = treatment_of(message.kind, view.defenses_of(message), values).variance
    return Ensemble(index=index, values=values, form=form, weights=weights, noise=noise)


def _form(public: Mapping[str, Any]) -> Form | None:
    """Return the form of the averaged values, from the public configuration."""
    if public.get("share") in ("logits", "soft_labels", "hard_labels"):
        form: Form = public["share"]
        return form
    if "selector" in public:
        return None
    ways: Mapping[Any, Form] = {"logits": "logits", "votes": "hard_labels"}
    return ways.get(public.get("ensemble"))


def _values(tensors: Mapping[str, Tensor], public: Mapping[str, Any], clients: int) -> Tensor:
    """Return the average (n, C), float64: counts as shares, ERA's softmax(p / T) undone."""
    if "counts" in tensors:
        return tensors["counts"].double().cpu() / clients
    values = tensors["values"].double().cpu()
    if public.get("aggregation") == _SHARPENED:
        values = values.clamp_min(_FLOOR).log() * float(public["temperature"])
        values = values - values.mean(1, keepdim=True) + 1 / values.shape[1]
    return values


def _weights(view: View, task: AttackTask, clients: list[str], classes: int) -> dict[str, Tensor]:
    """Return ω (C,) of each client: its share of each class's records (Gong et al. 2022, Eq. 1), or 1/K.

    Class counts that are not in view are estimated: from the candidates, half of which a victim holds, or for other
    clients from the mean of the known counts.
    """
    if view.hyperparameters.get("weights") != "class-counts":
        return {k: torch.full((classes,), 1 / len(clients), dtype=torch.float64) for k in clients}
    counts = {k: found for k in clients if (found := _counts(view, task, k, classes)) is not None}
    mean = torch.stack(list(counts.values())).mean(0) if counts else torch.ones(classes).double()
    held = {k: counts.get(k, mean.mean().expand(classes)) for k in clients}
    total = torch.stack(list(held.values())).sum(0)
    return {
        k: torch.where(total > 0, n / total.clamp_min(1e-12), torch.full_like(n, 1 / len(clients)))
        for k, n in held.items()
    }


def _counts(view: View, task: AttackTask, client: str, classes: int) -> Tensor | None:
    told, _ = told_counts(view, client)
    if told is not None:
        return told
    if client in view.own_data:
        return view.own_data[client][1].bincount(minlength=classes).double()
    if client in task.challenges:
        return task.challenges[client].y.bincount(minlength=classes).double() / 2
    return None


def _answer(
    view: View, client: str, ensemble: Message, index: Tensor, form: Form, classes: int
) -> Tensor | None:
    """Return a client's own answers (n, C) in an average, if the view holds them for all its samples."""
    sent = [
        m
        for m in view.select(sender=client, round=ensemble.round)
        if m.kind == form and m.payload is not None and m.seq < ensemble.seq
    ]
    if not sent:
        return None
    tensors = view.tensors(sent[-1])
    values = tensors["values"].cpu()
    if form == "hard_labels":
        values = values.long()
        valid = (values >= 0) & (values < classes)
        values = torch.nn.functional.one_hot(values.clamp(0, classes - 1), classes) * valid[:, None]
    place = {int(name): row for row, name in enumerate(sample_index(tensors).tolist())}
    if any(int(name) not in place for name in index):
        return None
    return values[[place[int(name)] for name in index]].double()

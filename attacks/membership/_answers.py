"""Recorded predictions of each client's model in a view, with their samples.

Samples are the public ones that the message's `index` names, or all in order without one. If a protocol has none, they
are those that the server generated in the same round and step. The effects of defences on
answers are undone as far as possible.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fdaudit.transcript.messages import Message, role
from fdaudit.transcript.samples import sample_index

from .._uploads import with_payload
from ._treatment import Treatment, treatment_of

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["RecordedAnswers", "evenly_spread", "recorded"]

_KINDS = ("logits", "soft_labels")


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedAnswers:
    """One client's answers.

    Attributes:
        samples: (n,) names of the samples; equal names mean equal samples.
        x: (n, c, h, w).
        values: (n, C) logits less their mean, or probabilities that sum to 1; float32.
        kind: `logits` or `soft_labels`.
        treatment: the effects of defences on them.
        noise: variance of a defence's noise on each value.
    """

    samples: Tensor
    x: Tensor
    values: Tensor
    kind: str
    treatment: Treatment
    noise: float = 0.0


def recorded(
    view: View,
    knowledge: Knowledge,
    most: int,
    *,
    first: bool = False,
    round: int | None = None,
    kinds: Sequence[str] = _KINDS,
    spread: bool = False,
) -> dict[str, RecordedAnswers]:
    """Return the recorded answers, by client.

    The last answer about a sample counts; answers with independent noise are averaged. With `first` only answers of a
    client's first round with any count, because later ones depend on other clients' answers.

    Args:
        view: the adversary's view.
        knowledge: with the public samples, if there are any.
        most: largest number of samples of one client: those answered last.
        first: whether only the first round counts.
        round: the only round that counts, if one is named.
        kinds: kinds of messages that count; `hard_labels` are read as probabilities of 0 and 1.
        spread: whether messages evenly spread over all rounds count, where the last ones would be enough.
    """
    pool = _Samples(view, knowledge)
    by_client = {}
    for client in sorted({m.sender for m in view.messages if role(m.sender) == "client"}):
        messages = with_payload(view.select(sender=client, round=round))
        messages = [m for m in messages if m.kind in kinds]
        if first and messages:
            messages = [m for m in messages if m.round == messages[0].round]
        # Probabilities and logits of one client are never mixed: the kind of its last answer counts.
        messages = [m for m in messages if m.kind == messages[-1].kind]
        if spread and messages:
            each = max(1, len(view.tensors(messages[0])["values"]))
            chosen = evenly_spread(len(messages), max(1, most // each))
            messages = [messages[k] for k in chosen.tolist()]
        answers = _one(view, pool, messages, most) if messages else None
        if answers is not None:
            by_client[client] = answers
    return by_client


def evenly_spread(count: int, most: int) -> Tensor:
    """Return at most `most` of the numbers from 0 to `count` - 1, spread evenly from the first to the last."""
    return torch.linspace(0, count - 1, min(count, most)).round().long()


class _Samples:
    """Samples by name: a public one's number, or a generated one's message and place in it."""

    def __init__(self, view: View, knowledge: Knowledge) -> None:
        self._view, self._public, self.classes = view, knowledge.public, knowledge.classes
        self._generated = with_payload(view.select(kind="generated_samples"))

    def names(self, message: Message, index: Tensor) -> Tensor:
        """Return names (n,) of the samples of an answer; -1 for one that does not exist.

        An answer is about the samples that were generated last in its round, or about public ones.
        """
        before = bisect_left(self._generated, message.seq, key=lambda m: m.seq)
        generated = self._generated[before - 1] if before else None
        if generated is not None and generated.round == message.round:
            inside = (index >= 0) & (index < generated.tensors["samples"].shape[0])
            return torch.where(inside, (generated.seq << 32) + index, -1)
        count = 0 if self._public is None else len(self._public)
        return torch.where((index >= 0) & (index < count), index, -1)

    def samples(self, names: Tensor) -> Tensor:
        """Return the samples (n, c, h, w) with these names."""
        behind = names >> 32
        if not bool(behind.any()) and self._public is not None:
            return self._public[names]
        by_seq = {m.seq: m for m in self._generated}
        parts = {seq: self._view.tensors(by_seq[seq])["samples"].cpu() for seq in behind.unique().tolist()}
        return torch.stack([parts[int(n) >> 32][int(n) & 0xFFFFFFFF] for n in names])


def _one(view: View, pool: _Samples, messages: list[Message], most: int) -> RecordedAnswers | None:
    names = list[Tensor]()
    values = list[Tensor]()
    treatment = Treatment(kind=messages[-1].kind)
    enough = 0
    for message in reversed(messages):
        if enough >= most and not treatment.noisy:
            break
        tensors = view.tensors(message)
        answers = tensors["values"].cpu()
        name = pool.names(message, sample_index(tensors))
        if message.kind == "hard_labels":
            votes = answers.long()
            name = name.where(votes >= 0, -1)  # a vote of -1 declines
            answers = one_hot(votes.clamp(min=0), pool.classes).double()
        treatment = treatment_of(message.kind, view.defenses_of(message), answers)
        names.append(name[name >= 0])
        values.append(treatment.undone(answers[name >= 0]))
        enough = len(torch.cat(names).unique())
    every = torch.cat(names)
    rows = torch.cat(values)
    if not len(every):
        return None
    unique, place = every.unique(return_inverse=True)
    first = torch.full((len(unique),), len(every)).scatter_reduce(
        0, place, torch.arange(len(every)), reduce="amin"
    )
    mean = rows[first]
    if treatment.noisy:
        count = torch.zeros(len(unique), dtype=rows.dtype).index_add_(
            0, place, torch.ones(len(rows)).double()
        )
        mean = torch.zeros(len(unique), rows.shape[1], dtype=rows.dtype).index_add_(0, place, rows)
        mean = mean / count[:, None]
    chosen = first.argsort()[:most].sort().values  # those answered last
    kind = messages[-1].kind
    mean = mean[chosen]
    mean = mean - mean.mean(1, keepdim=True) if kind == "logits" else mean / mean.sum(1, keepdim=True)
    return RecordedAnswers(
        samples=unique[chosen],
        x=pool.samples(unique[chosen]),
        values=mean.float(),
        kind=kind,
        treatment=treatment,
        noise=treatment.variance * len(unique) / len(every),
    )

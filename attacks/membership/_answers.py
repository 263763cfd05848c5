"""Recorded predictions of each client's model in a view, with their samples.

Samples are the public ones that the message's `index` names, or all in order without one. If a protocol has none, they
are those that the server generated in the same round and step.

A message records its defences, so an adversary knows them, and undoes their effects as far as possible. A softened
answer is sharpened again. A value rounded up to a grid is moved back to the middle of its cell, and the cell's width
counts as variance. Answers with independent noise are averaged.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fdaudit.adversary.top_answers import only_top
from fdaudit.transcript.messages import Message, role
from fdaudit.transcript.samples import sample_index

from .._uploads import with_payload

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["RecordedAnswers", "Treatment", "evenly_spread", "recorded", "treatment_of", "treatments"]

_KINDS = ("logits", "soft_labels")
_ROUNDING = 1e-3
"""Largest distance of a sum of half-precision probabilities from 1."""
_NOISE = ("discrete-gaussian", "discrete-laplace", "gaussian-noise", "laplace-noise")


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
    clients = set[str]()
    for m in view.messages:
        if role(m.sender) == "client":
            clients.add(m.sender)
    for client in sorted(clients):
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
        parts = {}
        for seq in behind.unique().tolist():
            parts[seq] = self._view.tensors(by_seq[seq])["samples"].cpu()
        samples = list[Tensor]()
        for name in names.tolist():
            samples.append(parts[name >> 32][name & 0xFFFFFFFF])
        return torch.stack(samples)


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


# -- effects of defences ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Treatment:
    """The effects of defences on answers, in the order in which they are undone.

    Attributes:
        kind: `logits` or `soft_labels`.
        noisy: each answer has its own noise.
        cell: width of the cells that values were rounded to, in their own units; 0 without rounding.
        raised: values were rounded up to the end of their cell, not to its middle.
        temperature: T that logits were divided by.
        variance: of the noise on each value, in the units of the logits before any temperature.
        top: only the values of so many classes of a sample were sent; 0: of all.
        rescaled: the probabilities of those classes were scaled to sum to 1.
    """

    kind: str = "soft_labels"
    noisy: bool = False
    cell: float = 0.0
    raised: bool = False
    temperature: float = 1.0
    variance: float = 0.0
    top: int = 0
    rescaled: bool = False

    def as_sent(self, values: Tensor) -> Tensor:
        """Return answers (n, C) of the adversary's own models with the classes left out that a client leaves out."""
        if not self.top:
            return values
        answers = only_top(values, self.top, self.kind)
        if self.kind == "logits":
            return answers - answers.mean(1, keepdim=True)
        if self.rescaled:
            answers = answers * (answers >= answers.topk(self.top, dim=1).values[:, -1:])
            return answers / answers.sum(1, keepdim=True)
        return answers

    def undone(self, values: Tensor) -> Tensor:
        """Return the answers (n, C), logits or probabilities, with defences undone as far as possible; float64."""
        answers = values.double()
        if self.raised and not self.noisy:
            answers = answers - self.cell / 2
        if self.kind == "logits":
            return answers * self.temperature
        answers = answers.clamp_min(self.cell / 2 or 1e-12)
        if self.temperature != 1:
            answers = (answers.log() * self.temperature).softmax(1)
        return answers / answers.sum(1, keepdim=True)

    def probabilities(self, values: Tensor) -> Tensor:
        """Return the undone answers as probabilities (n, C) that sum to 1."""
        answers = self.undone(values)
        return answers.softmax(1) if self.kind == "logits" else answers

    @property
    def floor(self) -> float:
        """Return the smallest probability that an answer can distinguish from 0."""
        return self.cell / 2 if self.kind == "soft_labels" else 0.0

    def blur(self, phi: Tensor) -> Tensor:
        """Return the variance (n,) that the cells' width leaves in a logit-scaled confidence φ (n,), to first order.

        A value anywhere in its cell has variance w²/12. For logits φ is a difference of two averages of them, so its
        variance is at most twice that. For probabilities dφ/dp = 1 / (p (1 - p)). A temperature T scales both.
        """
        width = self.cell * self.temperature
        if not width:
            return torch.zeros_like(phi)
        if self.kind == "logits":
            return torch.full_like(phi, width**2 / 6)
        p = phi.sigmoid().clamp(self.cell / 2, 1 - self.cell / 2)
        return (width / (p * (1 - p))).square() / 12


def treatment_of(kind: str, defenses: Sequence[Mapping[str, Any]], values: Tensor) -> Treatment:
    """Return the effects of a message's recorded defences on its answers.

    Args:
        kind: of the message.
        defenses: their descriptions, in the order in which they acted.
        values: (n, C) the answers, which give a grid's step if no description does.
    """
    noisy, cell, raised, temperature, variance, top = False, 0.0, False, 1.0, 0.0, 0
    for described in defenses:
        name = described.get("name")
        if name in _NOISE:
            noisy = True
            variance += temperature**2 * _variance(described)
        elif name == "temperature":
            temperature *= float(described.get("temperature", 1.0))
        elif name == "rounding":
            cell = 10.0 ** -int(described.get("decimals", 0))
            raised = False
        elif name == "uniform-quantization":
            steps = values.double().unique().diff()
            cell = float(steps.min()) if len(steps) and math.isfinite(float(steps.min())) else 0.0
            raised = True
        elif name == "top-answers":
            top = int(described["k"])
    return Treatment(
        kind=kind,
        noisy=noisy,
        cell=cell,
        raised=raised,
        temperature=temperature,
        variance=variance,
        top=top,
        rescaled=top > 0 and kind == "soft_labels" and _sums_to_one(values, top),
    )


def _variance(described: Mapping[str, Any]) -> float:
    """Return the variance of a noise: Gaussian of deviation σ, or Laplace of scale 1/γ."""
    if described.get("sigma") is not None:
        return float(described["sigma"]) ** 2
    return 2 / float(described["gamma"]) ** 2 if described.get("gamma") else 0.0


def _sums_to_one(values: Tensor, top: int) -> bool:
    """Return whether the largest values of every row (n, C) sum to 1."""
    if not len(values) or top >= values.shape[1]:
        return False
    return bool((values.topk(top, dim=1).values.sum(1) - 1).abs().max() < _ROUNDING)


def treatments(view: View, sender: str) -> Treatment:
    """Return the treatment of a party's last answers in view; an empty one if it sent none."""
    last = None
    for m in view.select(sender=sender):
        if m.kind in ("logits", "soft_labels") and m.payload:
            last = m
    if last is None or not view.defenses_of(last):
        return Treatment()
    values = view.tensors(last)["values"]
    return treatment_of(last.kind, view.defenses_of(last), values)

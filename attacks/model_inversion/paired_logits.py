"""Paired-logits inversion: where a client is certain and the others are not, its answer shows its own records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.registry import AttackCard
from fdaudit.transcript.samples import sample_index
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._uploads import with_payload
from .decoder import DecoderConfig, evidence, fit_decoder, sure_of
from .victims import as_probabilities, of_classes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

__all__ = ["PairedLogits", "PairedLogitsConfig"]

_KINDS = ("logits", "soft_labels")


class PairedLogitsConfig(DecoderConfig):
    """Settings of paired-logits inversion."""

    least_samples: int = Field(50, ge=2)
    """Victims with fewer public samples answered by both sides are skipped."""
    most_samples: int = Field(50_000, ge=2)
    """Largest number of public samples to learn from: those answered last."""


@dataclass(frozen=True, eq=False)
class _LogitPairs:
    """A client's answers (n, C), those of the other side, and the public samples' indices (n,)."""

    client: Tensor
    server: Tensor
    index: Tensor


@reads_forms
class PairedLogits:
    """Learns to map pairs of answers (a client's, the ensemble's) to public samples, and inverts a contrasting pair.

    Takahashi 2023 attacks FedMD. A server trains a network from (client's, server's) logits to public images. It then
    inverts the pair in which the client is certain of a class and the server is not, because only the client has learnt
    the class. Here the other side is the ensemble that the client received, or the mean of the other clients if no
    ensemble is in view. The ensemble includes the client's own share. The paper's server model, trained on labelled
    public data, has no counterpart: this attack reads no labels of them. Recorded answers are used, so no query is
    spent.
    """

    card = AttackCard(
        name="paired-logits",
        work={"once": 3000, "each": 2000, "grows": ("steps",)},
        goal="reconstruction",
        needs=("logits", "soft_labels", "ensemble_labels"),
        assumes=("public",),
        source="Takahashi, Liu & Liu 2023",
        tasks=("single-label",),
        profiles={
            "quick": {"steps": 300},
            "standard": {"steps": 3000, "width": 256},
            "full": {"steps": 10_000, "width": 512},
        },
        control={"on": "classes", "through": "messages"},
    )
    Config: ClassVar[type[PairedLogitsConfig]] = PairedLogitsConfig

    def __init__(self, config: PairedLogitsConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check that a victim's soft answers to public samples are in view, with others' answers to the same."""
        by_victim, reason = self._pairs(view, knowledge, task)
        return Applicability(True) if by_victim else Applicability(False, reason)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Reconstruction, ...]:
        """Return one image of every class for each victim with pairs; guesses of classes name no message."""
        by_victim, reason = self._pairs(view, knowledge, task)
        if not by_victim or knowledge.public is None:
            raise ValueError(f"paired-logits: run on a view to which it does not apply: {reason}.")
        device = knowledge.device
        guesses = []
        for target, pairs in by_victim.items():
            images = knowledge.public[pairs.index]
            config = self.config
            client, server = evidence(pairs.client, config.floor), evidence(pairs.server, config.floor)
            invert = fit_decoder(torch.cat([client, server], 1), images, config, generator, device)
            # The pair of a class: a client certain of it, and a server in doubt.
            doubt = server.mean(0).expand(server.shape[1], -1).clone()
            doubt.diagonal().copy_(server.median(0).values)
            class_images = invert(torch.cat([sure_of(client, config.quantile), doubt], 1))
            guesses += of_classes([target], class_images, torch.arange(len(class_images)))
        return tuple(guesses)

    def _pairs(
        self, view: View, knowledge: Knowledge, task: AttackTask
    ) -> tuple[dict[str, _LogitPairs], str]:
        """Return the pairs by victim, and a reason if there are none."""
        if knowledge.public is None:
            return {}, "the public samples are not known"
        if not task.targets:
            return {}, "no victim is named"
        if view.select(kind="generated_samples") or view.select(kind="generator_parameters"):
            return {}, "clients answer generated samples, not public ones"
        messages = [m for m in with_payload(view.messages) if m.kind in _KINDS]
        ensemble = with_payload(view.select(kind="ensemble_labels"))
        by_victim, reasons = {}, []
        for target in task.targets:
            own, others = [], []
            for m in messages:
                if m.sender == target:
                    own.append(m)
                else:
                    others.append(m)
            if ensemble:
                others = ensemble
            if not own:
                reasons.append(f"{target}: no soft answers of its own to public samples in view")
                continue
            if not others:
                reasons.append(f"{target}: no others' answers to public samples in view")
                continue
            n = len(knowledge.public)
            client, client_answered = _last(view, own, n, knowledge.classes)
            server, server_answered = _last(view, others, n, knowledge.classes)
            both = (client_answered & server_answered).nonzero().squeeze(1)[: self.config.most_samples]
            pairs = _LogitPairs(client[both], server[both], both)
            if len(pairs.index) < self.config.least_samples:
                reasons.append(
                    f"{target}: {len(pairs.index)} public samples answered by both sides, "
                    f"least_samples is {self.config.least_samples}"
                )
            else:
                by_victim[target] = pairs
        return by_victim, "; ".join(reasons)


def _last(view: View, messages: Iterable[Message], n: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return each public sample's last answer (n, C), averaged over its round's senders; and which have one (n,)."""
    answers = torch.zeros(n, classes)
    answered = torch.zeros(n, dtype=torch.bool)
    rounds: dict[int, list[Message]] = {}
    for message in messages:
        rounds.setdefault(message.round, []).append(message)
    for number in sorted(rounds):
        total, count = torch.zeros(n, classes), torch.zeros(n)
        for message in rounds[number]:
            tensors = view.tensors(message)
            index, values = sample_index(tensors), tensors["values"]
            if values.ndim != 2 or values.shape[1] != classes or len(index) != len(values):
                continue
            inside = (index >= 0) & (index < n)
            if _scores(message, values):
                values = values.float().nan_to_num(0.0).softmax(1)
            p = as_probabilities(values, classes)
            total.index_add_(0, index[inside], p[inside])
            count.index_add_(0, index[inside], torch.ones(int(inside.sum())))
        in_round = count > 0
        answers[in_round] = total[in_round] / count[in_round, None]
        answered |= in_round
    return answers, answered


def _scores(message: Message, values: Tensor) -> bool:
    """Return whether values are class scores. An ensemble has the form of the clients' answers, so its rows decide."""
    if message.kind == "logits":
        return True
    rows = values.float().sum(1)
    return bool((values < 0).any() or (rows - 1).abs().median() > 0.1)

"""Class shares from the samples that a client's selector declines: the selector reflects the client's records."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.registry import AttackCard
from fdaudit.transcript.samples import sample_index
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._uploads import with_payload
from ._guesses import can_rehearse, guesses, sent_by
from ._shadows import calibrated

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["LabelDeclined", "LabelDeclinedConfig", "accepted_samples", "public_classes", "read_declined"]

_KINDS = ("soft_labels", "hard_labels", "logits")


class LabelDeclinedConfig(Config):
    """Settings of the attack from declined samples."""

    shadows: int = Field(40, ge=1, le=100_000)
    """Smallest number of shadow clients for calibration; whole federations are rehearsed."""
    penalty: float = Field(0.001, gt=0)
    """Ridge penalty of the calibration, in nats for each squared weight."""


@reads_forms
class LabelDeclined:
    """Guesses class shares from the public samples that a client answers, without using the answers.

    A selector declines samples unlike the client's records, so the classes of accepted samples are the client's
    classes. A classifier trained on auxiliary records predicts the public samples' classes. For each class the attack
    reads the share of requested samples that were accepted, and the class's share of all accepted samples. It learns
    the relation to class shares from rehearsals with shadow clients. For a victim that was never asked it guesses equal
    shares.
    """

    card = AttackCard(
        name="label-declined",
        work={"once": 1400, "each": 600, "rehearsals": 1, "grows": ("shadows",)},
        goal="label-distribution",
        needs=("proxy_indices", "soft_labels", "hard_labels"),
        assumes=("auxiliary", "encode", "public", "rehearse"),
        oracle=None,
        source="Shao, Wu & Zhang 2023: what Selective-FD's client-side selectors show",
        control={"on": "labels"},
        profiles={
            "quick": {"shadows": 4},
            "standard": {"shadows": 40},
            "full": {"shadows": 200},
        },
    )
    Config: ClassVar[type[LabelDeclinedConfig]] = LabelDeclinedConfig

    def __init__(self, config: LabelDeclinedConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check that the samples that a victim was asked about are in view, and that it declined some."""
        verdict = sent_by(view, task.targets, _KINDS)
        if not verdict:
            return verdict
        if knowledge.public is None:
            return Applicability(False, "the public samples are not known")
        masks = [accepted_samples(view, t, len(knowledge.public)) for t in task.targets]
        counts = [(requested, accepted) for requested, accepted in masks if requested.any()]
        if not counts:
            return Applicability(False, "which samples the victims were asked about is not in view")
        if all(bool((accepted == requested).all()) for requested, accepted in counts):
            return Applicability(False, "no victim declined a sample that it was asked about")
        return can_rehearse(knowledge)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[LabelDistribution, ...]:
        """Return one guess a victim."""
        classes_of = public_classes(knowledge)

        def read(seen: View, client: str) -> Tensor | None:
            return read_declined(seen, client, classes_of)

        model = calibrated(read, view, knowledge, self.config.shadows, self.config.penalty)

        def shares(target: str) -> Tensor | None:
            features = read(view, target)
            return None if features is None else model(features)

        return guesses(task.targets, shares, knowledge.classes)


def public_classes(knowledge: Knowledge) -> Tensor:
    """Return class probabilities (n, C) of the public samples, by logistic regression on auxiliary records' features.

    Raises:
        ValueError: the auxiliary records or the public samples are not known.
    """
    if knowledge.auxiliary is None or knowledge.public is None:
        raise ValueError("public_classes: needs auxiliary records and public samples.")
    from sklearn.linear_model import LogisticRegression  # loads in seconds

    x, y = knowledge.auxiliary
    encode = knowledge.encode or (lambda images: images.flatten(1))
    model = LogisticRegression(max_iter=1000).fit(encode(x).cpu().double().numpy(), y.cpu().numpy())
    probabilities = torch.zeros(len(knowledge.public), knowledge.classes, dtype=torch.float64)
    p = model.predict_proba(encode(knowledge.public).cpu().double().numpy())
    probabilities[:, torch.from_numpy(model.classes_).long()] = torch.from_numpy(p).double()
    return probabilities


def accepted_samples(view: View, client: str, samples: int) -> tuple[Tensor, Tensor]:
    """Count how often a client was asked about each public sample, and how often it answered: two counts (samples,).

    An abstention counts as declined. Requests of a round that the client did not answer are not counted.
    """
    requested = torch.zeros(samples)
    accepted = torch.zeros(samples)
    for answer in view.messages:
        if answer.sender != client or answer.kind not in _KINDS or answer.payload is None:
            continue
        questions = with_payload(view.select(kind="proxy_indices", round=answer.round))
        questions = [m for m in questions if client in m.receivers and m.seq < answer.seq]
        tensors = view.tensors(answer)
        if not questions:
            continue
        index = sample_index(tensors)
        values = tensors["values"]
        index = index[values.long() >= 0] if values.ndim == 1 else index
        question = sample_index(view.tensors(questions[-1]))
        requested += torch.bincount(_within(question, samples), minlength=samples)
        accepted += torch.bincount(_within(index, samples), minlength=samples)
    return requested, torch.minimum(accepted, requested)


def read_declined(view: View, client: str, classes_of: Tensor) -> Tensor | None:
    """Return features (C, 2): logarithms of each class's acceptance rate, and of its share of accepted samples."""
    requested, accepted = accepted_samples(view, client, len(classes_of))
    if not requested.any():
        return None
    of, answered = (mask.double() @ classes_of for mask in (requested, accepted))
    rate = (answered + 0.5) / (of + 1.0)
    share = (answered + 0.5) / (answered.sum() + 0.5 * len(answered))
    return torch.stack([rate.log(), share.log()], 1)


def _within(index: Tensor, samples: int) -> Tensor:
    """Return the indices of existing samples; a defence may have invented others."""
    return index[(index >= 0) & (index < samples)]

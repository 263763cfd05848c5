"""Class shares from the samples that a client's selector declines: the selector reflects the client's records."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.registry import AttackCard
from fdaudit.transcript.samples import sample_index
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._uploads import with_payload
from ._guesses import can_rehearse, sent_by
from ._shadows import CalibrationConfig, calibrated_guesses

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["LabelDeclined", "LabelDeclinedConfig", "accepted_samples", "public_classes", "read_declined"]

_KINDS = ("soft_labels", "hard_labels", "logits")


class LabelDeclinedConfig(CalibrationConfig):
    """Settings of the attack from declined samples."""


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
        reason = "which samples the victims were asked about is not in view"
        for target in task.targets:
            requested, accepted = accepted_samples(view, target, len(knowledge.public))
            if not torch.equal(accepted, requested):
                return can_rehearse(knowledge)
            if requested.any():
                reason = "no victim declined a sample that it was asked about"
        return Applicability(False, reason)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[LabelDistribution, ...]:
        """Return one guess a victim."""
        classes_of = public_classes(knowledge)

        def read(any_view: View, client: str) -> Tensor | None:
            return read_declined(any_view, client, classes_of)

        return calibrated_guesses(read, view, knowledge, task.targets, self.config)


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
        request = None
        for m in with_payload(view.select(kind="proxy_indices", round=answer.round)):
            if client in m.receivers and m.seq < answer.seq:
                request = m
        if request is None:
            continue
        tensors = view.tensors(answer)
        index, values = sample_index(tensors), tensors["values"]
        if values.ndim == 1:
            index = index[values.long() >= 0]
        question = sample_index(view.tensors(request))
        requested += torch.bincount(_within(question, samples), minlength=samples)
        accepted += torch.bincount(_within(index, samples), minlength=samples)
    return requested, torch.minimum(accepted, requested)


def read_declined(view: View, client: str, classes_of: Tensor) -> Tensor | None:
    """Return features (C, 2): logarithms of each class's acceptance rate, and of its share of accepted samples."""
    requested, accepted = accepted_samples(view, client, len(classes_of))
    if not requested.any():
        return None
    asked = requested.double() @ classes_of
    answered = accepted.double() @ classes_of
    rate = (answered + 0.5) / (asked + 1.0)
    share = (answered + 0.5) / (answered.sum() + 0.5 * len(answered))
    return torch.stack([rate.log(), share.log()], 1)


def _within(index: Tensor, samples: int) -> Tensor:
    """Return the indices of existing samples; a defence may have invented others."""
    return index[(index >= 0) & (index < samples)]

"""Class shares from a client's answers on public samples: it favours the classes it has trained on most."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fdaudit.adversary.top_answers import only_top
from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.kinds import ANSWERS
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._uploads import with_payload
from ._guesses import can_rehearse, sent_by
from ._shadows import CalibrationConfig, calibrated_guesses

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

__all__ = ["LabelAnswers", "LabelAnswersConfig", "answer_features", "read_answers", "top_sent"]

_GENERATED = ("generated_samples", "generator_parameters")
"""Kinds of a protocol whose clients answer on generated samples: a rehearsal costs as much as the attacked run."""


class LabelAnswersConfig(CalibrationConfig):
    """Settings of the attack from answers."""


@reads_forms
class LabelAnswers:
    """Guesses class shares from the mean of a client's answers on public samples, calibrated on shadow clients.

    A model trained on few records of a class rarely predicts it. The attack reads a client's first and last answers.
    For each class it computes the mean log-probability, the log of the mean probability, and the share of samples where
    the class is ranked first (for hard labels only the last). It learns the relation to class shares from rehearsals
    with auxiliary records spread unevenly over shadow clients. For a victim that never answered it guesses equal
    shares.
    """

    card = AttackCard(
        name="label-answers",
        work={"once": 1400, "each": 200, "rehearsals": 1, "grows": ("shadows",)},
        goal="label-distribution",
        needs=("logits", "soft_labels", "hard_labels"),
        assumes=("architecture", "auxiliary", "rehearse", "public"),
        oracle=None,
        source="shadow training as in Shokri et al. 2017; class shares as a property (Ganju et al. 2018)",
        control={"on": "labels"},
        tasks=("single-label", "text", "table"),
        profiles={
            "quick": {"shadows": 4},
            "standard": {"shadows": 40},
            "full": {"shadows": 200},
        },
    )
    Config: ClassVar[type[LabelAnswersConfig]] = LabelAnswersConfig

    def __init__(self, config: LabelAnswersConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a victim's answers on public samples in view, and a protocol that can be rehearsed."""
        verdict = sent_by(view, task.targets, ANSWERS)
        if not verdict:
            return verdict
        if not any(read_answers(view, t, knowledge.classes) is not None for t in task.targets):
            return Applicability(False, "no victim answered on public samples")
        return can_rehearse(knowledge)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[LabelDistribution, ...]:
        """Return one guess a victim."""

        top = max((top_sent(view, target) for target in task.targets), default=0)

        def read(any_view: View, client: str) -> Tensor | None:
            return read_answers(any_view, client, knowledge.classes, top)

        return calibrated_guesses(read, view, knowledge, task.targets, self.config)


def top_sent(view: View, client: str) -> int:
    """Return the largest number k of classes that a client answered for, or 0 if it answered for all."""
    top = 0
    for message in with_payload(view.select(sender=client)):
        if message.kind in ANSWERS:
            for defense in view.defenses_of(message):
                if defense.get("name") == "top-answers":
                    top = max(top, int(defense["k"]))
    return top


def read_answers(view: View, client: str, classes: int, top: int = 0) -> Tensor | None:
    """Return features (C, F) of a client's first and last answers on public samples, or None if there are none.

    Args:
        view: a view.
        client: the client.
        classes: number of classes C.
        top: the number of classes of each answer that count, where the victims sent no others; 0: all.
    """
    if any(m.kind in _GENERATED for m in view.messages):
        return None
    kind = None  # that of the first answers
    messages: list[Message] = []
    for m in with_payload(view.select(sender=client)):
        if m.kind not in ANSWERS:
            continue
        if kind is None:
            kind = m.kind
        without_rows = any(info.shape and not info.shape[0] for info in m.tensors.values())
        if m.kind == kind and not without_rows:
            messages.append(m)
    if not messages:
        return None
    features = []
    for message in (messages[0], messages[-1]):
        values = view.tensors(message)["values"]
        if top and values.ndim == 2:
            values = only_top(values, top, message.kind)
        features.append(answer_features(message.kind, values, classes))
    return torch.cat(features, 1)


def answer_features(kind: str, values: Tensor, classes: int) -> Tensor:
    """Return features (C, F) of answers on n samples: logits or probabilities (n, C), F = 3, or classes (n,), F = 1."""
    if kind == "hard_labels":
        values = values.long()
        valid = values[(values >= 0) & (values < classes)]
        return _share(torch.bincount(valid, minlength=classes).double())[:, None]
    z = values.double()
    if kind != "logits":
        z = z.clamp_min(1e-12).log()  # noise may have made probabilities negative
    log_p = z.log_softmax(1)
    log_mean = (log_p.exp().mean(0) + 1e-6).log()
    votes = F.one_hot(log_p.argmax(1), classes).double().sum(0)
    return torch.stack([log_p.mean(0), log_mean, _share(votes)], 1)


def _share(counts: Tensor) -> Tensor:
    """Return logarithms of shares (C,) from counts, with half a count added to each."""
    return ((counts + 0.5) / (counts.sum() + 0.5 * len(counts))).log()

"""Class shares from a client's answers on public samples: it favours the classes it has trained on most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fdaudit.config import Config
from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.kinds import ANSWERS
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from ._guesses import can_rehearse, guesses, sent_by
from ._shadows import calibrated

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["LabelAnswers", "LabelAnswersConfig", "answer_features", "read_answers"]

_GENERATED = ("generated_samples", "generator_parameters")
"""Kinds of a protocol whose clients answer on generated samples: a rehearsal costs as much as the attacked run."""


class LabelAnswersConfig(Config):
    """Settings of the attack from answers."""

    shadows: int = Field(40, ge=1, le=100_000)
    """Smallest number of shadow clients for calibration; whole federations are rehearsed."""
    penalty: float = Field(0.001, gt=0)
    """Ridge penalty of the calibration, in nats for each squared weight."""


@reads_forms
class LabelAnswers:
    """Guesses class shares from the mean of a client's answers on public samples, calibrated on shadow clients.

    A model trained on few records of a class rarely predicts it. The attack reads a client's first and last answers.
    For each class it computes the mean log-probability, the log of the mean probability, and the share of samples where
    the class is ranked first (for hard labels only the last). It learns the relation to class shares from rehearsals
    with auxiliary records spread unevenly over shadow clients. For a victim that never answered it guesses equal
    shares.
    """

    name: ClassVar[str] = "label-answers"
    work: ClassVar[dict[str, Any]] = {"once": 1400, "each": 200, "rehearsals": 1, "grows": ("shadows",)}
    goal: ClassVar[str] = "label-distribution"
    needs: ClassVar[tuple[str, ...]] = ("logits", "soft_labels", "hard_labels")
    assumes: ClassVar[tuple[str, ...]] = ("architecture", "auxiliary", "rehearse", "public")
    oracle: ClassVar[str | None] = None
    source: ClassVar[str] = (
        "shadow training as in Shokri et al. 2017; class shares as a property (Ganju et al. 2018)"
    )
    control: ClassVar[dict[str, Any]] = {"on": "labels"}
    tasks: ClassVar[tuple[str, ...]] = ("single-label", "text")
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"shadows": 4},
        "standard": {"shadows": 40},
        "full": {"shadows": 200},
    }
    Config: ClassVar[type[LabelAnswersConfig]] = LabelAnswersConfig

    def __init__(self, config: LabelAnswersConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a victim's answers on public samples in view, and a protocol that can be rehearsed."""
        seen = sent_by(view, task.targets, ANSWERS)
        if not seen:
            return seen
        if not any(read_answers(view, t, knowledge.classes) is not None for t in task.targets):
            return Applicability(False, "no victim answered on public samples")
        return can_rehearse(knowledge)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[LabelDistribution, ...]:
        """Return one guess a victim."""

        def read(seen: View, client: str) -> Tensor | None:
            return read_answers(seen, client, knowledge.classes)

        model = calibrated(read, view, knowledge, self.config.shadows, self.config.penalty)

        def shares(target: str) -> Tensor | None:
            found = read(view, target)
            return None if found is None else model(found)

        return guesses(task.targets, shares, knowledge.classes)


def read_answers(view: View, client: str, classes: int) -> Tensor | None:
    """Return features (C, F) of a client's first and last answers on public samples, or None if there are none."""
    if any(m.kind in _GENERATED for m in view.messages):
        return None
    sent = [m for m in view.messages if m.sender == client and m.kind in ANSWERS and m.payload is not None]
    sent = [
        m for m in sent if m.kind == sent[0].kind and all(t.shape[0] for t in m.tensors.values() if t.shape)
    ]
    if not sent:
        return None
    ends = (sent[0], sent[-1])
    return torch.cat([answer_features(m.kind, view.tensors(m)["values"], classes) for m in ends], 1)


def answer_features(kind: str, values: Tensor, classes: int) -> Tensor:
    """Return features (C, F) of answers on n samples: logits or probabilities (n, C), F = 3, or classes (n,), F = 1."""
    if kind == "hard_labels":
        values = values.long()
        known = values[(values >= 0) & (values < classes)]
        return _share(torch.bincount(known, minlength=classes).double())[:, None]
    # Noise may have made probabilities negative.
    log_p = (values.double() if kind == "logits" else values.double().clamp_min(1e-12).log()).log_softmax(1)
    votes = F.one_hot(log_p.argmax(1), classes).double().sum(0)
    return torch.stack([log_p.mean(0), (log_p.exp().mean(0) + 1e-6).log(), _share(votes)], 1)


def _share(counts: Tensor) -> Tensor:
    """Return logarithms of shares (C,) from counts, with half a count added to each."""
    return ((counts + 0.5) / (counts.sum() + 0.5 * len(counts))).log()

"""Effects of defences on an answer, from their recorded descriptions, and how to undo them.

A message records its defences, so an adversary knows them. A softened answer is sharpened again. A value rounded up to
a grid is moved back to the middle of its cell, and the cell's width counts as variance. Answers with independent noise
are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fdaudit.adversary.top_answers import only_top

if TYPE_CHECKING:
    from fdaudit.adversary.view import View

__all__ = ["Treatment", "treatment_of", "treatments"]

_ROUNDING = 1e-3
"""Largest distance of a sum of half-precision probabilities from 1."""
_NOISE = ("discrete-gaussian", "discrete-laplace", "gaussian-noise", "laplace-noise")


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
            cell = _step(values)
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
    messages = [m for m in view.select(sender=sender) if m.kind in ("logits", "soft_labels") and m.payload]
    if not messages or not view.defenses_of(messages[-1]):
        return Treatment()
    values = view.tensors(messages[-1])["values"]
    return treatment_of(messages[-1].kind, view.defenses_of(messages[-1]), values)


def _step(values: Tensor) -> float:
    """Return the smallest distance of two different values: the step of their grid."""
    steps = values.double().unique().diff()
    return float(steps.min()) if len(steps) and math.isfinite(float(steps.min())) else 0.0

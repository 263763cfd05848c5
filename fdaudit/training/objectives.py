"""Losses of local training and distillation: batch means over logits (n, C) and targets, in nats.

For segmentation logits are (n, C, h, w). Every loss is a mean over the records of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fdaudit.types import Task

__all__ = ["Objective", "loss_function", "objective_of"]

Objective = Literal[
    "cross-entropy", "binary-cross-entropy", "cross-entropy-dice", "kl", "binary-kl", "l1", "l2", "dice"
]
Supervised = Literal["cross-entropy", "binary-cross-entropy", "cross-entropy-dice"]

_EPSILON = 1e-6
"""ε of the soft Dice coefficient."""
_OBJECTIVES: Mapping[Task, Supervised] = {
    "single-label": "cross-entropy",
    "multi-label": "binary-cross-entropy",
    "segmentation": "cross-entropy-dice",
    "text": "cross-entropy",
}


def objective_of(task: Task) -> Supervised:
    """Return the objective that fits models to labels of a task."""
    return _OBJECTIVES[task]


def loss_function(objective: Objective, temperature: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the batch mean of (binary) cross-entropy, (binary) KL at τ (scaled by τ²), or a distance of logits.

    The distances are the squared ℓ2 norm and the mean absolute error. For segmentation these losses are means over
    pixels. There, `cross-entropy-dice` adds 1 minus the soft Dice coefficient to the cross-entropy, and `dice` is minus
    the soft Dice coefficient of given probabilities and the logits' softmax (Gong 2022, Eq. 10).
    """
    tau = temperature
    if objective == "cross-entropy":
        return F.cross_entropy
    if objective == "binary-cross-entropy":
        return _binary_cross_entropy
    if objective == "cross-entropy-dice":
        return lambda z, y: F.cross_entropy(z, y) + 1 - _soft_dice(z.softmax(1), _one_hot(y, z)).mean()
    if objective == "dice":
        return lambda z, p: -_soft_dice(z.softmax(1), p).mean()
    if objective == "kl":
        return lambda z, p: _kl(z / tau, p) * tau**2
    if objective == "binary-kl":
        return lambda z, p: _binary_kl(z / tau, p) * tau**2
    if objective == "l1":
        return F.l1_loss
    return lambda z, t: (z - t).square().sum(1).mean()


def _kl(z: Tensor, p: Tensor) -> Tensor:
    """Return the mean KL(p || softmax(z)) over the batch, or over all of its pixels."""
    if z.dim() == 2:
        return F.kl_div(F.log_softmax(z, 1), p, reduction="batchmean")
    return F.kl_div(F.log_softmax(z, 1), p, reduction="none").sum(1).mean()


def _soft_dice(q: Tensor, p: Tensor) -> Tensor:
    """Return the soft Dice coefficient (n,) of two answers (n, C, h, w): a mean over all classes but background, 0.

    Sums go over the pixels of one record, so that the gradient of a batch is the mean of its records' gradients.
    """
    pixels = (-2, -1)
    total = p.square().sum(pixels) + q.square().sum(pixels) + _EPSILON
    return (2 * (p * q).sum(pixels) / total)[:, 1:].mean(1)


def _one_hot(y: Tensor, z: Tensor) -> Tensor:
    """Return masks (n, h, w) as 0 and 1 of each class, shaped like logits z (n, C, h, w)."""
    return (y.unsqueeze(1) == torch.arange(z.shape[1], device=z.device).view(-1, 1, 1)).to(z.dtype)


def _binary_cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    """Return the mean over all entries (n, C) of the batch. An unknown label, -1, adds nothing.

    Every record has the same weight, however many of its labels are known. The gradient of a batch is therefore the
    mean of its records' gradients.
    """
    known = (y >= 0).to(z.dtype)
    return F.binary_cross_entropy_with_logits(z, y.clamp_min(0).to(z.dtype), weight=known)


def _binary_kl(z: Tensor, p: Tensor) -> Tensor:
    """Return the mean over the batch of Σ_c KL(Bernoulli(p_c) || Bernoulli(σ(z_c)))."""
    entropy = -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p))
    return (F.binary_cross_entropy_with_logits(z, p, reduction="none") - entropy).sum(1).mean()

"""Losses of local training and distillation: batch means over logits (n, C) and targets, in nats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fdaudit.types import Task

__all__ = ["Objective", "loss_function", "objective_of"]

Objective = Literal["cross-entropy", "binary-cross-entropy", "kl", "binary-kl", "l1", "l2"]


def objective_of(task: Task) -> Literal["cross-entropy", "binary-cross-entropy"]:
    """Return the objective that fits models to labels of a task."""
    return "binary-cross-entropy" if task == "multi-label" else "cross-entropy"


def loss_function(objective: Objective, temperature: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the batch mean of (binary) cross-entropy, (binary) KL at τ (scaled by τ²), or a distance of logits.

    The distances are the squared ℓ2 norm and the mean absolute error.
    """
    tau = temperature
    if objective == "cross-entropy":
        return F.cross_entropy
    if objective == "binary-cross-entropy":
        return _binary_cross_entropy
    if objective == "kl":
        return lambda z, p: F.kl_div(F.log_softmax(z / tau, 1), p, reduction="batchmean") * tau**2
    if objective == "binary-kl":
        return lambda z, p: _binary_kl(z / tau, p) * tau**2
    if objective == "l1":
        return F.l1_loss
    return lambda z, t: (z - t).square().sum(1).mean()


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

"""FedFTG's losses and weights, after the authors' code (Zhang et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["class_shares", "disagreement", "likeness", "soft_cross_entropy", "weighted_cross_entropy"]


def class_shares(counts: Tensor) -> Tensor:
    """Return α (K, C) from the clients' class counts (K, C): each client's share of a class.

    A class of which nobody has a record is shared equally.

    Guarantees:
      * non-negative, and sums to one over the clients for each class.
    """
    known = counts.double().clamp_min(0)
    total = known.sum(0)
    return torch.where(total > 0, known / total.clamp_min(1), torch.full_like(known, 1 / len(counts))).float()


def disagreement(model: Tensor, teacher: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean of the absolute differences of two models' logits (n, C), with weights (n,)."""
    return ((model - teacher).abs().mean(1) * weight).mean()


def weighted_cross_entropy(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return the mean of the samples' cross-entropies, each times its weight, of logits (n, C) and classes (n,)."""
    return (F.cross_entropy(logits, y, reduction="none") * weight).mean()


def likeness(z: Tensor, x: Tensor) -> Tensor:
    """Return the exponential of minus the mean product of the distances of noise (n, d) and samples (n, c, h, w).

    Between 0 and 1: 1 if all samples are the same. Distances of noise are mean squared differences, distances of
    samples are mean absolute ones, over all pairs.
    """
    flat, d = x.flatten(1), z.shape[1]
    apart = torch.cdist(flat, flat, p=1) / flat.shape[1]
    noise = (z[:, None] - z[None]).square().sum(2) / d
    return (-(noise * apart).mean()).exp()


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (n, C) with targets (n, C)."""
    return -(target * logits.log_softmax(1)).sum(1).mean()

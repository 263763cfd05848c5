"""FedFTG's losses, after the authors' code (Zhang et al. 2022)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

__all__ = ["disagreement", "soft_cross_entropy", "weighted_cross_entropy"]


def disagreement(model: Tensor, teacher: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean of the absolute differences of two models' logits (n, C), with weights (n,)."""
    return ((model - teacher).abs().mean(1) * weight).mean()


def weighted_cross_entropy(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return the mean of the samples' cross-entropies, each times its weight, of logits (n, C) and classes (n,)."""
    return (F.cross_entropy(logits, y, reduction="none") * weight).mean()


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (n, C) with targets (n, C)."""
    return -(target * logits.log_softmax(1)).sum(1).mean()

"""FedIOD's losses as pure functions of what the server was sent (Gong 2023, Eq. 1-10).

K clients, n generated samples, C classes; z (K, n, C) the clients' logits, π (K,) their shares of all records.
Entropies and divergences are in nats. Nothing here draws at random or holds anything.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = [
    "aggregate",
    "confidence_loss",
    "divergence",
    "entropy",
    "importance",
    "label_loss",
    "mimic_loss",
    "unique_loss",
]


def entropy(log_q: Tensor) -> Tensor:
    """Shannon entropy H(q) (...,) of distributions given by their logarithms (..., C)."""
    return -(log_q.exp() * log_q).sum(-1)


def confidence_loss(z: Tensor, shares: Tensor, temperature: float = 1.0) -> Tensor:
    """L_conf (): how undecided the clients are about a sample, each by its share (Eq. 3)."""
    return (shares @ entropy(F.log_softmax(z / temperature, -1))).mean()


def divergence(z: Tensor, shares: Tensor, temperature: float = 1.0) -> Tensor:
    """Jensen-Shannon divergence (n,) of the clients' predictions: H(Σ π_k q_k) - Σ π_k H(q_k) (Eq. 4)."""
    log_q = F.log_softmax(z / temperature, -1)
    mixed = torch.logsumexp(log_q + shares.log()[:, None, None], 0)
    return entropy(mixed) - shares @ entropy(log_q)


def unique_loss(z: Tensor, shares: Tensor, temperature: float = 1.0) -> Tensor:
    """L_unique (): small where the clients contradict each other (Eq. 5)."""
    return -divergence(z, shares, temperature).mean()


def importance(counts: Tensor, ratios: Tensor) -> Tensor:
    """Weight π_k^c(x) of each client for each sample and class (Eq. 8), summing to one over the clients.

    A class that nobody trained on, like a sample that no discriminator finds anything real in, tells the clients
    apart no longer: they weigh the same there.

    Args:
        counts: (K, C) records of each class that a client trained on; ones where they are not known.
        ratios: (K, n) D_k(x) over the mean of D_k on real records; ones where they are not known.

    Returns:
        (K, n, C) weights.
    """
    raw = counts[:, None, :] * ratios[:, :, None]
    total = raw.sum(0)
    return torch.where(total > 0, raw / total.where(total > 0, 1), 1 / len(counts))


def aggregate(z: Tensor, weights: Tensor) -> Tensor:
    """A(z_1, …, z_K, x) (n, C): the clients' logits by `weights` (K, n, C) (Eq. 9)."""
    return (weights * z).sum(0)


def mimic_loss(student: Tensor, target: Tensor, temperature: float | None = None) -> Tensor:
    """L_mimic (): how far the student's logits (n, C) are from the aggregated ones (n, C).

    Args:
        student: ẑ = S(x).
        target: A(z_1, …, z_K, x).
        temperature: None is τ → ∞, squared ℓ2 distance of the logits (Eq. 10); a finite τ is τ² KL (Eq. 6).
    """
    if temperature is None:
        return (student - target).square().sum(1).mean()
    log_p, log_q = (F.log_softmax(v / temperature, 1) for v in (target, student))
    return temperature**2 * F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)


def label_loss(student: Tensor, target: Tensor) -> Tensor:
    """L_mimic () where labels stand in for logits: cross-entropy of the student's logits (n, C) with shares (n, C)."""
    return -(target * F.log_softmax(student, 1)).sum(1).mean()

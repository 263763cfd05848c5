"""FedIOD's losses as pure functions of the messages to the server (Gong 2023, Eq. 1-10).

K clients, n generated samples, C classes; z (K, n, C) the clients' logits, π (K,) their shares of all records. In
segmentation each pixel counts as a sample: `by_pixel`.
Entropies and divergences are in nats. The functions draw no randomness and keep no state.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = [
    "aggregate",
    "balance_loss",
    "by_pixel",
    "confidence_loss",
    "divergence",
    "entropy",
    "importance",
    "label_loss",
    "mimic_loss",
    "unique_loss",
]


def by_pixel(values: Tensor, classes_at: int) -> Tensor:
    """Return maps (..., n, C, h, w) as (..., n*h*w, C): each pixel counts as a sample. Answers for samples stay.

    Args:
        values: answers for samples (..., n, C), or for their pixels (..., n, C, h, w).
        classes_at: the place of C.
    """
    maps = values.dim() > classes_at + 1
    return values.movedim(classes_at, -1).flatten(classes_at - 1, -2) if maps else values


def entropy(log_q: Tensor) -> Tensor:
    """Return the Shannon entropy H(q) (...,) of distributions given by their logarithms (..., C)."""
    return -(log_q.exp() * log_q).sum(-1)


def confidence_loss(z: Tensor, shares: Tensor, temperature: float = 1.0) -> Tensor:
    """Return L_conf (): the clients' uncertainty about a sample, weighted by their shares (Eq. 3)."""
    return (shares @ entropy(F.log_softmax(z / temperature, -1))).mean()


def divergence(z: Tensor, shares: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the Jensen-Shannon divergence (n,) of the clients' predictions: H(Σ π_k q_k) - Σ π_k H(q_k) (Eq. 4)."""
    log_q = F.log_softmax(z / temperature, -1)
    mixed = torch.logsumexp(log_q + shares.log()[:, None, None], 0)
    return entropy(mixed) - shares @ entropy(log_q)


def unique_loss(z: Tensor, shares: Tensor, temperature: float = 1.0) -> Tensor:
    """Return L_unique (): small where the clients contradict each other (Eq. 5)."""
    return -divergence(z, shares, temperature).mean()


def balance_loss(z: Tensor, shares: Tensor) -> Tensor:
    """Return minus the entropy, in bits, of the clients' mean predictions (), weighted by their shares."""
    mean = z.softmax(-1).mean(1)
    bits: Tensor = torch.special.xlogy(mean, mean).sum(-1) / math.log(2)
    weighted: Tensor = shares @ bits
    return weighted


def importance(counts: Tensor, ratios: Tensor) -> Tensor:
    """Return the weight π_k^c(x) of each client for each sample and class (Eq. 8), summing to one over the clients.

    Clients weigh the same for a class that no client trained on, and for a sample that every discriminator scores zero.

    Args:
        counts: (K, C) records of each class that a client trained on; ones if unknown.
        ratios: (K, n) D_k(x) over the mean of D_k on real records; ones if unknown.

    Returns:
        (K, n, C) weights.
    """
    raw = counts[:, None, :] * ratios[:, :, None]
    total = raw.sum(0)
    return torch.where(total > 0, raw / total.where(total > 0, 1), 1 / len(counts))


def aggregate(z: Tensor, weights: Tensor) -> Tensor:
    """Return A(z_1, …, z_K, x): the clients' logits (K, n, C, ...) weighted by `weights` (K, n, C) (Eq. 9)."""
    return (weights[(...,) + (None,) * (z.dim() - 3)] * z).sum(0)


def mimic_loss(student: Tensor, target: Tensor, temperature: float | None = None) -> Tensor:
    """Return L_mimic (): the distance of the student's logits (n, C) from the aggregated ones (n, C).

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
    """Return L_mimic () for labels in place of logits: cross-entropy of the student's logits (n, C), shares (n, C)."""
    return -(target * F.log_softmax(student, 1)).sum(1).mean()

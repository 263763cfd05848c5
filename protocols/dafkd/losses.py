"""DaFKD's losses and weights as pure functions; symbols and equations are Wang et al. 2023's.

K clients, n samples, C classes; discriminators give logits, f = σ(logit) is the probability of being real; nats.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .._uploads import shares_of_clients

__all__ = [
    "adversarial_loss",
    "ensemble",
    "generator_loss",
    "gradient_penalty",
    "importance",
    "joint_loss",
    "sameness",
]


def adversarial_loss(on_real: Tensor, on_pseudo: Tensor) -> Tensor:
    """Return L_adv of a domain discriminator, Eq. 2, with the minus sign that the printed equation lacks.

    Args:
        on_real: its logits on private records (n,), labelled positive.
        on_pseudo: its logits on pseudo-samples (m,), labelled negative.
    """
    return (F.softplus(-on_real).sum() + F.softplus(on_pseudo).sum()) / (len(on_real) + len(on_pseudo))


def joint_loss(logits: Tensor, y: Tensor, on_real: Tensor, on_pseudo: Tensor, weight: float = 1.0) -> Tensor:
    """Return L_J = weight · L_adv + L, Eq. 9, of a classifier and a discriminator that share their extractor.

    Args:
        logits: the classifier's logits on private records (n, C).
        y: their classes (n,).
        on_real: the discriminator's logits on the same records (n,).
        on_pseudo: the discriminator's logits on pseudo-samples (m,).
        weight: of L_adv; 1 in the paper.
    """
    return F.cross_entropy(logits, y) + weight * adversarial_loss(on_real, on_pseudo)


def gradient_penalty(
    judge: Callable[[Tensor], Tensor], real: Tensor, pseudo: Tensor, share: Tensor
) -> Tensor:
    """Return the mean of (‖∇_x f(x)‖ - 1)² at points between records and pseudo-samples (Gulrajani et al. 2017, Eq. 3).

    Args:
        judge: the discriminator's probabilities f (n,) of samples (n, c, h, w).
        real: records (n, c, h, w).
        pseudo: as many pseudo-samples.
        share: (n,) where between the two, 1 at the record.
    """
    share = share[:, None, None, None]
    between = (share * real + (1 - share) * pseudo).requires_grad_()
    (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
    penalty: Tensor = (slope.flatten(1).norm(dim=1) - 1).square().mean()
    return penalty


def generator_loss(on_pseudo: Tensor) -> Tensor:
    """Return the generator's loss, -log f. It has the same minimum as Eq. 3's log(1 - f) and does not saturate."""
    return F.softplus(-on_pseudo).mean()


def sameness(one: Tensor, other: Tensor) -> Tensor:
    """Return -log of the mean absolute difference of two sets of images (n, c, h, w), at most -log of 0.001.

    A generator that minimises this uses its noise (mode seeking: Mao et al. 2019). The logarithm makes the slope
    steepest when all images are the same.
    """
    return -((one - other).abs().mean() + 1e-3).log()


def importance(scores: Tensor) -> Tensor:
    """Return α̂ (K, n) of Eq. 7 from scores f (K, n): each client's share; equal shares if all scores are zero."""
    return shares_of_clients(scores)


def ensemble(weights: Tensor, predictions: Tensor) -> Tensor:
    """Return Σ_k α̂_k,i s(w_k; x_i) (n, C), the target of Eq. 8, of weights (K, n) and soft predictions (K, n, C)."""
    return torch.einsum("kn,knc->nc", weights, predictions)

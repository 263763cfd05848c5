"""Inversion of a model by gradients: find the image that the model assigns to a class, near the expected image."""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fdaudit.config import Config
from fdaudit.training.optimizers import adam

from .priors import total_variation

__all__ = ["InversionConfig", "invert_classes"]


class InversionConfig(Config):
    """Settings of the inversion of a model by gradients."""

    restarts: int = Field(4, ge=1)
    """Random starts for each class; all advance together, the best objective is kept."""
    iterations: int = Field(200, ge=1)
    """Steps of Adam on the pixels."""
    lr: float = Field(0.05, gt=0)
    """Size of a step, in units of pixel intensity; falls to zero over the steps."""
    tv: float = Field(0.1, ge=0)
    """Weight of total variation (mean squared difference of neighbouring pixels)."""
    l2: float = Field(16.0, ge=0)
    """Weight of the mean squared distance from the image expected of the class."""
    smoothing: float = Field(0.3, ge=0)
    """Standard deviation of Gaussian noise over which the model's loss is averaged."""
    copies: int = Field(4, ge=1)
    """Noisy copies of an image in each step."""


def invert_classes(
    model: Callable[[Tensor], Tensor],
    centre: Tensor,
    classes: Tensor,
    config: InversionConfig,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Minimise E[CE(model(x + σ e), c)] + tv TV(x) + l2 mean (x - centre_c)² over x in [0, 1] for each class c.

    A classifier's gradients averaged over noise show its classes (Smilkov 2017); without noise they show adversarial
    patterns. With the quadratic prior the result is the most probable image under a Gaussian around `centre`
    (Fredrikson 2015 and Zhang 2023 use black images there).

    Args:
        model: images (n, c, h, w) to logits (n, C), differentiable.
        centre: (k, c, h, w) images expected of each class.
        classes: (k,) these classes.
        config: settings.
        generator: draws starts and noise.

    Returns:
        One image a class (k, c, h, w) in [0, 1], and its objective (k,).
    """
    R, K, C = config.restarts, config.copies, len(centre)
    labels = classes.to(centre.device).repeat_interleave(R)
    expected = centre.repeat_interleave(R, 0)
    start = 0.1 * torch.randn(expected.shape, generator=generator)
    x = (expected + start.to(expected)).clamp(0, 1).requires_grad_()
    optimizer = adam([x], config.lr)
    repeated = labels.repeat_interleave(K)

    def objective() -> Tensor:
        e = torch.randn(len(x) * K, *x.shape[1:], generator=generator).to(x)
        answers = model(x.repeat_interleave(K, 0) + config.smoothing * e)
        loss = F.cross_entropy(answers, repeated, reduction="none").view(len(x), K).mean(1)
        near = (x - expected).square().flatten(1).mean(1)
        return loss + config.tv * total_variation(x) + config.l2 * near

    for step in range(config.iterations):
        optimizer.param_groups[0]["lr"] = config.lr * (1 - step / config.iterations)
        x.grad = torch.autograd.grad(objective().sum(), x)[0]
        optimizer.step()
        with torch.no_grad():
            x.clamp_(0, 1)
    with torch.no_grad():
        final = objective().view(C, R).nan_to_num(torch.inf)
    best = final.argmin(1) + R * torch.arange(C, device=final.device)
    return x.detach()[best].nan_to_num(0.5).cpu(), final.min(1).values.cpu()

"""An inversion network: maps the answers to an image back to the image."""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.config import Config
from fdaudit.limits import MOST_INNER
from fdaudit.models.network import seed_from, seeded
from fdaudit.training.optimizers import adam

__all__ = ["DecoderConfig", "evidence", "fit_decoder", "sure_of"]


class DecoderConfig(Config):
    """Settings of an inversion network."""

    steps: int = Field(500, ge=1)
    """Steps of Adam with decoupled weight decay."""
    width: int = Field(128, ge=1, le=MOST_INNER)
    """Hidden units of the network, a multilayer perceptron."""
    batch: int = Field(128, ge=1)
    """Pairs of answer and image in a step."""
    lr: float = Field(3e-3, gt=0)
    """Learning rate; falls to zero over the steps."""
    weight_decay: float = Field(1.0, ge=0)
    """Decoupled weight decay: keeps the network near the mean image for answers unlike the training ones."""
    floor: float = Field(8.0, gt=0)
    """Log-probabilities are cut off at minus this, in nats, because the far tails are the model's noise."""
    quantile: float = Field(0.5, ge=0, le=1)
    """Certainty of an inverted answer: this quantile of the best class's evidence among the training answers."""


def evidence(p: Tensor, floor: float) -> Tensor:
    """Return centred log-probabilities (n, C) of answers (n, C), in nats, cut off below at `-floor`.

    Yang 2019 uses them in place of probabilities, of which one is near 1 and the rest near 0.
    """
    logs = p.clamp_min(1e-12).log().clamp_min(-floor)
    return logs - logs.mean(1, keepdim=True)


def sure_of(learnt: Tensor, quantile: float) -> Tensor:
    """Return for each class the evidence (C, C) of an answer that is certain of it and equal for all other classes.

    Args:
        learnt: (n, C) evidence that the network was trained on; it shows the usual certainty of answers.
        quantile: of the best class's evidence.
    """
    classes = learnt.shape[1]
    shape = torch.eye(classes, device=learnt.device) - 1 / classes
    return shape / (1 - 1 / classes) * torch.quantile(learnt.max(1).values, quantile)


def fit_decoder(
    answers: Tensor, images: Tensor, config: DecoderConfig, generator: torch.Generator, device: torch.device
) -> Callable[[Tensor], Tensor]:
    """Fit a network from answers (n, d) to images (n, c, h, w) in [0, 1], by least squares (Yang 2019).

    It starts as the mean image for every answer. The result is a function of answers (m, d), on the CPU.
    """
    centre, scale = answers.mean(0).to(device), answers.std().clamp_min(1e-6).to(device)
    mean, shape = images.mean(0).to(device), images.shape[1:]

    def perceptron() -> nn.Sequential:
        last = nn.Linear(config.width, mean.numel())
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        return nn.Sequential(nn.Linear(answers.shape[1], config.width), nn.LeakyReLU(0.1), last)

    network = seeded(seed_from(generator), perceptron)
    network.to(device)
    x, y = images.to(device), answers.to(device)

    def decode(y: Tensor) -> Tensor:
        images: Tensor = mean + network((y - centre) / scale).unflatten(1, shape)
        return images

    optimizer = adam(network.parameters(), config.lr, weight_decay=config.weight_decay, decoupled=True)
    for step in range(config.steps):
        batch = torch.randint(len(x), (min(config.batch, len(x)),), generator=generator).to(device)
        loss = F.mse_loss(decode(y[batch]), x[batch])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.param_groups[0]["lr"] = config.lr * (1 - step / config.steps)
        optimizer.step()

    def invert(y: Tensor) -> Tensor:
        with torch.no_grad():
            return decode(y.to(device)).clamp(0, 1).cpu()

    return invert

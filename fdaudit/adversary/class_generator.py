"""A generator of images that a model in view takes for given classes: that model is its only teacher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.models.generative import build_generator
from fdaudit.models.network import call_with
from fdaudit.training.optimizers import adam

if TYPE_CHECKING:
    from fdaudit.models import Architecture

__all__ = ["ClassGenerator"]

_LATENT, _WIDTH, _BATCH, _RATE = 32, 8, 64, 2e-3
"""Length of a latent vector, channels of the last layer, images of a step, and Adam's learning rate."""


class ClassGenerator:
    """Makes images of classes, and learns from models what these look like (Hitaj et al. 2017, Algorithm 1).

    The paper has a generator for one class. Here a generator reads the class, so one of them serves all.

    Args:
        network: of the models.
        classes: (k,) the classes that it makes images of.
        draws: for its initial weights, and for all latent vectors.

    Raises:
        SpecError: the images are too small.
    """

    def __init__(self, network: Architecture, classes: Tensor, draws: torch.Generator) -> None:
        self._classes, self._count, self._draws = classes, network.classes, draws
        shape = network.input_shape
        self._generator = build_generator(draws, _LATENT + network.classes, _WIDTH, shape)
        self._optimizer = adam(self._generator.parameters(), _RATE, betas=(0.5, 0.99))

    def learn(self, module: nn.Module, model: Mapping[str, Tensor], steps: int) -> float:
        """Lower the model's cross-entropy of generated images with their classes; return the last one, in nats.

        Args:
            module: the network, in evaluation.
            model: its parameters and buffers.
            steps: of the generator; the model stays as it is.
        """
        loss = torch.zeros(())
        for _ in range(steps):
            y = self._classes[torch.randint(len(self._classes), (_BATCH,), generator=self._draws)]
            loss = F.cross_entropy(call_with(module, model, self._made(y)), y)
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self._optimizer.step()
        return float(loss.detach())

    @torch.no_grad()
    def images(self, y: Tensor) -> Tensor:
        """Return new images (n, c, h, w) in [0, 1] of classes (n,)."""
        return self._made(y)

    def _made(self, y: Tensor) -> Tensor:
        z = torch.randn(len(y), _LATENT, generator=self._draws)
        images: Tensor = self._generator(torch.cat([z, F.one_hot(y, self._count).float()], 1))
        return images

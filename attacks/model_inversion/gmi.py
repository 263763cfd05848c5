"""Generative model inversion: find latent vectors whose images a model in view classifies with most certainty."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.registry import AttackCard
from fdaudit.training.optimizers import adam

from .._reading import reads_forms
from .gan import GanConfig, GanPrior, gan_prior
from .model_attack import ViewedModelAttack
from .priors import centres

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdaudit.adversary.knowledge import Knowledge

    from .model_attack import Invert

__all__ = ["GMI", "GMIConfig"]


class GMIConfig(GanConfig):
    """Settings of generative model inversion."""

    restarts: int = Field(16, ge=1)
    """Latent vectors for each class; all advance together, and their images are averaged."""
    iterations: int = Field(300, ge=1)
    """Steps of Adam on the latent vectors."""
    lr: float = Field(0.1, gt=0)
    """Adam's learning rate; falls to zero over the steps."""
    prior: float = Field(0.02, ge=0)
    """Weight of the prior loss, the discriminator's; the identity loss weighs 1."""
    latent_l2: float = Field(0.03, ge=0)
    """Weight of the latent vectors' squared length, from their Gaussian prior."""
    l2: float = Field(8.0, ge=0)
    """Weight of the mean squared distance from the image expected of the class: the mean auxiliary one."""
    smoothing: float = Field(0.3, ge=0)
    """Standard deviation of Gaussian noise on images before the model sees them."""


@reads_forms
class GMI(ViewedModelAttack):
    """Searches the latent space of a GAN of auxiliary images for the images that a model in view assigns to each class.

    Zhang 2020: minimise the prior loss (is the image real?) and the identity loss (-log of the class's probability). A
    victim's own last model is inverted if one is in view (its parameters, or its update added to the model that it
    started from), else the shared one. The guess for a class is the mean image over restarts, which estimates the class
    better than its best single image. The paper's diversity loss is left out, because it needs the target while the GAN
    is trained. Its Wasserstein GAN with a penalty is replaced by a non-saturating one.
    """

    card = AttackCard(
        name="gmi",
        work={"once": 5000, "each": 1200, "grows": ("iterations", "restarts")},
        goal="reconstruction",
        needs=("model_parameters", "model_update"),
        assumes=("architecture", "auxiliary"),
        source="Zhang, Jia, Pei, Wang, Li & Song 2020",
        tasks=("single-label",),
        profiles={
            "quick": {"gan_steps": 100, "iterations": 60, "restarts": 8},
            "standard": {"gan_steps": 5000, "width": 16, "iterations": 500, "restarts": 32},
            "full": {"gan_steps": 15_000, "width": 16, "iterations": 1500, "restarts": 64},
        },
        control={"on": "classes", "through": "parameters"},
    )
    Config: ClassVar[type[GMIConfig]] = GMIConfig

    def __init__(self, config: GMIConfig) -> None:
        self.config: GMIConfig = config

    @property
    def evaluations(self) -> int:
        """Return the number of gradients spent on an image."""
        return self.config.restarts * self.config.iterations

    def search(
        self, model: nn.Module, images: Tensor, classes: Tensor, knowledge: Knowledge
    ) -> tuple[Sequence[Tensor], Invert]:
        """Return the search, and the images expected of the classes."""
        device = knowledge.device
        prior = gan_prior(images, self.config, device)
        expected = centres(knowledge.auxiliary, knowledge.classes, tuple(images.shape[1:]))[classes].to(
            device
        )
        return [expected], partial(self._search, model, prior, expected, classes)

    def _search(
        self,
        model: nn.Module,
        prior: GanPrior,
        centre: Tensor,
        shown: Tensor,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """Return mean `images` (k, c, h, w) of each class's latent vectors after the search, and their mean loss."""
        config, device = self.config, centre.device
        labels = shown.to(device).repeat_interleave(config.restarts)
        expected = centre.repeat_interleave(config.restarts, 0)
        z = torch.randn(len(labels), prior.latent, generator=generator).to(device).requires_grad_()
        optimizer = adam([z], config.lr)
        for step in range(config.iterations):
            x = prior.generator(z)
            e = torch.randn(x.shape, generator=generator).to(device)
            identity = F.cross_entropy(model(x + config.smoothing * e), labels, reduction="none")
            real = F.softplus(-prior.discriminator(x)).flatten(1).mean(1)
            far = (x - expected).square().flatten(1).mean(1)
            loss = identity + config.prior * real + config.latent_l2 * z.square().sum(1) + config.l2 * far
            z.grad = torch.autograd.grad(loss.sum(), z)[0]
            optimizer.param_groups[0]["lr"] = config.lr * (1 - step / config.iterations)
            optimizer.step()
        with torch.no_grad():
            images = prior.generator(z)
        mean_images = images.unflatten(0, (len(centre), config.restarts)).mean(1)
        return {"images": mean_images, "objective": loss.detach().mean()}

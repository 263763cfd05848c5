"""A GAN prior: a generator of plausible images, trained on auxiliary ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.config import Config
from fdaudit.limits import MOST_INNER
from fdaudit.models.generative import SMALLEST_SIDE, build_discriminator, build_generator
from fdaudit.storage.cache import computed_once
from fdaudit.training.optimizers import adam
from fdaudit.types import Applicability

from .priors import composites

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge

__all__ = ["GanConfig", "GanPrior", "gan_prior", "learnable"]


class GanConfig(Config):
    """Settings of the GAN prior."""

    gan_steps: int = Field(2000, ge=1)
    """Steps of the generator and of the discriminator."""
    latent: int = Field(64, ge=1, le=MOST_INNER)
    """Length of a latent vector."""
    width: int = Field(8, ge=1, le=MOST_INNER)
    """Smallest number of channels of the generator; the discriminator has twice as many."""
    batch: int = Field(64, ge=1)
    """Images in a step."""
    gan_lr: float = Field(2e-3, gt=0)
    """Adam's learning rate (β1 = 0.5) of the generator; the discriminator's is half."""
    noise: float = Field(0.05, ge=0)
    """Standard deviation of noise on the auxiliary images."""


@dataclass(frozen=True, eq=False)
class GanPrior:
    """A generator from latent vectors (n, latent) to images, and the discriminator it was trained with."""

    generator: nn.Module
    discriminator: nn.Module
    latent: int


def learnable(knowledge: Knowledge) -> Applicability:
    """Return whether an adversary has auxiliary images that are large enough for a GAN."""
    if knowledge.auxiliary is None or not len(knowledge.auxiliary[1]):
        return Applicability(False, "no auxiliary images to learn a prior from: bring auxiliary records")
    if min(knowledge.auxiliary[0].shape[2:]) < SMALLEST_SIDE:
        return Applicability(False, f"images smaller than {SMALLEST_SIDE} pixels cannot be generated")
    return Applicability(True)


def gan_prior(images: Tensor, config: GanConfig, device: torch.device) -> GanPrior:
    """Fit a GAN to auxiliary images (N, c, h, w), cached for attacks with the same images (`fdaudit.storage.cache`).

    Its seed is a digest of the images and settings, so caching does not change the GAN. It is trained on images that
    join two auxiliary ones. This spreads it over shapes that no auxiliary class has.
    """
    card = {
        "what": "GAN prior",
        "settings": config.model_dump(mode="json", include=set(GanConfig.model_fields)),
        "device": str(device),
    }
    prior = _untrained(images, config, torch.Generator().manual_seed(0), device)
    both = nn.ModuleDict({"generator": prior.generator, "discriminator": prior.discriminator})

    def made(draws: torch.Generator) -> dict[str, Tensor]:
        # The non-saturating losses (Goodfellow 2014) in turn, from new initial weights.
        fresh = _untrained(images, config, draws, device)
        G, D = prior.generator, prior.discriminator
        G.load_state_dict(fresh.generator.state_dict())
        D.load_state_dict(fresh.discriminator.state_dict())
        betas = (0.5, 0.99)
        of_g = adam(G.parameters(), config.gan_lr, betas=betas)
        of_d = adam(D.parameters(), config.gan_lr / 2, betas=betas)
        for _ in range(config.gan_steps):
            real = composites(images, config.batch, config.noise, draws).to(device)
            fake = G(torch.randn(config.batch, config.latent, generator=draws).to(device))
            of_d.zero_grad(set_to_none=True)
            loss = F.softplus(-D(real)).mean() + F.softplus(D(fake.detach())).mean()
            loss.backward()
            of_d.step()
            of_g.zero_grad(set_to_none=True)
            F.softplus(-D(fake)).mean().backward()
            of_g.step()
        return both.state_dict()

    both.load_state_dict(computed_once(card, [images], made))
    both.eval().requires_grad_(False)
    return prior


def _untrained(images: Tensor, config: GanConfig, draws: torch.Generator, device: torch.device) -> GanPrior:
    """Return both networks with initial weights."""
    shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
    G = build_generator(draws, config.latent, config.width, shape).to(device)
    D = build_discriminator(draws, 2 * config.width, shape).to(device)
    return GanPrior(G, D, config.latent)

"""PLG-MI: train a conditional GAN on auxiliary images with a model's own labels, and search its latent space."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.config import Config
from fdaudit.limits import MOST_INNER
from fdaudit.models.generative import Generator, build_generator, build_projection_discriminator
from fdaudit.registry import AttackCard
from fdaudit.training.optimizers import adam

from .._reading import reads_forms
from .model_attack import ViewedModelAttack
from .priors import augmented, composites

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdaudit.adversary.knowledge import Knowledge

    from .model_attack import Invert

__all__ = ["PLGMI", "PLGMIConfig", "max_margin"]


class PLGMIConfig(Config):
    """Settings of pseudo label-guided model inversion."""

    composites: int = Field(10_000, ge=0)
    """Images that join two auxiliary ones, added to those that are chosen from."""
    top: int = Field(100, ge=1)
    """n: number of images chosen for each class, those of which the model is most certain."""
    gan_steps: int = Field(1000, ge=1)
    """Steps of the generator and of the discriminator."""
    latent: int = Field(64, ge=1, le=MOST_INNER)
    """Length of a latent vector."""
    width: int = Field(8, ge=1, le=MOST_INNER)
    """Smallest number of channels of the generator; the discriminator has twice as many."""
    batch: int = Field(64, ge=1)
    """Images in a step."""
    gan_lr: float = Field(2e-3, gt=0)
    """Adam's learning rate (β1 = 0) of both networks."""
    alpha: float = Field(0.2, ge=0)
    """α: weight of the model's max-margin loss in the generator's loss."""
    restarts: int = Field(16, ge=1)
    """Latent vectors for each class; all advance together, and the best is kept."""
    iterations: int = Field(100, ge=1)
    """Steps of Adam on the latent vectors."""
    lr: float = Field(0.1, gt=0)
    """Adam's learning rate for the latent vectors."""
    copies: int = Field(2, ge=1)
    """m: augmented copies of an image in each step of the search."""
    judged: int = Field(16, ge=1)
    """Augmented copies of each found image; the model's mean confidence over them chooses the best image."""
    noise: float = Field(0.1, ge=0)
    """Standard deviation of Gaussian noise in an augmentation, and on chosen images."""


@reads_forms
class PLGMI(ViewedModelAttack):
    """Trains a conditional GAN on images that a model in view assigns to each class, then finds the most certain one.

    The model labels auxiliary images; for each class the `top` images of highest confidence train the GAN. Auxiliary
    labels are not used. A class that auxiliary images lack is learnt from the images that the model assigns to it.
    Images that join two auxiliary ones are labelled too, because they show shapes of such a class more often. A
    victim's own last model is inverted if one is in view (its parameters, or its update added to the model that it
    started from), else the shared one.

    Four points differ from the paper. The networks are small. The generator gets the class next to the latent vector,
    not through class-conditional BatchNorm. Margins are in units of the logits' standard deviation, so that α means the
    same for every model. Augmentations are turns, zooms, shifts and noise, without flips, because flips change digits.
    """

    card = AttackCard(
        name="plg-mi",
        work={"once": 10000, "each": 900, "grows": ("gan_steps",)},
        goal="reconstruction",
        needs=("model_parameters", "model_update"),
        assumes=("architecture", "auxiliary"),
        source="Yuan, Chen, Zhang, Zhang, Yu & Zhang 2023",
        tasks=("single-label",),
        profiles={
            "quick": {
                "composites": 2000,
                "gan_steps": 60,
                "batch": 32,
                "restarts": 4,
                "iterations": 30,
                "copies": 1,
            },
            "standard": {"gan_steps": 2000, "iterations": 200},
            "full": {
                "composites": 50_000,
                "top": 300,
                "gan_steps": 10_000,
                "width": 16,
                "restarts": 64,
                "iterations": 600,
                "copies": 4,
            },
        },
        control={"on": "classes", "through": "parameters"},
    )
    Config: ClassVar[type[PLGMIConfig]] = PLGMIConfig

    def __init__(self, config: PLGMIConfig) -> None:
        self.config: PLGMIConfig = config

    @property
    def evaluations(self) -> int:
        """Return the number of gradients spent on an image."""
        return self.config.restarts * self.config.copies * self.config.iterations

    def search(
        self, model: nn.Module, images: Tensor, classes: Tensor, knowledge: Knowledge
    ) -> tuple[Sequence[Tensor], Invert]:
        """Return the search; nothing else determines it."""
        attack = _PseudoLabelSearch(model, classes, self.config, knowledge.device)
        return [], partial(attack.invert, images)


class _PseudoLabelSearch:
    """The three stages against one target model T, a map from images (n, c, h, w) to logits, for C of its classes."""

    def __init__(self, model: nn.Module, shown: Tensor, config: PLGMIConfig, device: torch.device) -> None:
        self.T, self.C, self.config, self.device = model, len(shown), config, device
        self.shown = shown.to(device)

    def invert(self, public: Tensor, draws: torch.Generator) -> dict[str, Tensor]:
        """Return the best image (C, c, h, w) of each class as `images`; `objective` is minus their mean log-confidence.

        Args:
            public: images (N, c, h, w) to label; none of the target's.
            draws: for all random draws.
        """
        chosen, spread = self.choose(public, draws)
        G = self.teach(chosen, spread, draws)
        return self.search(G, spread, draws)

    @torch.no_grad()
    def choose(self, public: Tensor, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return for each class the n images of which T is most certain, (C, n, c, h, w), and the logits' spread."""
        config = self.config
        x = torch.cat([public, composites(public, config.composites, 0.0, draws)])
        answers = []
        for part in x.split(1024):
            images = part.to(self.device)
            answers.append(self.T(images))
        logits = torch.cat(answers)
        top = logits.log_softmax(1)[:, self.shown].topk(min(config.top, len(x)), dim=0).indices
        return x[top.T.cpu()].to(self.device), logits.std().clamp_min(1e-6)

    def teach(self, chosen: Tensor, spread: Tensor, draws: torch.Generator) -> Generator:
        """Train a generator of images by class, under the hinge loss and α times the max-margin loss of T.

        L_D = E[max(0, 1 - D(x, y))] + E[max(0, 1 + D(G(z, y), y))]
        L_G = -E[D(G(z, y), y)] + α E[L_mm(T(A(G(z, y))), y)]
        """
        config, (C, n, c, h, w) = self.config, chosen.shape
        G = build_generator(draws, config.latent + C, config.width, (c, h, w)).to(self.device)
        D = build_projection_discriminator(draws, 2 * config.width, (c, h, w), C).to(self.device)
        betas = (0.0, 0.9)
        of_g = adam(G.parameters(), config.gan_lr, betas=betas)
        of_d = adam(D.parameters(), config.gan_lr, betas=betas)
        for _ in range(config.gan_steps):
            y = torch.randint(C, (config.batch,), generator=draws)
            x = chosen[y, torch.randint(n, (config.batch,), generator=draws)]
            x = x + config.noise * torch.randn(x.shape, generator=draws).to(x)
            y = y.to(self.device)
            z = torch.randn(config.batch, config.latent, generator=draws).to(self.device)
            fake = G(_with_class(z, y, C))
            of_d.zero_grad(set_to_none=True)
            loss = F.relu(1 - D(x, y)).mean() + F.relu(1 + D(fake.detach(), y)).mean()
            loss.backward()
            of_d.step()
            of_g.zero_grad(set_to_none=True)
            logits = self.T(augmented(fake, config.noise, draws))
            guidance = max_margin(logits / spread, self.shown[y]).mean()
            loss = config.alpha * guidance - D(fake, y).mean()
            loss.backward()
            of_g.step()
        return G.eval().requires_grad_(False)

    def search(self, G: Generator, spread: Tensor, draws: torch.Generator) -> dict[str, Tensor]:
        """Return argmin over z of Σ_i L_mm(T(A_i(G(z, y))), y); of each class the image of highest mean confidence."""
        config, C, R, m = self.config, self.C, self.config.restarts, self.config.copies
        y = torch.arange(C, device=self.device).repeat_interleave(R)
        z = torch.randn(len(y), config.latent, generator=draws).to(self.device).requires_grad_()
        optimizer = adam([z], config.lr)
        for _ in range(config.iterations):
            copies = augmented(G(_with_class(z, y, C)).repeat(m, 1, 1, 1), config.noise, draws)
            loss = max_margin(self.T(copies) / spread, self.shown[y].repeat(m)).sum() / m
            z.grad = torch.autograd.grad(loss, z)[0]
            optimizer.step()
        with torch.no_grad():
            x = G(_with_class(z, y, C))
            answers = []
            for _ in range(config.judged):
                judged = augmented(x, config.noise, draws)
                answers.append(self.T(judged).softmax(1))
            mean = torch.stack(answers).mean(0)
        p = mean.gather(1, self.shown[y][:, None]).view(C, R).nan_to_num(0)
        best = p.argmax(1) + R * torch.arange(C, device=p.device)
        return {"images": x[best], "objective": -p.amax(1).clamp_min(1e-12).log().mean()}


def max_margin(logits: Tensor, y: Tensor) -> Tensor:
    """Return L_mm (n,): the largest logit of another class minus that of class y (n,) in logits (n, C)."""
    own = logits.gather(1, y[:, None])
    others = logits.scatter(1, y[:, None], -torch.inf)
    return others.amax(1) - own.squeeze(1)


def _with_class(z: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return latent vectors joined with the class, (n, latent + C)."""
    return torch.cat([z, F.one_hot(y, classes).to(z)], 1)

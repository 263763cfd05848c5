"""IDEAL's first part: a surrogate of a model, learnt from its answers to generated images, one query an image."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.config import Config
from fdaudit.limits import MOST_INNER
from fdaudit.models import Architecture, architecture
from fdaudit.models.generative import SMALLEST_SIDE, build_generator
from fdaudit.spec.schema import ModelSpec
from fdaudit.training.optimizers import adam

__all__ = ["SurrogateConfig", "fit_surrogate", "surrogate_of"]


class SurrogateConfig(Config):
    """Settings of the surrogate and of the generator of query images."""

    rounds: int = Field(20, ge=1)
    """E: number of rounds; each fits a new generator, queries its images, and trains the surrogate."""
    generator_steps: int = Field(20, ge=0)
    """N_G: steps of the generator in a round; it uses only the surrogate and costs no query."""
    surrogate_steps: int = Field(50, ge=1)
    """Steps of the surrogate in a round, on all answers so far."""
    balance: float = Field(5.0, ge=0)
    """λ: weight of the entropy of the mean answer, which makes a generator cover all classes."""
    spread: float = Field(1.0, ge=0)
    """Standard deviation of noise added to the generator's images before they are clipped to [0, 1] and queried."""
    width: int = Field(128, ge=1, le=MOST_INNER)
    """Hidden units of the surrogate, a multilayer perceptron."""
    batch: int = Field(128, ge=2)
    """Images in a step of the generator, or of the surrogate."""
    surrogate_lr: float = Field(3e-3, gt=0)
    """Adam's learning rate for the generator and the surrogate."""


def surrogate_of(
    parameters: Mapping[str, Tensor],
    shape: tuple[int, ...],
    classes: int,
    config: SurrogateConfig,
    device: torch.device,
) -> nn.Module:
    """Return the surrogate with the parameters from `fit_surrogate`; other arguments are as there."""
    surrogate = _network(shape, classes, config).build(torch.Generator()).to(device)
    surrogate.load_state_dict(dict(parameters))
    return surrogate.eval().requires_grad_(False)


def _network(shape: tuple[int, ...], classes: int, config: SurrogateConfig) -> Architecture:
    return architecture(ModelSpec(name="mlp", params={"widths": [config.width]}), shape, classes)


def fit_surrogate(
    ask: Callable[[Tensor], Tensor],
    queries: int,
    shape: tuple[int, ...],
    classes: int,
    config: SurrogateConfig,
    generator: torch.Generator,
    device: torch.device,
) -> dict[str, Tensor]:
    """Learn from at most `queries` answers (Zhang 2023, Algorithm 1): every image is queried once.

    In each round a new generator minimises the surrogate's own loss CE(S(G(z)), argmax S(G(z))) - λ H(mean S(G(z))).
    Its images are queried, and the surrogate minimises the cross-entropy with the answers. Noise on the images is added
    to the paper's method. Without it a surrogate learns the target only on a thin set of generated images, and its
    inversion shows nothing.

    Args:
        ask: images (n, c, h, w) in [0, 1] to rows of probabilities (n, C).
        queries: total number of images that may be queried.
        shape: (c, h, w) of an image.
        classes: C.
        config: settings.
        generator: draws weights, latent vectors, noise and batches.
        device: where to train.

    Returns:
        The surrogate's parameters, for `surrogate_of`.
    """
    surrogate = _network(shape, classes, config).build(generator).to(device)
    optimizer = adam(surrogate.parameters(), config.surrogate_lr)
    x, p = torch.zeros(0, *shape), torch.zeros(0, classes)
    rounds = min(config.rounds, queries)
    for number in range(rounds):
        count = queries * (number + 1) // rounds - queries * number // rounds
        images = _generated(surrogate, count, shape, config, generator, device)
        x, p = torch.cat([x, images]), torch.cat([p, ask(images).cpu()])
        for _ in range(config.surrogate_steps):
            batch = torch.randint(len(x), (min(config.batch, len(x)),), generator=generator)
            loss = F.cross_entropy(surrogate(x[batch].to(device)), p[batch].to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    return surrogate.state_dict()


_LATENT, _WIDTH = 32, 8
"""Length of a latent vector and smallest number of a generator's channels: small, because each round has a new one."""
_PORTION = 4096
"""Images generated at a time."""


def _generated(
    surrogate: nn.Module,
    n: int,
    shape: tuple[int, ...],
    config: SurrogateConfig,
    generator: torch.Generator,
    device: torch.device,
) -> Tensor:
    """Return images (n, c, h, w) of a new generator, with noise, on the CPU; only noise if images are too small."""
    if min(shape[1:]) < SMALLEST_SIDE:
        return torch.rand(n, *shape, generator=generator)
    network = build_generator(generator, _LATENT, _WIDTH, shape).to(device)
    optimizer = adam(network.parameters(), config.surrogate_lr)

    def draw(count: int) -> Tensor:
        images: Tensor = network(torch.randn(count, _LATENT, generator=generator).to(device))
        return images + config.spread * torch.randn(images.shape, generator=generator).to(device)

    for _ in range(config.generator_steps):
        answers = surrogate(draw(config.batch))
        mean = answers.softmax(1).mean(0)
        entropy = -(mean * mean.clamp_min(1e-9).log()).sum()
        loss = F.cross_entropy(answers, answers.argmax(1)) - config.balance * entropy
        loss_gradients = torch.autograd.grad(loss, list(network.parameters()))
        for parameter, gradient in zip(network.parameters(), loss_gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
    with torch.no_grad():
        portions = []
        for i in range(0, n, _PORTION):
            images = draw(min(_PORTION, n - i))
            portions.append(images.clamp(0, 1).cpu())
    return torch.cat(portions)

"""FedGEN's generator of features, and its losses and weights, after the authors' code (Zhu et al. 2021)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.federation.kit import Setting, child, feature_width, seed_from, seeded, shared_network

from .config import FedGENConfig

__all__ = [
    "FeatureGenerator",
    "class_shares",
    "ensemble_loss",
    "initial_generator",
    "likeness",
    "noise_and_classes",
    "reported_classes",
]


class FeatureGenerator(nn.Module):
    """Maps noise (n, latent) and classes (n,) to features (n, d) of the classifier's extractor.

    Guarantees:
      * each feature vector depends on its own noise and class only.
    """

    def __init__(self, latent: int, width: int, features: int, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.hidden = nn.Linear(latent + classes, width)
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, features)

    def forward(self, noise: Tensor, y: Tensor) -> Tensor:
        """Return features (n, d) of noise (n, latent) and classes (n,)."""
        one_hot = F.one_hot(y, self.classes).to(noise.dtype)
        features: Tensor = self.last(self.norm(self.hidden(torch.cat([noise, one_hot], 1))).relu())
        return features


def initial_generator(config: FedGENConfig, setting: Setting) -> FeatureGenerator:
    """Return the generator that the server starts from, on the CPU.

    Raises:
        SpecError: the network does not mark where its features end.
    """
    trainer = setting.trainers["server"]
    network = shared_network(trainer.network(setting.initial["server"])).eval()
    d = feature_width(network.extractor, setting.input_shape, whole=setting.task.inputs.whole)
    draws = child(setting.seed, "fedgen", "generator")
    return seeded(
        seed_from(draws),
        lambda: FeatureGenerator(config.latent, config.generator_width, d, setting.classes),
    )


def noise_and_classes(
    config: FedGENConfig, classes: Tensor, drawn: torch.Generator, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return noise (n, latent), and classes (n,) in proportion to `classes` (C,), of `generated` features."""
    y = torch.multinomial(classes, config.generated, replacement=True, generator=drawn)
    return torch.randn(len(y), config.latent, generator=drawn).to(device), y.to(device)


def reported_classes(state: Mapping[str, Tensor], clients: Collection[str], classes: int) -> Tensor:
    """Return the class counts (K, C) that clients reported; one whose counts did not arrive gets the others' mean."""
    counts = {k: state[f"server/counts/{k}"] for k in clients if f"server/counts/{k}" in state}
    if not counts:
        return torch.ones(len(clients), classes, dtype=torch.int64)
    mean = torch.stack(list(counts.values())).double().mean(0).round().long()
    return torch.stack([counts.get(k, mean) for k in clients]).clamp_min(0)


def class_shares(counts: Tensor) -> Tensor:
    """Return α (K, C) from the clients' class counts (K, C): each client's share of a class.

    A class of which no one has a record is shared equally.

    Guarantees:
      * non-negative, and sums to one over the clients for each class.
    """
    records = counts.double().clamp_min(0)
    total = records.sum(0)
    return torch.where(
        total > 0, records / total.clamp_min(1), torch.full_like(records, 1 / len(counts))
    ).float()


def ensemble_loss(logits: Tensor, y: Tensor, shares: Tensor | None) -> Tensor:
    """Return the generator's loss () against the clients' logits (K, n, C) at features of classes y (n,).

    With shares (K, n) it is the mean of the clients' cross-entropies, each times its share, as in the authors' code.
    With None it is the cross-entropy of the mean logits (Eq. 4).
    """
    if shares is None:
        return F.cross_entropy(logits.mean(0), y)
    each = F.cross_entropy(logits.movedim(2, 1), y.expand(len(logits), -1), reduction="none")
    return (shares * each).sum(0).mean()


def likeness(z: Tensor, x: Tensor) -> Tensor:
    """Return the exponential of minus the mean product of the distances of noise (n, d) and samples (n, ...).

    Between 0 and 1: 1 if all samples are the same. Distances of noise are mean squared differences, distances of
    samples are mean absolute ones, over all pairs.
    """
    flat, d = x.flatten(1), z.shape[1]
    apart = torch.cdist(flat, flat, p=1) / flat.shape[1]
    noise = (z[:, None] - z[None]).square().sum(2) / d
    return (-(noise * apart).mean()).exp()

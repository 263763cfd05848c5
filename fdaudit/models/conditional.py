"""DaFKD's and AsynDGAN's networks: generators of images with given labels, and a domain discriminator.

The paper's generator has BatchNorm; this one has none. With BatchNorm a generated sample would depend on its whole
batch, so it could not be drawn again alone. Clients would also exchange the batch statistics.
"""

from __future__ import annotations

import copy
import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.errors import SpecError
from fdaudit.models.network import Network, feature_width, seed_from, seeded
from fdaudit.models.unet import UNet
from fdaudit.tasks import labels_of

__all__ = [
    "ConditionalGenerator",
    "build_conditional",
    "build_discriminator_apart",
    "build_domain_head",
    "build_painter",
    "planes",
    "shared_network",
]

_Shape = tuple[int, ...]


class ConditionalGenerator(nn.Module):
    """Maps latent vectors (n, latent) and classes (n,) to images (n, c, h, w) in [0, 1]; classes only if conditional.

    Two embeddings, of the noise and of the one-hot class, then fully connected layers with LeakyReLU (Wang 2023,
    section 4.1), with LayerNorm in place of BatchNorm.

    Guarantees:
      * each image depends on its own latent vector and class only.

    Attributes:
        latent: length of a latent vector.
        classes: number of classes C.
    """

    def __init__(
        self, latent: int, width: int, output_shape: _Shape, classes: int, conditional: bool = True
    ) -> None:
        super().__init__()
        self.latent, self.classes, self._shape = latent, classes, output_shape
        self.of_noise = nn.Linear(latent, width if conditional else 2 * width)
        self.of_class = nn.Linear(classes, width, bias=False) if conditional else None
        self.paint = nn.Sequential(
            nn.LayerNorm(2 * width),
            nn.LeakyReLU(0.2),
            nn.Linear(2 * width, 2 * width),
            nn.LayerNorm(2 * width),
            nn.LeakyReLU(0.2),
            nn.Linear(2 * width, math.prod(output_shape)),
            nn.Sigmoid(),
        )

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Return images (n, c, h, w) of latent vectors (n, latent) and classes (n,)."""
        embedded = self.of_noise(z)
        if self.of_class is not None:
            one_hot = F.one_hot(y, self.classes).to(z.dtype)
            embedded = torch.cat([embedded, self.of_class(one_hot)], 1)
        return cast(Tensor, self.paint(embedded).reshape(len(z), *self._shape))


def build_conditional(
    generator: torch.Generator,
    latent: int,
    width: int,
    output_shape: _Shape,
    classes: int,
    conditional: bool = True,
) -> ConditionalGenerator:
    """Return a new generator on the CPU; one draw from `generator` seeds its initial weights."""
    return seeded(
        seed_from(generator),
        lambda: ConditionalGenerator(latent, width, output_shape, classes, conditional),
    )


def build_domain_head(generator: torch.Generator, network: nn.Module, input_shape: _Shape) -> nn.Linear:
    """Return a new last layer of a domain discriminator, over the features (n, d) of `network`'s extractor.

    Its logit (n, 1) is positive where an image looks like the client's own.

    Args:
        generator: one draw from it seeds the initial weights.
        network: the classifier that lends its extractor.
        input_shape: (c, h, w) of an image.

    Raises:
        SpecError: the network has no extractor.
    """
    width = feature_width(shared_network(network).extractor, input_shape)
    return seeded(seed_from(generator), lambda: nn.Linear(width, 1))


def build_discriminator_apart(generator: torch.Generator, network: nn.Module, input_shape: _Shape) -> Network:
    """Return a domain discriminator that shares nothing: a copy of `network`'s extractor below a layer of its own.

    It maps images (n, c, h, w) to logits (n, 1). The copied extractor keeps the weights that `network` has now.

    Raises:
        SpecError: the network has no extractor.
    """
    head = build_domain_head(generator, network, input_shape)
    return Network(copy.deepcopy(shared_network(network).extractor), head)


def shared_network(module: nn.Module) -> Network:
    """Return the classifier as a `Network`, whose extractor can be shared.

    Raises:
        SpecError: it is another kind of module, which does not mark where its features end.
    """
    if not isinstance(module, Network):
        kind, problem = type(module).__name__, "does not mark where its features end"
        raise SpecError("model.name", kind, problem, "Derive it from fdaudit.models.network.Network.")
    return module


def planes(y: Tensor, classes: int, shape: _Shape) -> Tensor:
    """Return labels (n,), or masks (n, h, w), as one plane a class (n, C, h, w) of zeros and ones.

    Args:
        y: the labels.
        classes: number of classes C.
        shape: (c, h, w) of an image.
    """
    maps = y if labels_of(y).dense else y[:, None, None].expand(-1, *shape[1:])
    return F.one_hot(maps, classes).movedim(-1, 1).float()


def build_painter(generator: torch.Generator, maps: int, width: int, output_shape: _Shape) -> nn.Module:
    """Return a new generator of images in [0, 1] from planes of the same size, on the CPU; one draw seeds its weights.

    It is a U-Net of at most two halvings, fewer where the sides of an image are no multiples.

    Args:
        generator: seeds the weights.
        maps: number of planes.
        width: channels of the first level.
        output_shape: (c, h, w) of an image.
    """
    channels, *sides = output_shape
    unit = math.gcd(*sides, 4)  # the largest power of two, at most 4, that divides every side
    depth = unit.bit_length() - 1
    return seeded(
        seed_from(generator), lambda: nn.Sequential(UNet(maps, channels, width, depth), nn.Sigmoid())
    )

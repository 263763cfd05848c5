"""Networks of generative protocols and attacks: a DCGAN-style generator and two discriminators, scaled to the input.

None has BatchNorm. With BatchNorm a generated sample would depend on its whole batch, so it could not be drawn again
alone. A discriminator's batch statistics would let one private record change the score of every other sample, and
clipping per-sample gradients does not bound that influence.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from fdaudit.errors import SpecError
from fdaudit.models.network import feature_width, group_norm, seed_from, seeded

__all__ = [
    "SMALLEST_SIDE",
    "Generator",
    "PatchDiscriminator",
    "ProjectionDiscriminator",
    "build_discriminator",
    "build_generator",
    "build_projection_discriminator",
]

SMALLEST_SIDE = 8
"""The smallest height or width of images that these networks support."""

_Shape = tuple[int, ...]


class Generator(nn.Module):
    """Maps latent vectors (n, latent) to images (n, c, h, w) in [0, 1].

    A fully connected layer makes maps of 4 to 7 pixels on the shorter side; each stage doubles them by nearest
    neighbours (transposed convolutions leave a chequered pattern) and convolves. Channels double as sides halve,
    up to eight times `width`. After Radford 2016, with GroupNorm and LeakyReLU.

    Guarantees:
      * each image depends on its own latent vector only.

    Attributes:
        latent: length of a latent vector.
    """

    def __init__(self, latent: int, width: int, output_shape: _Shape) -> None:
        super().__init__()
        self.latent = latent
        channels, *sides = output_shape
        stages = (min(sides) // 4).bit_length() - 1
        widths, sizes = [], []
        for halvings in range(stages, -1, -1):
            widths.append(width * 2 ** min(halvings, 3))
            sizes.append([-(-side // 2**halvings) for side in sides])
        self._first = (widths[0], *sizes[0])
        self.project = nn.Linear(latent, math.prod(self._first))
        layers: list[nn.Module] = [group_norm(widths[0]), nn.LeakyReLU(0.2)]
        for inner, outer, size in zip(widths, widths[1:], sizes[1:], strict=False):
            layers += [nn.Upsample(size=tuple(size)), nn.Conv2d(inner, outer, 3, padding=1)]
            layers += [group_norm(outer), nn.LeakyReLU(0.2)]
        self.paint = nn.Sequential(*layers, nn.Conv2d(widths[-1], channels, 3, padding=1), nn.Sigmoid())

    def forward(self, w: Tensor) -> Tensor:
        """Return images (n, c, h, w) of latent vectors (n, latent)."""
        return cast(Tensor, self.paint(self.project(w).reshape(len(w), *self._first)))


class PatchDiscriminator(nn.Module):
    """Maps images (n, c, h, w) to one logit for each patch (n, h // 4, w // 4); positive means real.

    Two convolutions of stride 2 and one of stride 1, after Isola 2017, as small as Gong 2023 has it (8x8 patches of
    32x32 images): it judges strokes and textures, not whole images, of which one client has too few.

    Guarantees:
      * the logits of an image depend on that image only.
    """

    def __init__(self, width: int, input_shape: _Shape) -> None:
        super().__init__()
        self.judge = nn.Sequential(
            nn.Conv2d(input_shape[0], width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 1, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, h // 4, w // 4) of images (n, c, h, w)."""
        return cast(Tensor, self.judge(x).squeeze(1))


class ProjectionDiscriminator(nn.Module):
    """Maps images (n, c, h, w) and classes (n,) to logits (n,); positive means a real image of the class.

    The logit is ψ(φ(x)) + v_y · φ(x) with linear ψ (Miyato & Koyama 2018, Eq. 3). φ is two convolutions of stride 2
    with LeakyReLU; its maps are flattened, because small images keep their layout there. Every layer has spectral
    normalisation (Miyato 2018).

    Guarantees:
      * the logit of an image depends on that image and its class only.
    """

    def __init__(self, width: int, input_shape: _Shape, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            spectral_norm(nn.Conv2d(input_shape[0], width, 4, stride=2, padding=1)),
            nn.LeakyReLU(0.2),
            spectral_norm(nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
        )
        d = feature_width(self.features, input_shape)
        self.real = spectral_norm(nn.Linear(d, 1))
        self.of_class = spectral_norm(nn.Linear(d, classes, bias=False))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return logits (n,) of images (n, c, h, w) as members of classes (n,)."""
        phi = self.features(x)
        own_class = self.of_class(phi).gather(1, y[:, None])  # v_y · φ(x)
        logits: Tensor = self.real(phi).squeeze(1) + own_class.squeeze(1)
        return logits


def build_generator(generator: torch.Generator, latent: int, width: int, output_shape: _Shape) -> Generator:
    """Return a new generator on the CPU; one draw from `generator` seeds its initial weights.

    Raises:
        SpecError: the images are too small.
    """
    _refuse_small(output_shape)
    return seeded(seed_from(generator), lambda: Generator(latent, width, output_shape))


def build_discriminator(generator: torch.Generator, width: int, input_shape: _Shape) -> PatchDiscriminator:
    """Return a new discriminator on the CPU; one draw from `generator` seeds its initial weights.

    Raises:
        SpecError: the images are too small.
    """
    _refuse_small(input_shape)
    return seeded(seed_from(generator), lambda: PatchDiscriminator(width, input_shape))


def build_projection_discriminator(
    generator: torch.Generator, width: int, input_shape: _Shape, classes: int
) -> ProjectionDiscriminator:
    """Return a new class-conditional discriminator on the CPU; one draw from `generator` seeds its initial weights.

    Raises:
        SpecError: the images are too small.
    """
    _refuse_small(input_shape)
    return seeded(seed_from(generator), lambda: ProjectionDiscriminator(width, input_shape, classes))


def _refuse_small(shape: _Shape) -> None:
    if min(shape[1:]) < SMALLEST_SIDE:
        size, remedy = f"{shape[1]}x{shape[2]}", f"Set it to {SMALLEST_SIDE} or more."
        raise SpecError("dataset.image_size", size, "is too small to be generated or judged", remedy)

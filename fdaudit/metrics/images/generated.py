"""Distances of generated samples to the records behind them, compared with similar records that were not used.

Realistic samples are near every image of their kind. Members and non-members are halves of matched pairs, divided by a
coin. A generator's knowledge of the population affects both halves equally; an excess for members comes from their
records.

Guarantees:
  * both halves have the same size, so the size-dependent bias of a Fréchet distance is the same;
  * exchanging the halves changes the sign of the gap, and a generator independent of the coins has a mean gap of 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import images, same_shape
from fdaudit.metrics.images.frechet import frechet_figure, frechet_to_subsets
from fdaudit.metrics.intervals import exceedance, mean_figure, unavailable
from fdaudit.types import Figure

__all__ = ["score_generated"]

_BATCH = 1024
_FLIPS = 99
"""Random exchanges of the halves of pairs, for the gap's p-value: it is at least 1 / 100."""
_ROUNDING = 1e-7
_MOST = 1000
"""Most generated samples in a Fréchet distance; of more, evenly spaced ones are used."""


def score_generated(
    generated: ArrayLike,
    members: ArrayLike,
    non_members: ArrayLike,
    encode: Callable[[torch.Tensor], torch.Tensor],
    generator: np.random.Generator,
) -> tuple[Figure, ...]:
    """Return Fréchet and nearest-neighbour distances of generated samples to both halves of matched pairs.

    Args:
        generated: (k, c, h, w) in [0, 1].
        members: (n, c, h, w), row i of pair i.
        non_members: (n, c, h, w), the other halves, in the same order.
        encode: a task encoder, (n, c, h, w) -> (n, d), for the Fréchet distances.
        generator: randomness of the exchanged halves and the bootstrap over pairs.

    Returns:
        `frechet_members`, `frechet_non_members`, `frechet_gap` (non-members less members: positive if the samples are
        nearer to the members) and `nearest_members`, `nearest_non_members`, `nearest_gap` in pixels.

    Raises:
        UsageError: the halves differ in size, or images are unsuitable.
    """
    samples = images(generated, "generated", torch.float32)
    inside = images(members, "members", torch.float32)
    outside = images(non_members, "non_members", torch.float32)
    if len(inside) != len(outside):
        raise UsageError(
            "non_members", len(outside), f"are not as many as members, {len(inside)}", "Give whole pairs."
        )
    same_shape(samples, inside, count=False)
    same_shape(inside, outside)
    return (
        *_frechet(samples, inside, outside, encode, generator),
        *_nearest(samples, inside, outside, generator),
    )


def _frechet(
    samples: torch.Tensor,
    inside: torch.Tensor,
    outside: torch.Tensor,
    encode: Callable[[torch.Tensor], torch.Tensor],
    generator: np.random.Generator,
) -> tuple[Figure, ...]:
    names = ("frechet_members", "frechet_non_members", "frechet_gap")
    if min(len(samples), len(inside)) < 2:
        why = "a distance between sets needs at least two images on each side"
        return tuple(unavailable(names, why))
    features = []
    for x in (samples[:: -(-len(samples) // _MOST)], inside, outside):
        parts = [encode(part).flatten(1).cpu() for part in x.split(_BATCH)]
        features.append(torch.cat(parts))
    g, a, b = features
    to_members, to_others = frechet_figure(g, a, names[0]), frechet_figure(g, b, names[1])
    gap = float(to_others.value or 0) - float(to_members.value or 0)
    # A row of the two halves one after the other is a pair's own half, or its other half.
    rows = np.arange(len(a)) + len(a) * (generator.random((_FLIPS, len(a))) < 0.5)
    to_first = frechet_to_subsets(g, torch.cat((a, b)), rows)
    to_second = frechet_to_subsets(g, torch.cat((b, a)), rows)
    # If the halves are equal, every gap is zero up to rounding.
    beyond = to_second - to_first >= gap - _ROUNDING * (to_first + to_second)
    p = exceedance(int(beyond.sum()), _FLIPS)
    note = (
        f"positive where generated samples lie nearer the members; one-sided p = {p:.3g} "
        f"by exchanging the halves of pairs at random, {_FLIPS} times"
    )
    return (to_members, to_others, Figure(name=names[2], value=gap, n=len(a), note=note))


def _nearest(
    samples: torch.Tensor, inside: torch.Tensor, outside: torch.Tensor, generator: np.random.Generator
) -> tuple[Figure, ...]:
    note = f"mean Euclidean distance in pixels to the nearest of {len(samples)} generated samples; n counts pairs"
    to_members, to_others = _distances(inside, samples), _distances(outside, samples)
    return (
        mean_figure("nearest_members", to_members, generator, note=note),
        mean_figure("nearest_non_members", to_others, generator, note=note),
        mean_figure("nearest_gap", to_others - to_members, generator, note=note),
    )


def _distances(x: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
    """Return the Euclidean distance (n,) of each image to the nearest sample."""
    nearest = torch.full((len(x),), torch.inf, dtype=torch.float64)
    for part in samples.flatten(1).double().split(_BATCH):
        nearest = torch.minimum(nearest, torch.cdist(x.flatten(1).double(), part).amin(1))
    return nearest

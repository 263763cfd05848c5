"""An outsider who tries seeds: does one of them explain the candidates or the records that it was handed?"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import torch

from fdaudit.data.stratify import apportion
from fdaudit.rng import child_seed

TRIED = 2**12
"""Seeds of a user that the attacker tries."""
PATHS: tuple[tuple[str, ...], ...] = (
    ("challenge", "client/0"),
    ("splits",),
    ("dataset",),
)


def seeds_of(seed: int) -> Iterable[int]:
    """Return a seed and the seeds that it gives by every former path."""
    return (seed, *(child_seed(seed, *path) for path in PATHS))


def guessed_seeds() -> Iterable[int]:
    """Torch seeds that an attacker tries: of every small seed by every path."""
    return itertools.chain.from_iterable(seeds_of(seed) for seed in range(TRIED))


def near_seeds(seed: int, bits: int, path: tuple[str, ...] = PATHS[0]) -> Iterable[int]:
    """All torch seeds that differ in their lowest bits from the former seed of a path, client/0's candidates first."""
    high = (child_seed(seed, *path) & 0xFFFFFFFF) >> bits << bits
    return (high + low for low in range(2**bits))


def members(pair: torch.Tensor, rows: list[int], seeds: Iterable[int]) -> torch.Tensor | None:
    """Return the members (n,) by a seed that explains the handout's numbers of pairs or its order, or None.

    Of the order the attacker knows that it shuffles members, then non-members, each in the order of the public dataset.
    """
    n, generator, place = len(pair), torch.Generator(), torch.tensor(rows)
    halves, wanted = torch.arange(n // 2).repeat(2), pair.tolist()
    for seed in seeds:
        order = torch.randperm(n, generator=generator.manual_seed(seed))
        unshuffled = place[order.argsort()].view(2, -1)
        explained = bool((unshuffled[:, 1:] > unshuffled[:, :-1]).all())
        renamed = torch.randperm(n // 2, generator=generator)[halves][order]
        if explained or renamed.tolist() == wanted:
            return order < n // 2
    return None


def former_sets(
    y: torch.Tensor, shares: Mapping[str, float], generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Sets as they once were drawn: test, public and auxiliary records, class by class."""
    rest, held = torch.arange(len(y)), {}
    for name in ("test", "proxy", "auxiliary"):
        taken = apportion(round(shares[name] * len(y)), torch.bincount(y[rest], minlength=10).tolist())
        drawn = torch.zeros(len(rest), dtype=torch.bool)
        for label, share in enumerate(taken):
            of_class = (y[rest] == label).nonzero().flatten()
            drawn[of_class[torch.randperm(len(of_class), generator=generator)[:share]]] = True
        held[name], rest = rest[drawn], rest[~drawn]
    return held


def seed_of_sets(
    y: torch.Tensor, shares: Mapping[str, float], auxiliary: set[int], seeds: Iterable[int]
) -> int | None:
    """A seed by which the auxiliary records are the ones that were handed out; it gives every other set away."""
    for seed in seeds:
        if (
            set(former_sets(y, shares, torch.Generator().manual_seed(seed))["auxiliary"].tolist())
            == auxiliary
        ):
            return seed
    return None


def rows_of(x: torch.Tensor, dataset: torch.Tensor) -> list[int]:
    """Return the rows of a dataset that hold the images."""
    found = {row.numpy().tobytes(): i for i, row in enumerate(dataset)}
    return [found[row.numpy().tobytes()] for row in x]

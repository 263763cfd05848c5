"""Galleries of records for the identification test, drawn from a run's dataset.

Guarantees:
  * a gallery contains no canary and no auxiliary, public or own record of the adversary;
  * records of a class are drawn without looking at images or guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.metrics import Bystanders, Gallery, Identification, Probe, Rank, identify

if TYPE_CHECKING:
    from fdaudit.planning.case import Case

__all__ = ["bystanders_of", "gallery_tests", "unused_records"]

_MOST = 100
"""Largest number of records of one class in addition to the true ones."""

_LEAST = 20
_VALUES = 1 << 24
"""Largest number of pixel values of all galleries together, unless galleries then had fewer than `_LEAST` records of a
class."""


def unused_records(case: Case, clients: Sequence[str]) -> Tensor:
    """Return which records (N,) none of these clients trains on, adversaries do not hold, and are no canaries."""
    splits = case.splits
    unused = torch.ones(len(case.dataset.y), dtype=torch.bool)
    unused[splits.auxiliary] = False
    unused[splits.proxy] = False
    for name, client in zip(case.clients, splits.clients, strict=True):
        unused[client.canaries] = False
        if name in clients:
            unused[client.train] = False
    return unused


def bystanders_of(case: Case, targets: Sequence[str]) -> Bystanders | None:
    """Return the records that no target trains on and that adversaries are not assumed to hold."""
    rows = unused_records(case, targets).nonzero().flatten()
    if not len(rows):
        return None
    data = case.dataset
    groups = data.known_groups
    labels = None if groups is None else groups[rows].numpy()
    return Bystanders(data.x, rows.numpy(), labels)


def gallery_tests(
    case: Case,
    guesses: Sequence[Reconstruction],
    records: Sequence[Tensor],
    members: Sequence[str],
    generator: np.random.Generator,
) -> Identification:
    """Test whether an attack's guesses identify records among others of their class.

    Args:
        case: the run's case.
        guesses: reconstructions, one a victim.
        records: for each guess the numbers (n,), in the dataset, of the records that it may show.
        members: the parties of the adversary.
        generator: draws the galleries, and records in place of the true ones.
    """
    data, splits = case.dataset, case.splits
    canaries = torch.cat([c.canaries for c in splits.clients])
    true = [rows[~torch.isin(rows, canaries)] for rows in records]
    own = [splits.auxiliary, splits.proxy]
    for name, split in zip(case.clients, splits.clients, strict=True):
        if name in members:
            own.append(split.train)
    of_adversary = torch.cat(own)
    group = data.known_groups
    if group is None:
        group = data.task.labels.groups(data.y)
    free = unused_records(case, members)
    rows = _chosen(free, torch.cat(true), group, data.x[0].numel(), generator)
    place = torch.full((len(data.y),), -1)
    place[rows] = torch.arange(len(rows))
    by_class = guesses[0].by_class and data.task.labels.one_class
    probes = []
    for guess, of_guess in zip(guesses, true, strict=True):
        labels = None
        if by_class and guess.labels is not None:
            labels = guess.labels.numpy()
        images = guess.images.float()
        probes.append(Probe(target=guess.target, guess=images, rows=place[of_guess].numpy(), labels=labels))
    identification = identify(_gallery(case, rows, group, of_adversary), probes, generator)
    ranks = _by_guess(identification, guesses, records, place, group, by_class)
    return replace(identification, ranks=ranks)


def _chosen(free: Tensor, true: Tensor, group: Tensor, values: int, generator: np.random.Generator) -> Tensor:
    """Return the records (N,) of galleries: true ones, and others of their classes up to a limit."""
    classes = torch.unique(group[true])
    most = min(_MOST, max(_LEAST, _VALUES // max(1, values * len(classes))))
    chosen = [true]
    for label in classes:
        others = (free & (group == label)).nonzero().flatten()
        others = others[~torch.isin(others, true)]
        order = torch.from_numpy(generator.permutation(len(others)))
        chosen.append(others[order[:most]])
    return torch.cat(chosen).sort().values


def _gallery(case: Case, rows: Tensor, group: Tensor, of_adversary: Tensor) -> Gallery:
    """Return the gallery of these records; with known identities, also the adversary's records of the same classes."""
    data = case.dataset
    whose = data.identities
    if whose is None:
        return Gallery(data.x[rows], group[rows].numpy())
    same_classes = torch.isin(group[of_adversary], group[rows])
    own = of_adversary[same_classes & (whose[of_adversary] >= 0)]
    photographs = None
    if len(own):
        photographs = Gallery(data.x[own], group[own].numpy(), whose[own].numpy())
    return Gallery(data.x[rows], group[rows].numpy(), whose[rows].numpy(), photographs)


def _by_guess(
    identification: Identification,
    guesses: Sequence[Reconstruction],
    records: Sequence[Tensor],
    place: Tensor,
    group: Tensor,
    by_class: bool,
) -> dict[str, dict[int, Rank]]:
    """Return ranks by a record's number among its victim's, or by class."""
    ranks: dict[str, dict[int, Rank]] = {}
    for guess, rows in zip(guesses, records, strict=True):
        own = identification.ranks.get(guess.target, {})
        keys = group[rows].tolist() if by_class else range(len(rows))
        ranks[guess.target] = {}
        for key, number in zip(keys, place[rows].tolist(), strict=True):
            if number in own:
                ranks[guess.target][key] = own[number]
    return ranks

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

__all__ = ["bystanders_of", "gallery_tests"]

_MOST = 100
"""Largest number of records of one class in addition to the true ones."""

_LEAST = 20
_VALUES = 1 << 24
"""Largest number of pixel values of all galleries together, unless galleries then had fewer than `_LEAST` records of a
class."""


def bystanders_of(case: Case, targets: Sequence[str]) -> Bystanders | None:
    """Return the records that no target trains on and that adversaries are not assumed to hold."""
    splits, data = case.splits, case.dataset
    own = [splits.clients[int(k.partition("/")[2])].train for k in targets]
    left = torch.ones(len(data.y), dtype=torch.bool)
    left[torch.cat([*own, *(c.canaries for c in splits.clients), splits.auxiliary, splits.proxy])] = False
    rows = left.nonzero().flatten()
    if not len(rows):
        return None
    known = data.known_groups
    return Bystanders(data.x, rows.numpy(), None if known is None else known[rows].numpy())


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
    true = [r[~torch.isin(r, canaries)] for r in records]
    own = [c.train for k, c in zip(case.clients, splits.clients, strict=True) if k in members]
    held = torch.cat([splits.auxiliary, splits.proxy, *own])
    free = torch.ones(len(data.y), dtype=torch.bool)
    free[torch.cat([held, canaries])] = False
    group = data.task.labels.groups(data.y) if data.known_groups is None else data.known_groups
    rows = _chosen(free, torch.cat(true), group, data.x[0].numel(), generator)
    place = torch.full((len(data.y),), -1)
    place[rows] = torch.arange(len(rows))
    by_class = guesses[0].by_class and data.task.labels.one_class
    probes = [
        Probe(
            target=g.target,
            guess=g.images.float(),
            rows=place[r].numpy(),
            labels=g.labels.numpy() if by_class and g.labels is not None else None,
        )
        for g, r in zip(guesses, true, strict=True)
    ]
    found = identify(_gallery(case, rows, group, held), probes, generator)
    return replace(found, ranks=_by_guess(found, guesses, records, place, group, by_class))


def _chosen(free: Tensor, true: Tensor, group: Tensor, values: int, generator: np.random.Generator) -> Tensor:
    """Return the records (N,) of galleries: true ones, and others of their classes up to a limit."""
    wanted = torch.unique(group[true])
    most = min(_MOST, max(_LEAST, _VALUES // max(1, values * len(wanted))))
    chosen = [true]
    for one in wanted:
        others = (free & (group == one)).nonzero().flatten()
        others = others[~torch.isin(others, true)]
        chosen.append(others[torch.from_numpy(generator.permutation(len(others))[:most])])
    return torch.cat(chosen).sort().values


def _gallery(case: Case, rows: Tensor, group: Tensor, held: Tensor) -> Gallery:
    """Return the gallery of these records; with known identities, also the adversary's records of the same classes."""
    data = case.dataset
    whose = data.identities
    if whose is None:
        return Gallery(data.x[rows], group[rows].numpy())
    known = held[torch.isin(group[held], group[rows]) & (whose[held] >= 0)]
    photographs = Gallery(data.x[known], group[known].numpy(), whose[known].numpy()) if len(known) else None
    return Gallery(data.x[rows], group[rows].numpy(), whose[rows].numpy(), photographs)


def _by_guess(
    found: Identification,
    guesses: Sequence[Reconstruction],
    records: Sequence[Tensor],
    place: Tensor,
    group: Tensor,
    by_class: bool,
) -> dict[str, dict[int, Rank]]:
    """Return ranks by a record's number among its victim's, or by class."""
    ranks: dict[str, dict[int, Rank]] = {}
    for guess, rows in zip(guesses, records, strict=True):
        own = found.ranks.get(guess.target, {})
        keys = group[rows].tolist() if by_class else range(len(rows))
        ranks[guess.target] = {k: own[p] for k, p in zip(keys, place[rows].tolist(), strict=True) if p in own}
    return ranks

"""Galleries of records, and scores of how well guesses show each record.

Guarantees:
  * a record's scores do not depend on whether it is a true one;
  * guesses of a class do not score records of other classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from fdaudit.metrics._arrays import Floats, Integers
from fdaudit.metrics.galleries.resemblance import resemblances

__all__ = ["Gallery", "Probe", "Scores", "score_identities", "score_records"]

_AVERAGE = 4
"""Number of true records of a class from which a guess of their average counts as showing none."""


@dataclass(frozen=True, eq=False)
class Gallery:
    """All records of a test, true ones included.

    Attributes:
        images: (N, c, h, w) in [0, 1].
        groups: (N,) the class of each, or another number that adversaries may know.
        identities: (N,) the person behind each record; None if unknown.
        held: records that adversaries hold with known identities; none of them is in `images`.
    """

    images: torch.Tensor
    groups: Integers
    identities: Integers | None = None
    held: Gallery | None = None

    @cached_property
    def pictures(self) -> Integers:
        """Return a number (N,) for each record, the same for equal images."""
        flat = np.ascontiguousarray(self.images.detach().cpu().numpy()).reshape(len(self.images), -1)
        # The bytes of an image count as one item, so that `unique` compares whole images.
        whole = flat.view(np.dtype((np.void, flat.dtype.itemsize * flat.shape[1]))).ravel()
        return np.unique(whole, return_inverse=True)[1].reshape(-1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Probe:
    """One target's guesses, and the records that they may show.

    Attributes:
        target: the target's name.
        guess: (m, c, h, w) in [0, 1].
        rows: (n,) indices of the true records in the gallery.
        labels: (m,) the class of each guess; None if a guess may show any true record.
    """

    target: str
    guess: torch.Tensor
    rows: Integers
    labels: Integers | None = None


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of every record by every probe's guesses; NaN for records without a score.

    Attributes:
        distances: names of the distances.
        best: (probes, distances, N) the largest resemblance of a guess to each record.
        margin: (probes, distances, N) its excess over an average of the guesses' resemblances.
        groups: (N,) the records' classes.
        kinds: (N,) records of one kind count as one.
    """

    distances: tuple[str, ...]
    best: Floats
    margin: Floats
    groups: Integers
    kinds: Integers


def score_records(gallery: Gallery, probes: Sequence[Probe], counts: Sequence[Mapping[int, int]]) -> Scores:
    """Score records by the guesses; a probe's guesses of one class do not score other classes.

    Args:
        gallery: the records.
        probes: the guesses.
        counts: for each probe, its number of true records of each class.
    """
    N = len(gallery.groups)
    guesses = torch.cat([p.guess for p in probes]).float()
    owner = np.repeat(np.arange(len(probes)), [len(p.guess) for p in probes])
    alike = resemblances(guesses, gallery.images) if N else {}
    best = np.full((len(probes), len(alike), N), np.nan)
    margin = np.full_like(best, np.nan)
    for group in np.unique(gallery.groups).tolist():
        rows = np.flatnonzero(gallery.groups == group)
        values = np.stack([of[:, rows] for of in alike.values()])
        for k, probe in enumerate(probes):
            own = values[:, owner == k]
            if probe.labels is not None:
                own = own[:, probe.labels == group]
            if own.shape[1]:
                ordered = largest = -np.sort(-own, axis=1)
                count = counts[k].get(group, 0)
                # If half as many guesses as a class has records all are its average, there is no margin.
                if count >= _AVERAGE:
                    largest = ordered[:, : (count + 1) // 2]
                best[k][:, rows] = ordered[:, 0]
                margin[k][:, rows] = ordered[:, 0] - largest.mean(1)
    return Scores(tuple(alike), best, margin, gallery.groups, gallery.pictures)


def score_identities(
    gallery: Gallery, probes: Sequence[Probe], counts: Sequence[Mapping[int, int]]
) -> Scores | None:
    """Score each record by the best of the held records of its identity and class; NaN if none is held."""
    reference, identities, N = gallery.held, gallery.identities, len(gallery.groups)
    if reference is None or reference.identities is None or identities is None:
        return None
    scores = score_records(reference, probes, counts)
    best = np.full((*scores.best.shape[:2], N), np.nan)
    margin = np.full_like(best, np.nan)
    for group, identity in np.unique(np.stack([gallery.groups, identities]), axis=1).T.tolist():
        rows = np.flatnonzero((gallery.groups == group) & (identities == identity))
        photographs = np.flatnonzero((reference.groups == group) & (reference.identities == identity))
        if len(photographs):
            best[..., rows] = scores.best[..., photographs].max(-1)[..., None]
            margin[..., rows] = scores.margin[..., photographs].max(-1)[..., None]
    return Scores(scores.distances, best, margin, gallery.groups, identities)

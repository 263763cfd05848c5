"""The second baseline of reconstruction: the attack's own images compared with unrelated records.

Images from the records' distribution resemble some of them without any leak: a public dataset, submitted as a guess,
may hold the records themselves. Such images resemble other records as well. So guesses are also matched with as many
bystanders: records from which no message of the target was computed, of the same classes as far as possible. A leak is
an excess over this baseline and over the prior (`fdaudit.metrics.images.prior`).

Guarantees:
  * no record of a guessed target is a bystander;
  * the images, their number and the matching are the attack's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fdaudit.metrics._arrays import Floats, Integers
from fdaudit.metrics.images.prior import Measure, one_after_another
from fdaudit.metrics.images.similarity import match

__all__ = ["OWN_IMAGES", "Bystanders", "stricter"]

OWN_IMAGES = "own images beside other records"
"""Name of the baseline if it is the stricter one."""

_DRAWS = 4


@dataclass(frozen=True, eq=False)
class Bystanders:
    """Records that no guess targets.

    Attributes:
        images: (N, c, h, w) in [0, 1], including other records; only drawn ones are copied.
        rows: (k,) indices of the bystanders, k >= 1.
        labels: (k,), or None for records without one class each.
    """

    images: torch.Tensor
    rows: Integers
    labels: Integers | None = None

    def of_class(self, label: int) -> Integers:
        """Return the indices of the bystanders of a class."""
        rows = self.rows[:0]
        if self.labels is not None:
            rows = self.rows[self.labels == label]
        return rows

    def draw(self, n: int, labels: Integers | None, generator: np.random.Generator) -> torch.Tensor:
        """Draw records (n, c, h, w), of these labels (n,) if possible, without repetition as long as possible."""
        chosen = np.full(n, -1, dtype=np.int64)
        if labels is not None and self.labels is not None:
            for label in np.unique(labels).tolist():
                places = np.flatnonzero(labels == label)
                alike = generator.permutation(np.flatnonzero(self.labels == label))[: len(places)]
                chosen[places[: len(alike)]] = alike
        places = np.flatnonzero(chosen < 0)
        everybody = np.arange(len(self.rows))
        pool = np.setdiff1d(everybody, chosen)
        if len(pool) < len(places):
            pool = everybody
        chosen[places] = generator.choice(pool, len(places), replace=len(pool) < len(places))
        return self.images[torch.from_numpy(self.rows[chosen])].double()

    def draws(
        self, n: int, labels: Integers | None, generator: np.random.Generator
    ) -> Sequence[torch.Tensor]:
        """Return several draws of `n` records."""
        return [self.draw(n, labels, generator) for _ in range(_DRAWS)]

    def beside(
        self,
        batches: Sequence[tuple[torch.Tensor, Integers | None, int]],
        own: Mapping[str, Floats],
        measures: Sequence[Measure],
        generator: np.random.Generator,
    ) -> dict[str, Floats]:
        """Measure the likeness of guesses to matched bystanders, (draws, matched).

        Likenesses to bystanders are sorted like those to the batch's own records: the highest one takes the place of
        the most leaked record, and so on.

        Args:
            batches: guesses (m, c, h, w), the labels (n,) of the true records or None, and n.
            own: by measure, the guesses' likeness to their own records (matched,), batch after batch.
            measures: the measures of likeness.
            generator: draws the bystanders.
        """
        parts, start = list[dict[str, Floats]](), 0
        for guess, labels, n in batches:
            guesses, neighbours = [], []
            for records in self.draws(n, labels, generator):
                order = match(guess, records)
                guesses.append(guess[order[order >= 0]])
                neighbours.append(records[order >= 0])
            end = start + len(neighbours[0])
            parts.append({})
            for q in measures:
                closeness = q.sign * q.of(torch.cat(guesses), torch.cat(neighbours)).numpy()
                best_first = -np.sort(-closeness.reshape(_DRAWS, -1), axis=1)
                rank = np.argsort(np.argsort(-q.sign * own[q.name][start:end], kind="stable"))
                parts[-1][q.name] = q.sign * best_first[:, rank]
            start = end
        return one_after_another(parts)


def stricter(
    prior: dict[str, Floats],
    strategies: dict[str, tuple[str, ...]],
    beside: Mapping[str, Floats],
    measures: Sequence[Measure],
) -> tuple[dict[str, Floats], dict[str, tuple[str, ...]]]:
    """Return, for each measure, the better of prior and bystanders by their means, and its name."""
    stronger, names = dict(prior), dict(strategies)
    for q in measures:
        if q.sign * (beside[q.name].mean() - prior[q.name].mean()) > 0:
            stronger[q.name] = beside[q.name]
            names[q.name] = (OWN_IMAGES,)
    return stronger, names

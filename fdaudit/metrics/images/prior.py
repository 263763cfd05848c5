"""The prior baseline of reconstruction: guesses that an adversary can make from its auxiliary data only.

A guess that resembles the truth has leaked nothing if an adversary without the view could make a guess as close. The
baseline is the best of a few strategies that need only auxiliary data:

  * `grand-mean`: the mean auxiliary image, for every guess;
  * `class-mean`: the mean auxiliary image of each label's class;
  * `random`: auxiliary images drawn at random, of each label's class if labels are available. They are then matched to
    the truth like the attack's guesses.

Labels are those of the true batch if the adversary is assumed to know them, else draws from the auxiliary labels. For
each measure (PSNR, SSIM, ...) the strategy is chosen before the truth is used: batches of auxiliary data are held out
and guessed from the rest, and the best average wins.

Guarantees:
  * the choice depends on auxiliary data, batch sizes and the generator, not on the true images;
  * a held-out image never takes part in its own guess;
  * the baseline makes as many guesses as the attack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import Flags, Floats, Integers, images, integers
from fdaudit.metrics.images.similarity import match
from fdaudit.storage.cache import digest_of

__all__ = ["AuxiliaryPool", "ClassPriors", "Measure", "choose_strategies", "one_after_another", "varies"]

_TRIALS = 32
"""Batches of auxiliary data that are held out to choose a strategy."""


@dataclass(frozen=True)
class Measure:
    """A likeness of image pairs: maps (n, c, h, w) twice to (n,), and says which direction is closer."""

    name: str
    of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    higher_is_closer: bool

    @property
    def sign(self) -> int:
        """Return 1 if a higher value is closer, else -1."""
        return 1 if self.higher_is_closer else -1


def one_after_another(batches: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
    """Return the likeness of several batches, (draws, n) by measure each, as that of all images."""
    together = {}
    for name in batches[0]:
        together[name] = np.concatenate([batch[name] for batch in batches], axis=1)
    return together


def varies(strategy: str, labels: Integers | None) -> bool:
    """Return whether guesses by a strategy differ from draw to draw: unknown `labels` are drawn as well."""
    return strategy == "random" or (strategy == "class-mean" and labels is None)


class AuxiliaryPool:
    """Auxiliary images, and guesses made from them; pools of equal images and labels are equal.

    Args:
        auxiliary: (N, c, h, w) in [0, 1], N >= 2.
        labels: (N,), or None if the adversary has images without labels.

    Raises:
        UsageError: there are fewer than two images, pixels are outside [0, 1], or lengths differ.
    """

    def __init__(self, auxiliary: ArrayLike, labels: ArrayLike | None = None) -> None:
        self.images = images(auxiliary, "auxiliary", torch.float32)
        n = len(self.images)
        if n < 2:
            raise UsageError(
                "auxiliary", n, "is too few images", "Give at least two, or None for no auxiliary data."
            )
        self.labels: Integers | None = None if labels is None else integers(labels, "auxiliary_labels", n)
        self._sum = self.images.sum(0, dtype=torch.float64)
        self._of_class: dict[int, Integers] = {}
        self._class_sum: dict[int, torch.Tensor] = {}
        if self.labels is not None:
            for label in np.unique(self.labels).tolist():
                index = np.flatnonzero(self.labels == label)
                self._of_class[label] = index
                self._class_sum[label] = self.images[torch.from_numpy(index)].sum(0, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.images)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AuxiliaryPool) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> str:
        """Return the digest of images and labels."""
        labels = {} if self.labels is None else {"labels": torch.from_numpy(self.labels)}
        return digest_of({"what": "auxiliary pool"}, {"images": self.images, **labels})

    def generator(self) -> np.random.Generator:
        """Return the generator for properties of the pool itself, the same for every caller."""
        return np.random.default_rng(int(self.digest[:15], 16))

    @property
    def strategies(self) -> tuple[str, ...]:
        """Return the strategies that these auxiliary data allow."""
        return ("grand-mean", "random") if self.labels is None else ("class-mean", "grand-mean", "random")

    def guess(
        self,
        strategy: str,
        m: int,
        labels: Integers | None,
        generator: np.random.Generator,
        held_out: Integers | None = None,
    ) -> torch.Tensor:
        """Return `m` guesses, (m, c, h, w) float64.

        Args:
            strategy: one of `strategies`.
            m: number of guesses.
            labels: labels that the adversary knows to be in the batch, repeated in turn to make `m`; None if it knows
                none.
            generator: randomness of the draws.
            held_out: indices of auxiliary images that may not be used.
        """
        out = np.zeros(len(self), dtype=np.bool_)
        if held_out is not None:
            out[held_out] = True
        if strategy == "grand-mean":
            return self._mean(self._sum, len(self), np.flatnonzero(out)).expand(m, -1, -1, -1)
        if self.labels is None:
            anything = np.flatnonzero(~out)
            return self._images(generator.choice(anything, size=m, replace=m > len(anything)))
        classes = generator.choice(self.labels[~out], size=m) if labels is None else np.resize(labels, m)
        if strategy == "class-mean":
            return torch.stack([self._class_mean(label, out) for label in classes.tolist()])
        chosen = np.empty(len(classes), dtype=np.int64)
        for label in np.unique(classes).tolist():
            places = np.flatnonzero(classes == label)
            index = self._of_class.get(label, np.empty(0, dtype=np.int64))
            index = index[~out[index]]
            if not len(index):
                index = np.flatnonzero(~out)
            chosen[places] = generator.choice(index, size=len(places), replace=len(places) > len(index))
        return self._images(chosen)

    def _mean(self, total: torch.Tensor, n: int, without: Integers) -> torch.Tensor:
        less = self.images[torch.from_numpy(without)].sum(0, dtype=torch.float64)
        # Clamped: a difference of sums may leave [0, 1] by rounding.
        return ((total - less) / (n - len(without))).clamp(0, 1)

    def _class_mean(self, label: int, out: Flags) -> torch.Tensor:
        index = self._of_class.get(label, np.empty(0, dtype=np.int64))
        without = index[out[index]]
        if len(index) == len(without):
            return self._mean(self._sum, len(self), np.flatnonzero(out))
        return self._mean(self._class_sum[label], len(index), without)

    def _images(self, index: Integers) -> torch.Tensor:
        return self.images[torch.from_numpy(index)].double()


class ClassPriors:
    """Auxiliary images, by the class to be guessed.

    Args:
        auxiliary: (N, c, h, w) in [0, 1], N >= 2.
        labels: (N,), or None.
        withheld: sets of classes. A class in one of them is guessed without the images of that set's classes, any other
            class from all images.

    Attributes:
        images: all images (N, c, h, w).
        strategies: the strategies that they allow.

    Raises:
        UsageError: as `AuxiliaryPool`; or classes are withheld but images have no labels.
    """

    def __init__(
        self, auxiliary: ArrayLike, labels: ArrayLike | None = None, withheld: Sequence[Sequence[int]] = ()
    ) -> None:
        self._all = AuxiliaryPool(auxiliary, labels)
        self.images, self.strategies = self._all.images, self._all.strategies
        self._lacking: dict[int, AuxiliaryPool] = {}
        of = self._all.labels
        for classes in withheld:
            if of is None:
                problem, remedy = "are not known, so no class can be withheld", "Give labels."
                raise UsageError("auxiliary_labels", None, problem, remedy)
            rows = np.flatnonzero(~np.isin(of, list(classes)))
            pool = AuxiliaryPool(self.images[torch.from_numpy(rows)], of[rows])
            self._lacking |= dict.fromkeys(map(int, classes), pool)

    def of(self, label: int) -> AuxiliaryPool:
        """Return the pool from which a class is guessed."""
        return self._lacking.get(label, self._all)

    def guess(self, strategy: str, labels: Integers, generator: np.random.Generator) -> torch.Tensor:
        """Return a guess for each label, (m, c, h, w) float64.

        Args:
            strategy: one of `strategies`.
            labels: (m,) the guessed classes.
            generator: randomness of the draws.
        """
        pools = [self.of(label) for label in labels.tolist()]
        guesses = torch.empty(len(labels), *self.images.shape[1:], dtype=torch.float64)
        for pool in dict.fromkeys(pools):
            rows = np.flatnonzero([p == pool for p in pools])
            guesses[torch.from_numpy(rows)] = pool.guess(strategy, len(rows), labels[rows], generator)
        return guesses


def choose_strategies(
    pool: AuxiliaryPool,
    n: int,
    m: int,
    measures: tuple[Measure, ...],
    generator: np.random.Generator,
    *,
    labels_known: bool,
) -> Mapping[str, str]:
    """Return the strategy for each measure, for a batch of `n` images with `m >= n` guesses.

    In each trial `n` auxiliary images (at most half of them) are held out at random. Every strategy guesses them from
    the rest; guesses are matched and measured. The best mean over trials wins; in a tie, the first of
    `pool.strategies`.
    """
    size = min(n, len(pool) // 2)
    matched, truths = list[torch.Tensor](), list[torch.Tensor]()
    for _ in range(_TRIALS):
        rows = generator.choice(len(pool), size=size, replace=False)
        truth = pool.images[torch.from_numpy(rows)].double()
        labels = pool.labels[rows] if labels_known and pool.labels is not None else None
        for strategy in pool.strategies:
            guess = pool.guess(strategy, m, labels, generator, rows)
            matched.append(guess[match(guess, truth)])
            truths.append(truth)
    chosen = {}
    for q in measures:
        # All trials are measured in one call; a row is a trial, a column a strategy.
        values = q.of(torch.cat(matched), torch.cat(truths)).view(_TRIALS, len(pool.strategies), size)
        totals = values.mean((0, 2)).numpy()
        chosen[q.name] = pool.strategies[int((q.sign * totals).argmax())]
    return chosen

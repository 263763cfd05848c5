"""Class-level reconstructions judged by an evaluator: its accuracy on them, and distances in its features.

An evaluator is a classifier that neither the attack nor the federation has used. The share of guesses that it assigns
to their claimed classes measures how well a model revealed its classes (Zhang et al., "The Secret Revealer", CVPR
2020). It is reported with the share by chance, and the share of guesses made from auxiliary data only.

Chance is exact if classes were withheld: an adversary that has never seen them cannot know the name of each. Without a
leak every assignment of the withheld names to the withheld classes is equally likely, for all images. The p-value is
the share of assignments with at least as many right guesses.

Guarantees:
  * without a leak P(p <= α) <= α, for all images, evaluators and class frequencies;
  * a guess that several targets share counts once;
  * distances to a target's records and to bystanders are taken to as many records of the same class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain, permutations
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import Integers, images, integers, same_shape
from fdaudit.metrics.images.bystanders import Bystanders
from fdaudit.metrics.images.frechet import frechet_distance
from fdaudit.metrics.images.prior import ClassPriors
from fdaudit.metrics.intervals import exceedance, mean_figure, share_figure, unavailable
from fdaudit.types import Figure

__all__ = ["Judge", "relabelled_p_value", "score_class_evaluation"]

_DRAWS = 8
"""Draws of random strategies and of bystanders."""
_MOST_EXACT = 5_040
"""Most assignments of one set of withheld names that are all tried; otherwise `_SAMPLED` are drawn."""
_SAMPLED = 19_999


@dataclass(frozen=True)
class Judge:
    """An evaluator.

    Attributes:
        name: name in notes.
        classify: maps images (n, c, h, w) to classes (n,).
        features: maps images (n, c, h, w) to features (n, d).
    """

    name: str
    classify: Callable[[torch.Tensor], torch.Tensor]
    features: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, eq=False)
class _JudgedClass:
    """A target: its records, and the guesses of classes that it holds, (m, c, h, w) and (m,)."""

    guess: torch.Tensor
    labels: Integers
    records: torch.Tensor
    of: Integers

    def place(self, label: int) -> torch.Tensor:
        """Return the rows of the target's records of a class."""
        return torch.from_numpy(np.flatnonzero(self.of == label))


def score_class_evaluation(
    guess_images: Sequence[Any],
    guess_labels: Sequence[Any],
    true_images: Sequence[Any],
    true_labels: Sequence[Any],
    judge: Judge,
    generator: np.random.Generator,
    *,
    priors: ClassPriors | None = None,
    withheld: Sequence[Sequence[int]] = (),
    bystanders: Bystanders | None = None,
    together: bool = True,
    confidence: float = 0.95,
) -> tuple[Figure, ...]:
    """Score guesses of classes, one list entry per target.

    Args:
        guess_images: (m, c, h, w) in [0, 1] for each target.
        guess_labels: (m,) the class of each guess.
        true_images: (n, c, h, w) all records of each target.
        true_labels: (n,) their classes.
        judge: the evaluator.
        generator: for draws and bootstraps.
        priors: guesses that are possible without the view, or None.
        withheld: sets of classes, each withheld from a different adversary; without any there is no p-value.
        bystanders: records that trained no party and no evaluator, or None.
        together: whether these are all targets of an attack. A subset has no p-value, so that an attack is one test,
            and no distance between sets.
        confidence: level of every interval.

    Returns:
        `evaluator_accuracy` with its p-value, `evaluator_chance`, `evaluator_prior`; `evaluator_nearest`,
        `evaluator_nearest_bystanders`, `evaluator_nearest_gap`; `labelled_frechet`, `labelled_frechet_prior`. None if
        no target holds a guessed class.

    Raises:
        UsageError: images and labels do not match.
    """
    targets = []
    for guess, claimed, truth, labels in zip(
        guess_images, guess_labels, true_images, true_labels, strict=True
    ):
        guesses = images(guess, "guess_images", torch.float32)
        records = images(truth, "true_images", torch.float32)
        same_shape(guesses, records, count=False)
        classes = integers(claimed, "guess_labels", len(guesses))
        true_classes = integers(labels, "true_labels", len(records))
        rows = np.flatnonzero(np.isin(classes, true_classes))
        if len(rows):
            shown = guesses[torch.from_numpy(rows)]
            targets.append(_JudgedClass(shown, classes[rows], records, true_classes))
    if not targets:
        return ()
    figures = (
        *_accuracy(targets, judge, priors, withheld, generator, confidence),
        *_nearest(targets, judge, bystanders, generator, confidence),
    )
    if not together:
        return tuple(replace(figure, p=None) for figure in figures)
    return (*figures, *_frechet(targets, judge, priors, generator))


# -- accuracy ---------------------------------------------------------------------------------------------------


def relabelled_p_value(
    claimed: ArrayLike, taken: ArrayLike, withheld: Sequence[Sequence[int]], generator: np.random.Generator
) -> tuple[float, float]:
    """Return the probability that chance does as well, and its expected share of right guesses.

    Args:
        claimed: (n,) the class that each guess claims, each in one of the sets.
        taken: (n,) the class that the evaluator assigns to each.
        withheld: disjoint sets of classes; within each, names are reassigned.
        generator: draws assignments if a set has too many to try them all.

    Returns:
        P(right guesses >= those seen), and E[right guesses] / n.

    Raises:
        UsageError: a claimed class is in none of the sets.
    """
    of, judged = integers(claimed, "claimed"), integers(taken, "taken")
    if not np.isin(of, list(chain.from_iterable(withheld))).all():
        raise UsageError("withheld", withheld, "leaves out a class that is claimed", "Name all of them.")
    tables, by_chance = [], 0.0
    for one in withheld:
        if len(one):
            table = _table(of, judged, np.sort(np.array(one, dtype=np.int64)))
            tables.append(table)
            # A name falls on each class of its set with the same chance.
            by_chance += float(table.sum()) / len(table)
    expected = by_chance / len(of)
    reached = int((of == judged).sum())
    if all(math.factorial(len(t)) <= _MOST_EXACT for t in tables):
        # Sets are named independently: the numbers of right guesses add, so their distributions convolve.
        chances = []
        for table in tables:
            names = np.array(list(permutations(range(len(table)))))
            right = table[np.arange(len(table)), names].sum(1)
            chances.append(np.bincount(right, minlength=int(table.sum()) + 1) / len(names))
        return float(reduce(np.convolve, chances)[reached:].sum()), expected
    hits = np.zeros(_SAMPLED, dtype=np.int64)
    for table in tables:
        rows = np.arange(len(table))
        orders = generator.permuted(np.tile(rows, (_SAMPLED, 1)), axis=1)
        hits += table[rows, orders].sum(1)
    return exceedance(int((hits >= reached).sum()), _SAMPLED), expected


def _table(claimed: Integers, taken: Integers, classes: Integers) -> Integers:
    """Return a table of the guesses by claimed class (rows) and assigned class (columns)."""
    rows = np.searchsorted(classes, claimed).clip(0, len(classes) - 1)
    columns = np.searchsorted(classes, taken).clip(0, len(classes) - 1)
    both = (classes[rows] == claimed) & (classes[columns] == taken)
    table = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(table, (rows[both], columns[both]), 1)
    return table


def _accuracy(
    targets: Sequence[_JudgedClass],
    judge: Judge,
    priors: ClassPriors | None,
    withheld: Sequence[Sequence[int]],
    generator: np.random.Generator,
    confidence: float,
) -> Iterator[Figure]:
    # A guess that several targets share counts once.
    guess = torch.cat([t.guess for t in targets])
    claimed = np.concatenate([t.labels for t in targets])
    labelled = torch.cat([torch.from_numpy(claimed).float()[:, None], guess.flatten(1)], 1).numpy()
    first = np.sort(np.unique(labelled, axis=0, return_index=True)[1])
    guess, claimed = guess[torch.from_numpy(first)], claimed[first]
    verdicts = judge.classify(guess).numpy()
    right, n = int((verdicts == claimed).sum()), len(claimed)
    p = chance = None
    naming = "no class was withheld, so no p"
    if withheld:
        p, chance = relabelled_p_value(claimed, verdicts, withheld, generator)
        naming = "p over all ways to name the withheld classes"
    records, classes = [], []
    for target in targets:
        guessed = np.isin(target.of, target.labels)
        records.append(target.records[torch.from_numpy(guessed)])
        classes.append(target.of[guessed])
    recognised = float((judge.classify(torch.cat(records)).numpy() == np.concatenate(classes)).mean())
    note = f"share of guesses that {judge.name} takes for the class they claim; of the true records {recognised:.0%}"
    note += f"; {naming}"
    yield share_figure("evaluator_accuracy", right, n, confidence, note=note, p=p)
    if chance is None:
        why = "no class was withheld from the adversary, so chance is not defined"
        yield from unavailable(["evaluator_chance"], why, "fraction")
    else:
        note = "names of withheld classes at random"
        yield Figure(name="evaluator_chance", value=chance, unit="fraction", n=n, note=note)
    if priors is None:
        why = "no auxiliary data were given, so there is no prior to compare with"
        yield from unavailable(["evaluator_prior"], why, "fraction")
    else:
        yield _prior_accuracy(priors, claimed, judge, generator)


def _prior_accuracy(
    priors: ClassPriors, claimed: Integers, judge: Judge, generator: np.random.Generator
) -> Figure:
    """Return the best strategy's share of right guesses."""
    shares = dict[str, float]()
    for strategy in priors.strategies:
        draws = _DRAWS if strategy == "random" else 1
        guesses = [priors.guess(strategy, claimed, generator).float() for _ in range(draws)]
        verdicts = judge.classify(torch.cat(guesses)).numpy()
        shares[strategy] = float((verdicts == np.tile(claimed, draws)).mean())
    best = max(shares, key=lambda s: shares[s])
    note = f"strategy {best}, the best of {len(shares)}"
    return Figure(name="evaluator_prior", value=shares[best], unit="fraction", n=len(claimed), note=note)


# -- distances --------------------------------------------------------------------------------------------------


def _nearest(
    targets: Sequence[_JudgedClass],
    judge: Judge,
    bystanders: Bystanders | None,
    generator: np.random.Generator,
    confidence: float,
) -> Iterator[Figure]:
    """Yield distances of guesses to the nearest record and to the nearest of as many bystanders of their class."""
    names = ("evaluator_nearest", "evaluator_nearest_bystanders", "evaluator_nearest_gap")
    strange = dict[int, torch.Tensor]()  # features of bystanders, by class
    if bystanders is not None:
        for label in _labels(targets):
            rows = bystanders.of_class(label)
            if len(rows):
                strange[label] = judge.features(bystanders.images[torch.from_numpy(rows)].float())
    pairs = list[tuple[float, float, int]]()
    for target in targets:
        pairs += _distances(target, judge, strange, generator)
    if not pairs:
        why = "no record of these classes is left that nobody trained on"
        yield from unavailable(names, why)
        return
    own, other, groups = (np.array(column) for column in zip(*pairs, strict=True))
    note = "Euclidean, in the evaluator's features, to the nearest of as many records of the class; n counts classes"
    for name, values in zip(names, (own, other, other - own), strict=True):
        yield mean_figure(name, values, generator, groups=groups, note=note, confidence=confidence)


def _labels(targets: Sequence[_JudgedClass]) -> list[int]:
    """Return the classes that are guessed of any target, in their order."""
    labels: list[int] = np.unique(np.concatenate([t.labels for t in targets])).tolist()
    return labels


def _distances(
    target: _JudgedClass, judge: Judge, strange: Mapping[int, torch.Tensor], generator: np.random.Generator
) -> Iterator[tuple[float, float, int]]:
    """Yield, by guess, the distance to the target's records, to bystanders, and the class; skip classes without any."""
    features, own = judge.features(target.guess), judge.features(target.records)
    for row, label in enumerate(target.labels.tolist()):
        if label not in strange:
            continue
        parts = own[target.place(label)], strange[label]
        size = min(map(len, parts))
        near = []
        for part in parts:
            distances = []
            for _ in range(_DRAWS):
                subset = part[torch.from_numpy(generator.permutation(len(part))[:size])]
                distances.append(float((subset - features[row]).norm(dim=1).min()))
            near.append(float(np.mean(distances)))
        yield near[0], near[1], label


def _frechet(
    targets: Sequence[_JudgedClass], judge: Judge, priors: ClassPriors | None, generator: np.random.Generator
) -> Iterator[Figure]:
    """Yield the mean over classes of the Fréchet distance between guesses and records of a class."""
    labels = _labels(targets)
    records, guesses = {}, {}
    for c in labels:
        own, claimed = [], []
        for t in targets:
            if c in t.labels:
                own.append(t.records[t.place(c)])
            claimed.append(t.guess[torch.from_numpy(t.labels == c)])
        records[c], guesses[c] = judge.features(torch.cat(own)), judge.features(torch.cat(claimed))
    names = ("labelled_frechet", "labelled_frechet_prior")
    usable = [c for c in labels if len(records[c]) >= 2]
    note = (
        "mean over classes of the Fréchet distance, in the evaluator's features, between the guesses and the records "
        "of a class; a single guess is a point; no FID"
    )
    if not usable:
        yield from unavailable(names, "needs two records of a class")
        return
    distance = float(np.mean([_apart(guesses[c], records[c]) for c in usable]))
    yield Figure(name=names[0], value=distance, n=len(usable), note=note)
    if priors is None:
        yield from unavailable(names[1:], "no auxiliary data were given")
        return
    means = []
    for strategy in priors.strategies:
        distances = []
        for c in usable:
            shown = priors.guess(strategy, np.full(len(guesses[c]), c), generator).float()
            distances.append(_apart(judge.features(shown), records[c]))
        means.append(float(np.mean(distances)))
    yield Figure(name=names[1], value=min(means), n=len(usable), note="the best strategy's")


def _apart(shown: torch.Tensor, records: torch.Tensor) -> float:
    """Return the Fréchet distance; the covariance of a single guess is zero."""
    if len(shown) < 2:
        shown = shown.repeat(2, 1)
    return frechet_distance(shown, records)

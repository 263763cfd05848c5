"""Scores of class-level reconstructions: guesses that show what records of a class look like.

Inversion of a whole model shows no single record, but the model's knowledge of a class. So each guessed image is
compared with the nearest record (least squared error) of its class that the target holds. The prior baseline makes as
many guesses of the same classes from auxiliary data only (`fdaudit.metrics.images.prior`). Each of its guesses has its
own nearest record.

The baseline's strategy is chosen, for each measure, on auxiliary data before the truth is used. For a class that
auxiliary data hold, one random half is guessed from the other. For a class that they lack, the choice is made by
leaving out an auxiliary class and guessing it from the remaining ones.

Guarantees:
  * a guess that equals a record of its class that its target holds has the ceiling's PSNR, for every such record;
  * a record of another class, or of another target, never improves a guess's score;
  * guesses of classes that a target does not hold are left out and counted in the note;
  * guesses of one class of one target resemble each other: they are resampled as one unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import Floats, Integers, images, integers, same_shape
from fdaudit.metrics.images.bystanders import Bystanders, stricter
from fdaudit.metrics.images.compared import Compared, ReconstructionScore, likenesses, size_notes
from fdaudit.metrics.images.prior import AuxiliaryPool, ClassPriors, Measure, one_after_another, varies
from fdaudit.metrics.intervals import unavailable

__all__ = ["nearest_records", "score_class_reconstruction"]

_TRIALS = 16
"""Times that auxiliary data are halved, or a class of them left out, to choose a strategy."""

_DRAWS = 16
"""Draws over which a random strategy is averaged on the true records."""

_PIXELS = 1 << 20
"""Pixels' differences held in memory at once."""


def nearest_records(guess: ArrayLike, records: ArrayLike) -> torch.Tensor:
    """Return, for each guess (m, c, h, w), the index (m,) of the record (n, c, h, w) with the least squared error.

    Raises:
        UsageError: images of different shapes, or pixels that are not finite or not in [0, 1].
    """
    guessed, true = images(guess, "guess"), images(records, "records")
    same_shape(guessed, true, count=False)
    return _nearest(guessed, true)


def _nearest(guess: torch.Tensor, records: torch.Tensor) -> torch.Tensor:
    """Return `nearest_records` for checked images, in parts that bound the memory."""
    nearest = []
    for part in guess.split(max(1, _PIXELS // records.numel())):
        errors = (records - part.unsqueeze(1)).square().flatten(2).sum(2)
        nearest.append(errors.argmin(1))
    return torch.cat(nearest)


@dataclass(frozen=True, eq=False)
class _ShownClass:
    """A target: the guesses of classes that it holds, and its records by class, as indices and images."""

    name: str
    guess: torch.Tensor
    kept: Integers
    labels: Integers
    left_out: int
    places: Mapping[int, Integers]
    records: torch.Tensor


_Pairs = tuple[torch.Tensor, torch.Tensor]
"""Guesses and their nearest records, (m, c, h, w) each."""


def _nearest_of_class(
    guess: torch.Tensor, labels: Integers, records: torch.Tensor, places: Mapping[int, Integers]
) -> Integers:
    """Return the indices (m,) of the nearest records of the guesses' classes (m,), which are at `places`."""
    indices = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels).tolist():
        rows, place = np.flatnonzero(labels == label), places[label]
        near = _nearest(guess[torch.from_numpy(rows)], records[torch.from_numpy(place)])
        indices[rows] = place[near.numpy()]
    return indices


def _beside_nearest(
    guess: torch.Tensor, labels: Integers, records: torch.Tensor, places: Mapping[int, Integers]
) -> _Pairs:
    """Return guesses (m, c, h, w) with the record of its class that is nearest to each."""
    guess = guess.to(records.dtype)
    return guess, records[torch.from_numpy(_nearest_of_class(guess, labels, records, places))]


def _likeness(pairs: Sequence[_Pairs], measures: Sequence[Measure]) -> list[dict[str, Floats]]:
    """Return each measure (m,) for every set of pairs, all computed in one call."""
    ends = np.cumsum([len(guess) for guess, _ in pairs])
    guess, truth = torch.cat([g for g, _ in pairs]), torch.cat([t for _, t in pairs])
    likeness: list[dict[str, Floats]] = [{} for _ in pairs]
    for q in measures:
        parts = np.split(q.of(guess, truth).numpy(), ends[:-1])
        for own, part in zip(likeness, parts, strict=True):
            own[q.name] = part
    return likeness


def score_class_reconstruction(
    guess_images: Sequence[Any],
    guess_labels: Sequence[Any],
    true_images: Sequence[Any],
    true_labels: Sequence[Any],
    auxiliary: ArrayLike | None,
    generator: np.random.Generator,
    *,
    auxiliary_labels: ArrayLike | None = None,
    withheld: Sequence[Sequence[int]] = (),
    bystanders: Bystanders | None = None,
    targets: Sequence[str] | None = None,
    lpips_network: torch.nn.Module | None = None,
    confidence: float = 0.95,
) -> ReconstructionScore:
    """Score guesses of classes, one list entry per target.

    Args:
        guess_images: (m, c, h, w) in [0, 1] for each target.
        guess_labels: (m,) the class of each guess.
        true_images: (n, c, h, w) all records of each target.
        true_labels: (n,) their classes.
        auxiliary: (N, c, h, w) the adversary's own images, or None if it is assumed to have none.
        generator: randomness of the baseline's draws and the bootstrap.
        auxiliary_labels: (N,), or None.
        withheld: sets of classes, each withheld from a different adversary; `auxiliary` is the union of their images.
        bystanders: records that no guess targets, or None to compare with the prior only.
        targets: names of the targets; with two or more, the worst is reported.
        lpips_network: network from `fdaudit.metrics.load_lpips`; loaded by default.
        confidence: level of every interval.

    Returns:
        The figures of `score_reconstruction` by the same names, except the recovery of labels: a guessed class is not a
        recovered label. In `images`, `truth` is the nearest record's index among the target's.

    Raises:
        UsageError: batches, shapes or labels do not match, or pixels are outside [0, 1].
    """
    victims = _targets(guess_images, guess_labels, true_images, true_labels, targets)
    left_out = sum(t.left_out for t in victims)
    present = [t for t in victims if len(t.labels)]
    if not present:
        return _nothing(left_out)
    measures, lacking = likenesses(lpips_network, present[0].records.shape[1:])
    truths, places = [], []
    for number, t in enumerate(present):
        nearest = _nearest_of_class(t.guess, t.labels, t.records, t.places)
        truths.append(t.records[torch.from_numpy(nearest)])
        for record, guess in zip(nearest.tolist(), t.kept.tolist(), strict=True):
            places.append((t.name, number, record, guess))
    guesses = torch.cat([t.guess for t in present])
    (likeness,) = _likeness([(guesses, torch.cat(truths))], measures)
    prior: dict[str, Floats] | None = None
    strategies: dict[str, tuple[str, ...]] = {}
    if auxiliary is not None:
        priors = ClassPriors(auxiliary, auxiliary_labels, withheld)
        same_shape(priors.images, present[0].records, count=False)
        prior, strategies = _prior(priors, present, measures, generator)
    if prior is not None and bystanders is not None:
        beside = _beside(bystanders, present, measures, generator.spawn(1)[0])
        prior, strategies = stricter(prior, strategies, beside, measures)
    compared = Compared(
        measures=measures,
        lacking=lacking,
        likeness=likeness,
        prior=prior,
        strategies=strategies,
        places=places,
    )
    level = "class-level: each guess against the nearest record of its class that the target holds"
    if left_out:
        level += f"; {left_out} guesses of classes that a target does not hold left out"
    labels = np.concatenate([t.labels for t in present])
    figures = compared.figures(
        generator,
        most="nearest guess",
        best=lambda target, _batch, _record: f"a guess about {target}",
        notes=size_notes(*present[0].records.shape[-2:]),
        level=level,
        counted="n counts classes of targets",
        groups=np.array([batch for _, batch, *_ in compared.places]) * (1 + int(labels.max())) + labels,
        confidence=confidence,
    )
    return ReconstructionScore(
        images=compared.rows(), figures={f.name: f for f in figures}, strategies=strategies
    )


def _targets(
    guesses: Sequence[Any],
    guessed: Sequence[Any],
    truths: Sequence[Any],
    labels: Sequence[Any],
    names: Sequence[str] | None,
) -> list[_ShownClass]:
    counts = {len(guesses), len(guessed), len(truths), len(labels), len(names or guesses)}
    if counts != {len(guesses)} or not len(guesses):
        raise UsageError(
            "guess_images", sorted(counts), "differ in length or are empty", "Give one entry a target."
        )
    shown = []
    for k, (g, c, x, y) in enumerate(zip(guesses, guessed, truths, labels, strict=True)):
        image, records = images(g, "guess_images"), images(x, "true_images")
        same_shape(image, records, count=False)
        classes = integers(c, "guess_labels", len(image))
        true_classes = integers(y, "true_labels", len(records))
        rows = np.flatnonzero(np.isin(classes, true_classes))
        shown.append(
            _ShownClass(
                name=f"target {k}" if names is None else str(names[k]),
                guess=image[torch.from_numpy(rows)],
                kept=rows,
                labels=classes[rows],
                left_out=len(classes) - len(rows),
                places=_by_class(true_classes),
                records=records,
            )
        )
    return shown


def _by_class(labels: Integers) -> dict[int, Integers]:
    """Return the indices of each class."""
    return {label: np.flatnonzero(labels == label) for label in np.unique(labels).tolist()}


def _nothing(left_out: int) -> ReconstructionScore:
    why = f"class-level: no target holds a record of a class guessed at; {left_out} guesses left out"
    names = ["psnr_max", "psnr_prior_max"]
    for measure in ("psnr", "ssim", "mse", "lpips"):
        names += [measure, f"{measure}_prior", f"{measure}_gain"]
    figures = {figure.name: figure for figure in unavailable(names, why)}
    return ReconstructionScore(images=(), figures=figures, strategies={})


# -- the prior baseline -----------------------------------------------------------------------------------------


def _prior(
    priors: ClassPriors,
    targets: Sequence[_ShownClass],
    measures: Sequence[Measure],
    generator: np.random.Generator,
) -> tuple[dict[str, Floats], dict[str, tuple[str, ...]]]:
    """Return the baseline's likeness by measure, (draws, guesses), and the strategies used."""
    pools = {}
    for target in targets:
        for label in np.unique(target.labels).tolist():
            pool = priors.of(label)
            # Labels that are unknown may be those of any class.
            pools[label] = (pool, pool.labels is None or label in pool.labels)
    chosen = {}
    for case in dict.fromkeys(pools.values()):
        chosen[case] = _choose(*case, tuple(measures))
    played = {}
    for q in measures:
        played[q.name] = tuple(sorted({c[q.name] for c in chosen.values()}))
    strategies = sorted(set(chain.from_iterable(played.values())))
    pairs = []
    for target in targets:
        for s in strategies:
            # One draw of a strategy that does not vary shows all there is to see.
            for _ in range(_DRAWS if varies(s, target.labels) else 1):
                guess = priors.guess(s, target.labels, generator)
                pairs.append(_beside_nearest(guess.float(), target.labels, target.records, target.places))
    near = iter(_likeness(pairs, measures))
    values = list[dict[str, Floats]]()
    for target in targets:
        by_strategy, by_measure = {}, {}
        for s in strategies:
            count = _DRAWS if varies(s, target.labels) else 1
            by_strategy[s] = [next(near) for _ in range(count)]
        for q in measures:
            likeness = np.empty((_DRAWS, len(target.labels)))
            for i, label in enumerate(target.labels.tolist()):
                draws = by_strategy[chosen[pools[label]][q.name]]
                for k in range(_DRAWS):
                    likeness[k, i] = draws[k % len(draws)][q.name][i]
            by_measure[q.name] = likeness
        values.append(by_measure)
    return one_after_another(values), played


def _beside(
    bystanders: Bystanders,
    targets: Sequence[_ShownClass],
    measures: Sequence[Measure],
    generator: np.random.Generator,
) -> dict[str, Floats]:
    """Return the guesses' likeness to the nearest of as many bystanders of their class, (draws, guesses)."""
    parts = list[dict[str, Floats]]()
    for t in targets:
        labels = np.empty(len(t.records), dtype=np.int64)
        for label, places in t.places.items():
            labels[places] = label
        draws = bystanders.draws(len(labels), labels, generator)
        pairs = [_beside_nearest(t.guess, t.labels, strangers, t.places) for strangers in draws]
        near = _likeness(pairs, measures)
        parts.append({})
        for q in measures:
            parts[-1][q.name] = np.stack([n[q.name] for n in near])
    return one_after_another(parts)


@lru_cache(maxsize=8)
def _choose(pool: AuxiliaryPool, held: bool, measures: tuple[Measure, ...]) -> Mapping[str, str]:
    """Return the best strategy on auxiliary data for classes that they hold, or for classes that they lack."""
    generator = pool.generator()
    labels = np.zeros(len(pool), dtype=np.int64) if pool.labels is None else pool.labels
    classes = np.unique(labels)
    if not held and len(classes) < 2:
        return {q.name: "grand-mean" for q in measures}
    pairs: list[_Pairs] = []
    for _ in range(_TRIALS):
        if held:
            out = generator.permutation(len(pool))[: len(pool) // 2]
        else:
            out = np.flatnonzero(labels == generator.choice(classes))
        of = np.unique(labels[out])
        truth = pool.images[torch.from_numpy(out)].double()
        places = _by_class(labels[out])
        for strategy in pool.strategies:
            guess = pool.guess(strategy, len(of), of, generator, out)
            pairs.append(_beside_nearest(guess.float(), of, truth, places))
    near, best = _likeness(pairs, measures), {}
    for q in measures:
        # A row is a trial, a column a strategy.
        means = np.array([values[q.name].mean() for values in near]).reshape(_TRIALS, -1).mean(0)
        best[q.name] = pool.strategies[int((q.sign * means).argmax())]
    return best

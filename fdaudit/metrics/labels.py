"""Comparison of guessed labels and label distributions with the true ones.

Guarantees:
  * all three distances are 0 for equal distributions and not negative;
  * Chebyshev <= total variation, and 2 TV² <= KL (Pinsker) up to the smoothing of KL;
  * recovered labels are compared as multisets: their order does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import Floats, Integers, integers, vector
from fdaudit.metrics.intervals import joined, share_figure, unavailable
from fdaudit.types import Figure

__all__ = [
    "SMOOTHING",
    "chebyshev",
    "class_pools",
    "draw_like",
    "kl_divergence",
    "label_overlap",
    "label_recovery_figures",
    "score_label_distribution",
    "total_variation",
]

SMOOTHING = 1e-6
"""Mass added to every class of both distributions before KL, which is infinite where the guess has a zero."""

_SUM_SLACK = 1e-4


def _distribution(values: ArrayLike, field: str) -> Floats:
    array = vector(values, field)
    if not np.isfinite(array).all() or array.min() < -_SUM_SLACK or abs(array.sum() - 1) > _SUM_SLACK:
        raise UsageError(
            field, array.tolist(), "is not a distribution", "Give non-negative numbers that sum to 1."
        )
    array = np.clip(array, 0, None)
    return np.asarray(array / array.sum())


def _pair(truth: ArrayLike, guess: ArrayLike) -> tuple[Floats, Floats]:
    p, q = _distribution(truth, "truth"), _distribution(guess, "guess")
    if p.shape != q.shape:
        raise UsageError("guess", q.shape, f"does not match {len(p)} classes", "Give one number per class.")
    return p, q


def kl_divergence(truth: ArrayLike, guess: ArrayLike, smoothing: float = SMOOTHING) -> float:
    """Return KL(truth || guess) in nats of two distributions (C,), each smoothed to (p + λ) / (1 + C λ).

    With the default λ = 1e-6 a class that the guess misses entirely adds up to 13.8 nats per unit of mass.

    Raises:
        UsageError: not distributions over the same classes, or a smoothing that is not positive.
    """
    p, q = _pair(truth, guess)
    if not smoothing > 0:
        raise UsageError("smoothing", smoothing, "is not positive", "Give for example 1e-6.")
    total = 1 + len(p) * smoothing
    p, q = (p + smoothing) / total, (q + smoothing) / total
    # Not negative in exact arithmetic; rounding can make it negative for near-equal distributions.
    return max(0.0, float((p * np.log(p / q)).sum()))


def total_variation(truth: ArrayLike, guess: ArrayLike) -> float:
    """Return half the sum of absolute differences of two distributions (C,), in [0, 1].

    Raises:
        UsageError: not distributions over the same classes.
    """
    p, q = _pair(truth, guess)
    return float(np.abs(p - q).sum() / 2)


def chebyshev(truth: ArrayLike, guess: ArrayLike) -> float:
    """Return the largest absolute difference in one class of two distributions (C,), in [0, 1].

    Raises:
        UsageError: not distributions over the same classes.
    """
    p, q = _pair(truth, guess)
    return float(np.abs(p - q).max())


def score_label_distribution(
    truth: ArrayLike, guess: ArrayLike, prior: ArrayLike | None = None
) -> Mapping[str, Figure]:
    """Return KL, total variation and Chebyshev distances of a guess, each with that of the prior.

    Args:
        truth: (C,) the target's true class distribution.
        guess: (C,) the attack's guess.
        prior: (C,) the adversary's guess without the view, for example the class distribution of its auxiliary data;
            default: uniform.

    Returns:
        `label_kl`, `label_tv`, `label_chebyshev`, and each with `_prior`. They are exact distances for one target, so
        they have no interval.

    Raises:
        UsageError: not distributions over the same classes.
    """
    p, _ = _pair(truth, guess)
    reference, kind = np.full(len(p), 1 / len(p)), "uniform prior"
    if prior is not None:
        reference, kind = _distribution(prior, "prior"), "prior as given"
    figures = {}
    for name, distance, unit, note in (
        ("label_kl", kl_divergence, "nats", f"both smoothed by {SMOOTHING:g}"),
        ("label_tv", total_variation, "", ""),
        ("label_chebyshev", chebyshev, "", ""),
    ):
        for figure, answer, notes in (
            (name, guess, note),
            (f"{name}_prior", reference, joined(kind, note)),
        ):
            value = distance(truth, answer)
            figures[figure] = Figure(name=figure, value=value, unit=unit, n=1, note=notes)
    return figures


def label_overlap(guess: ArrayLike, truth: ArrayLike) -> int:
    """Return the number of labels that two multisets (m,) and (n,) share.

    Raises:
        UsageError: not vectors of whole numbers.
    """
    guessed, true = Counter(integers(guess, "guess").tolist()), Counter(integers(truth, "truth").tolist())
    return sum((guessed & true).values())


_DRAWS = 256


def label_recovery_figures(
    guesses: Sequence[Any] | None,
    truths: Sequence[Any] | None,
    auxiliary_labels: ArrayLike | None,
    generator: np.random.Generator,
    *,
    confidence: float = 0.95,
) -> list[Figure]:
    """Return the share of recovered labels, and the expected share from auxiliary data only.

    Args:
        guesses: (m,) labels for each batch, or None if the attack guesses none.
        truths: (n,) labels for each batch, or None if they are not given.
        auxiliary_labels: (N,) the adversary's own labels, or None.
        generator: randomness of the prior's draws.
        confidence: level of the interval.

    Returns:
        `labels_right` with a Clopper-Pearson interval, and `labels_right_prior`, the expected share for
        labels drawn from the auxiliary labels; unavailable with their reason if something is None.

    Raises:
        UsageError: batch counts differ, or labels are not whole numbers.
    """
    names = ("labels_right", "labels_right_prior")
    if guesses is None or truths is None:
        why = "no labels were guessed" if guesses is None else "the true labels were not given"
        return unavailable(names, why, "fraction")
    if len(guesses) != len(truths):
        raise UsageError("guesses", len(guesses), f"does not match {len(truths)} batches", "Pair them up.")
    total = sum(map(len, truths))
    right = 0
    for guess, truth in zip(guesses, truths, strict=True):
        right += label_overlap(guess, truth)
    note = "multiset overlap; interval takes the labels of a batch as independent"
    figure = share_figure(names[0], right, total, confidence, note=note)
    if auxiliary_labels is None:
        return [figure, *unavailable(names[1:], "no auxiliary labels were given", "fraction")]
    pool = integers(auxiliary_labels, "auxiliary_labels")
    shares = []
    for _ in range(_DRAWS):
        overlap = 0
        for guess, truth in zip(guesses, truths, strict=True):
            overlap += label_overlap(generator.choice(pool, size=len(guess)), truth)
        shares.append(overlap / total)
    value = float(np.mean(shares))
    note = f"as many labels drawn from the auxiliary data, mean of {_DRAWS} draws"
    return [figure, Figure(name=names[1], value=value, unit="fraction", n=total, note=note)]


def class_pools(labels: Integers, others: Integers) -> list[tuple[Integers, int]] | None:
    """Return, for each class of a batch, the rows of others of that class, and how many of them a like batch has.

    Args:
        labels: (n,) classes of the batch.
        others: (m,) classes of the records that like batches are drawn from.

    Returns:
        None if a class has fewer than twice as many rows as a batch needs: draws would be nearly the same.
    """
    pools = []
    for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
        rows = np.flatnonzero(others == label)
        if len(rows) < 2 * count:
            return None
        pools.append((rows, int(count)))
    return pools


def draw_like(pools: Sequence[tuple[Integers, int]], generator: np.random.Generator) -> Integers:
    """Return the rows of a random batch with the classes of `class_pools`, without repetition."""
    batch = []
    for rows, count in pools:
        batch.append(generator.choice(rows, count, replace=False))
    return np.concatenate(batch)

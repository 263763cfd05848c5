"""Scores of reconstructions: likeness to the truth after matching, compared with guesses from auxiliary data only.

Guarantees:
  * the mean is always reported with the most leaked image;
  * every likeness is compared with the prior baseline on the same true images with as many guesses
    (`fdaudit.metrics.images.prior`), or with the guesses' likeness to other records
    (`fdaudit.metrics.images.bystanders`) if that is higher. The gain is paired image by image;
  * everything reported is finite: PSNR above 100 dB counts as 100 dB, and the note says how often;
  * true images without a guess are counted in the notes. They are not scored as zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import Floats, Integers, images, integers, same_shape
from fdaudit.metrics.images.bystanders import Bystanders, stricter
from fdaudit.metrics.images.compared import (
    PSNR_CEILING,
    Compared,
    ReconstructionScore,
    likenesses,
    size_notes,
)
from fdaudit.metrics.images.prior import AuxiliaryPool, Measure, choose_strategies, one_after_another, varies
from fdaudit.metrics.images.similarity import match
from fdaudit.metrics.intervals import joined
from fdaudit.metrics.labels import label_recovery_figures

__all__ = ["score_reconstruction"]

_BATCHES = 10
"""Number of batches from which whole batches are resampled; fewer are too few."""

_DRAWS = 16
"""Draws over which a random strategy is averaged on the true images."""


@dataclass(frozen=True, eq=False)
class _Batch:
    """A batch after matching: `truth[kept]` lines up with `guess[order]`."""

    truth: torch.Tensor
    guess: torch.Tensor
    kept: Integers
    order: Integers
    labels: Integers | None


def score_reconstruction(
    guess_images: ArrayLike,
    true_images: ArrayLike,
    auxiliary: ArrayLike | None,
    generator: np.random.Generator,
    *,
    guess_labels: ArrayLike | None = None,
    true_labels: ArrayLike | None = None,
    auxiliary_labels: ArrayLike | None = None,
    labels_known: bool = True,
    bystanders: Bystanders | None = None,
    targets: Sequence[str] | None = None,
    lpips_network: torch.nn.Module | None = None,
    confidence: float = 0.95,
) -> ReconstructionScore:
    """Score guessed batches of images against the true ones.

    Args:
        guess_images: (m, c, h, w) in [0, 1], or a list of such batches.
        true_images: (n, c, h, w) in [0, 1], or a list of as many batches.
        auxiliary: (N, c, h, w) the adversary's own images, or None if it is assumed to have none.
        generator: randomness of the prior baseline's draws and the bootstrap.
        guess_labels: (m,) for each batch, or None.
        true_labels: (n,) for each batch, or None.
        auxiliary_labels: (N,), or None.
        labels_known: whether the prior baseline gets each batch's true labels, if they are given. True is the strong
            baseline: it measures leaks beyond the labels.
        bystanders: records that no guess targets, or None to compare with the prior only.
        targets: the owner of each batch; with two or more, the worst of them is reported.
        lpips_network: network from `fdaudit.metrics.load_lpips`; by default loaded once per call.
        confidence: level of every interval.

    Returns:
        Figures `psnr`, `ssim`, `mse`, `lpips` (means over matched images, BCa bootstrap over images, or over batches
        from ten batches on), each with `_prior` and `_gain` (positive: closer to the truth than the prior; paired
        bootstrap); `psnr_max` and `psnr_prior_max` (most leaked image, and the prior's luckiest); `psnr_worst_target`;
        `labels_right` and `labels_right_prior`. Figures that cannot be measured are unavailable with their reason.

    Raises:
        UsageError: batches, shapes or labels do not match, or pixels are outside [0, 1].
    """
    batches = _matched(guess_images, true_images, true_labels)
    names = list(map(str, targets)) if targets is not None else ["target"] * len(batches)
    if len(names) != len(batches):
        raise UsageError(
            "targets", len(names), f"names for {len(batches)} batches", "Name one target a batch."
        )
    measures, lacking = likenesses(lpips_network, batches[0].truth.shape[1:])
    likeness = {}
    for q in measures:
        parts = [q.of(b.guess[b.order], b.truth[b.kept]).numpy() for b in batches]
        likeness[q.name] = np.concatenate(parts)
    pool = None if auxiliary is None else AuxiliaryPool(auxiliary, auxiliary_labels)
    if pool is not None:
        same_shape(pool.images, batches[0].truth, count=False)
    prior, strategies = _prior(pool, batches, measures, generator, labels_known)
    if prior is not None and bystanders is not None:
        about = [(b.guess, b.labels, len(b.truth)) for b in batches]
        beside = bystanders.beside(about, likeness, measures, generator.spawn(1)[0])
        prior, strategies = stricter(prior, strategies, beside, measures)
    places = []
    for i, batch in enumerate(batches):
        for truth, guess in zip(batch.kept.tolist(), batch.order.tolist(), strict=True):
            places.append((names[i], i, truth, guess))
    compared = Compared(
        measures=measures,
        lacking=lacking,
        likeness=likeness,
        prior=prior,
        strategies=strategies,
        places=places,
    )
    groups, counted = None, "n counts images, taken as independent"
    if len(batches) >= _BATCHES:
        groups, counted = np.array([batch for _, batch, *_ in places]), "n counts batches"
    figures = compared.figures(
        generator,
        most="most leaked image",
        best=lambda target, batch, image: f"image {image} of batch {batch} ({target})",
        notes=_notes(batches, likeness["psnr"]),
        counted=counted,
        groups=groups,
        confidence=confidence,
    )
    figures += label_recovery_figures(
        _as_labels(guess_labels, "guess_labels", [len(b.guess) for b in batches]),
        [b.labels for b in batches if b.labels is not None] or None,
        auxiliary_labels,
        generator,
        confidence=confidence,
    )
    return ReconstructionScore(
        images=compared.rows(),
        figures={figure.name: figure for figure in figures},
        strategies=strategies,
    )


def _as_batches(values: ArrayLike, field: str) -> list[torch.Tensor]:
    if isinstance(values, (list, tuple)) and values and getattr(values[0], "ndim", 0) == 4:
        return [images(batch, field) for batch in values]
    return [images(values, field)]


def _as_labels(values: ArrayLike | None, field: str, sizes: list[int]) -> list[Integers] | None:
    if values is None:
        return None
    parts: list[ArrayLike] = [values]
    if isinstance(values, (list, tuple)) and values and getattr(values[0], "ndim", 0) == 1:
        parts = list(values)
    if len(parts) != len(sizes):
        raise UsageError(
            field, len(parts), f"does not match {len(sizes)} batches", "Give labels for each batch."
        )
    return [integers(part, field, size) for part, size in zip(parts, sizes, strict=True)]


def _matched(guess_images: ArrayLike, true_images: ArrayLike, true_labels: ArrayLike | None) -> list[_Batch]:
    guesses, truths = _as_batches(guess_images, "guess_images"), _as_batches(true_images, "true_images")
    if len(guesses) != len(truths):
        raise UsageError(
            "guess_images", len(guesses), f"does not match {len(truths)} true batches", "Pair them up."
        )
    labels = _as_labels(true_labels, "true_labels", list(map(len, truths)))
    batches = []
    for i, (guess, truth) in enumerate(zip(guesses, truths, strict=True)):
        same_shape(truths[0], truth, count=False)
        permutation = match(guess, truth).numpy()
        places = np.flatnonzero(permutation >= 0)
        own_labels = None if labels is None else labels[i]
        batches.append(_Batch(truth, guess, places, permutation[places], own_labels))
    return batches


@lru_cache(maxsize=32)
def _chosen(
    pool: AuxiliaryPool, n: int, m: int, labels_known: bool, measures: tuple[Measure, ...]
) -> Mapping[str, str]:
    """Return `choose_strategies`, computed once for each pool: it does not depend on any truth."""
    return choose_strategies(pool, n, m, measures, pool.generator(), labels_known=labels_known)


def _prior(
    pool: AuxiliaryPool | None,
    batches: list[_Batch],
    measures: tuple[Measure, ...],
    generator: np.random.Generator,
    labels_known: bool,
) -> tuple[dict[str, Floats] | None, dict[str, tuple[str, ...]]]:
    """Return the baseline's likeness by measure, (draws, images), and the strategies used."""
    if pool is None:
        return None, {}
    values = list[dict[str, Floats]]()
    played: dict[str, set[str]] = {q.name: set() for q in measures}
    for batch in batches:
        truth, labels = batch.truth[batch.kept], None
        if labels_known and batch.labels is not None:
            labels = batch.labels[batch.kept]
        chosen = _chosen(pool, len(truth), len(batch.guess), labels is not None, measures)
        lined_up: dict[str, list[torch.Tensor]] = {s: [] for s in sorted(set(chosen.values()))}
        for _ in range(_DRAWS):
            for strategy, draws in lined_up.items():
                if not draws or varies(strategy, labels):
                    guess = pool.guess(strategy, len(batch.guess), labels, generator)
                    draws.append(guess[match(guess, truth)])
        values.append({})
        for q in measures:
            strategy = chosen[q.name]
            draws = lined_up[strategy]
            likeness = q.of(torch.cat(draws), truth.repeat(len(draws), 1, 1, 1)).view(len(draws), len(truth))
            # One draw of a strategy that does not vary stands for all.
            values[-1][q.name] = likeness.numpy().repeat(_DRAWS // len(draws), axis=0)
            played[q.name].add(strategy)
    strategies: dict[str, tuple[str, ...]] = {}
    for name, used in played.items():
        strategies[name] = tuple(sorted(used))
    return one_after_another(values), strategies


def _notes(batches: list[_Batch], psnrs: Floats) -> dict[str, str]:
    """Return notes for readers, by measure."""
    n = sum(len(b.kept) for b in batches)
    true = sum(len(b.truth) for b in batches)
    guessed = sum(len(b.guess) for b in batches)
    common = ""
    if not n == true == guessed:
        common = f"{n} of {true} true images matched with one of {guessed} guesses"
    capped = int((psnrs >= PSNR_CEILING).sum())
    ceiling = f"{capped} at the ceiling of {PSNR_CEILING:g} dB" if capped else ""
    notes = {"psnr": ceiling, "mse": "", **size_notes(*batches[0].truth.shape[-2:])}
    return {name: joined(common, note) for name, note in notes.items()}

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
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import Floats, Integers, images, integers, same_shape
from fdaudit.metrics.images.bystanders import Bystanders, stricter
from fdaudit.metrics.images.perceptual import load_lpips, lpips_distance, lpips_note
from fdaudit.metrics.images.prior import AuxiliaryPool, Measure, choose_strategies
from fdaudit.metrics.images.similarity import match, mse, psnr, ssim, ssim_window
from fdaudit.metrics.images.weights import WeightsUnavailableError
from fdaudit.metrics.intervals import mean_figure
from fdaudit.metrics.labels import label_recovery_figures
from fdaudit.types import Figure

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PSNR_CEILING", "ImageScore", "ReconstructionScore", "likenesses", "score_reconstruction"]

PSNR_CEILING = 100.0
"""dB from which two images count as the same (an error of 1e-5, a 400th of an 8-bit grey level): what an
infinite PSNR counts for where means are taken."""

_BATCHES = 10
"""Number of batches from which whole batches are resampled; fewer are too few."""

_DRAWS = 16
"""Draws over which a random strategy is averaged on the true images."""


@dataclass(frozen=True, kw_only=True)
class ImageScore:
    """One true image and its guess.

    Attributes:
        target: the party that owns its batch.
        batch: index of the batch.
        truth: index of the true image in its batch.
        guess: index of its guess in the guessed batch.
        psnr: dB, at most `PSNR_CEILING`.
        ssim: in [-1, 1].
        mse: mean squared error.
        lpips: LPIPS, or None if unavailable.
        psnr_prior: dB of the prior baseline on this image, or None without auxiliary data.
    """

    target: str
    batch: int
    truth: int
    guess: int
    psnr: float
    ssim: float
    mse: float
    lpips: float | None
    psnr_prior: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class ReconstructionScore:
    """A comparison of a reconstruction with the truth.

    Attributes:
        images: every true image with a guess.
        figures: figures by name.
        strategies: the prior strategies used, by measure.
    """

    images: tuple[ImageScore, ...]
    figures: Mapping[str, Figure]
    strategies: Mapping[str, tuple[str, ...]]

    def table(self) -> pd.DataFrame:
        """Return `images` as a data frame, one row each."""
        import pandas as pd

        return pd.DataFrame([asdict(image) for image in self.images])


@dataclass(frozen=True, eq=False)
class _Batch:
    """A batch after matching: `truth[kept]` lines up with `guess[order]`."""

    truth: torch.Tensor
    guess: torch.Tensor
    kept: Integers
    order: Integers
    labels: Integers | None


def _capped_psnr(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return psnr(a, b).clamp(max=PSNR_CEILING)


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
    names = [str(t) for t in targets] if targets is not None else ["target"] * len(batches)
    if len(names) != len(batches):
        raise UsageError(
            "targets", len(names), f"names for {len(batches)} batches", "Name one target a batch."
        )
    measures, no_lpips = likenesses(lpips_network)
    got = {
        q.name: np.concatenate([q.of(b.guess[b.order], b.truth[b.kept]).numpy() for b in batches])
        for q in measures
    }
    pool = None if auxiliary is None else AuxiliaryPool(auxiliary, auxiliary_labels)
    if pool is not None:
        same_shape(pool.images, batches[0].truth, count=False)
    prior, strategies = _prior(pool, batches, measures, generator, labels_known)
    if prior is not None and bystanders is not None:
        about = [(b.guess, b.labels, len(b.truth)) for b in batches]
        beside = bystanders.beside(about, got, measures, generator.spawn(1)[0])
        prior, strategies = stricter(prior, strategies, beside, measures)
    figures = _summary(batches, measures, got, prior, strategies, generator, confidence)
    if no_lpips:
        for name in ("lpips", "lpips_prior", "lpips_gain"):
            figures.append(Figure(name=name, value=None, unavailable=no_lpips))
    figures += _worst(batches, names, got["psnr"], prior)
    figures += label_recovery_figures(
        _as_labels(guess_labels, "guess_labels", [len(b.guess) for b in batches]),
        [b.labels for b in batches if b.labels is not None] or None,
        auxiliary_labels,
        generator,
        confidence=confidence,
    )
    return ReconstructionScore(
        images=_rows(batches, names, got, prior),
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
    labels = _as_labels(true_labels, "true_labels", [len(t) for t in truths])
    out = []
    for i, (guess, truth) in enumerate(zip(guesses, truths, strict=True)):
        same_shape(truths[0], truth, count=False)
        permutation = match(guess, truth).numpy()
        kept = np.flatnonzero(permutation >= 0)
        out.append(_Batch(truth, guess, kept, permutation[kept], None if labels is None else labels[i]))
    return out


def likenesses(network: torch.nn.Module | None) -> tuple[tuple[Measure, ...], str]:
    """Return the available measures, and the reason if LPIPS is not among them."""
    measures = (Measure("psnr", _capped_psnr, True), Measure("ssim", ssim, True), Measure("mse", mse, False))
    try:
        loaded = load_lpips() if network is None else network
    except WeightsUnavailableError as error:
        return measures, str(error)
    return (*measures, Measure("lpips", _Lpips(loaded), False)), ""


@dataclass(frozen=True)
class _Lpips:
    """LPIPS by one network; two instances with the same network are equal."""

    network: torch.nn.Module

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return lpips_distance(a, b, self.network)


@lru_cache(maxsize=32)
def _chosen(
    pool: AuxiliaryPool, n: int, m: int, told: bool, measures: tuple[Measure, ...]
) -> Mapping[str, str]:
    """Return `choose_strategies`, computed once for each pool: it does not depend on any truth."""
    return choose_strategies(pool, n, m, measures, pool.generator(), labels_known=told)


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
    chosen: dict[tuple[int, int, bool], Mapping[str, str]] = {}
    values: dict[str, list[Floats]] = {q.name: [] for q in measures}
    played: dict[str, set[str]] = {q.name: set() for q in measures}
    for batch in batches:
        told = labels_known and batch.labels is not None
        key = (len(batch.kept), len(batch.guess), told)
        if key not in chosen:
            chosen[key] = _chosen(pool, *key, measures)
        truth = batch.truth[batch.kept]
        labels = batch.labels[batch.kept] if told and batch.labels is not None else None
        lined_up: dict[str, list[torch.Tensor]] = {s: [] for s in sorted(set(chosen[key].values()))}
        for _ in range(_DRAWS):
            for strategy, draws in lined_up.items():
                guess = pool.guess(strategy, len(batch.guess), labels, generator)
                draws.append(guess[match(guess, truth)])
        for q in measures:
            drawn, repeated = torch.cat(lined_up[chosen[key][q.name]]), truth.repeat(_DRAWS, 1, 1, 1)
            values[q.name].append(q.of(drawn, repeated).view(_DRAWS, len(truth)).numpy())
            played[q.name].add(chosen[key][q.name])
    joined = {name: np.concatenate(parts, axis=1) for name, parts in values.items()}
    return joined, {name: tuple(sorted(used)) for name, used in played.items()}


def _notes(batches: list[_Batch], got: Mapping[str, Floats]) -> dict[str, str]:
    """Return notes for readers, by measure."""
    height, width = batches[0].truth.shape[-2:]
    n, true, guessed = (
        sum(map(len, x)) for x in zip(*((b.kept, b.truth, b.guess) for b in batches), strict=True)
    )
    common = (
        [f"{n} of {true} true images matched with one of {guessed} guesses"]
        if not n == true == guessed
        else []
    )
    extra: dict[str, list[str]] = {"psnr": [], "ssim": [], "mse": [], "lpips": [lpips_note(height, width)]}
    capped = int((got["psnr"] >= PSNR_CEILING).sum())
    if capped:
        extra["psnr"].append(f"{capped} at the ceiling of {PSNR_CEILING:g} dB")
    if (window := ssim_window(height, width)) < 11:
        extra["ssim"].append(f"window {window}, the largest odd one that fits {height}x{width}")
    return {name: "; ".join(common + parts) for name, parts in extra.items()}


def _summary(
    batches: list[_Batch],
    measures: tuple[Measure, ...],
    got: Mapping[str, Floats],
    prior: Mapping[str, Floats] | None,
    strategies: Mapping[str, Sequence[str]],
    generator: np.random.Generator,
    confidence: float,
) -> list[Figure]:
    batch_of = np.repeat(np.arange(len(batches)), [len(b.kept) for b in batches])
    groups = batch_of if len(batches) >= _BATCHES else None
    counted = "n counts batches" if groups is not None else "n counts images, taken as independent"
    notes, out = _notes(batches, got), []

    def mean(name: str, values: Floats, unit: str, *parts: str) -> Figure:
        note = "; ".join(filter(None, [*parts, counted]))
        return mean_figure(
            name, values, generator, unit=unit, groups=groups, note=note, confidence=confidence
        )

    for q in measures:
        unit, values = "dB" if q.name == "psnr" else "", got[q.name]
        most = float(values.max() if q.higher_is_closer else values.min())
        out.append(mean(q.name, values, unit, f"most leaked image {most:.4g}", notes[q.name]))
        if prior is None:
            why = "no auxiliary data were given, so there is no prior to compare with"
            out += [
                Figure(name=q.name + s, value=None, unit=unit, unavailable=why) for s in ("_prior", "_gain")
            ]
            continue
        baseline = prior[q.name].mean(0)
        played = f"strategy {' and '.join(strategies[q.name])}"
        gain = values - baseline if q.higher_is_closer else baseline - values
        out.append(mean(f"{q.name}_prior", baseline, unit, played))
        out.append(
            mean(f"{q.name}_gain", gain, unit, f"largest {gain.max():.4g}; positive is closer than the prior")
        )
    return out


def _worst(
    batches: list[_Batch], names: list[str], got: Floats, prior: Mapping[str, Floats] | None
) -> list[Figure]:
    """Return the most leaked image, the prior's luckiest, and the target with the highest mean."""
    owner = np.repeat(np.arange(len(batches)), [len(b.kept) for b in batches])
    at = int(got.argmax())
    image, batch = int(np.concatenate([b.kept for b in batches])[at]), int(owner[at])
    note = f"image {image} of batch {batch} ({names[batch]}); highest of {len(got)}"
    out = [Figure(name="psnr_max", value=float(got[at]), unit="dB", n=len(got), note=note)]
    if prior is None:
        out.append(
            Figure(name="psnr_prior_max", value=None, unit="dB", unavailable="no auxiliary data were given")
        )
    else:
        luckiest = float(prior["psnr"].max(1).mean())
        note = f"highest of {len(got)}, mean over {len(prior['psnr'])} draws: compare psnr_max with this"
        out.append(Figure(name="psnr_prior_max", value=luckiest, unit="dB", n=len(got), note=note))
    of_target = np.asarray(names)[owner]
    means = {name: float(got[of_target == name].mean()) for name in sorted(set(of_target.tolist()))}
    if len(means) > 1:
        worst = max(means, key=lambda name: means[name])
        note = f"{worst}, highest mean of {len(means)} targets"
        n = int((of_target == worst).sum())
        out.append(Figure(name="psnr_worst_target", value=means[worst], unit="dB", n=n, note=note))
    return out


def _rows(
    batches: list[_Batch], names: list[str], got: Mapping[str, Floats], prior: Mapping[str, Floats] | None
) -> tuple[ImageScore, ...]:
    places = [
        (i, int(t), int(g)) for i, b in enumerate(batches) for t, g in zip(b.kept, b.order, strict=True)
    ]
    return tuple(
        ImageScore(
            target=names[batch],
            batch=batch,
            truth=truth,
            guess=guess,
            psnr=float(got["psnr"][j]),
            ssim=float(got["ssim"][j]),
            mse=float(got["mse"][j]),
            lpips=float(got["lpips"][j]) if "lpips" in got else None,
            psnr_prior=None if prior is None else float(prior["psnr"][:, j].mean()),
        )
        for j, (batch, truth, guess) in enumerate(places)
    )

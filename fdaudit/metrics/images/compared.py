"""Images compared: how like the truth guesses are, beside a baseline, as figures and as rows of a table.

Guarantees:
  * everything reported is finite: PSNR above 100 dB counts as 100 dB;
  * the mean is always reported with the most leaked image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fdaudit.metrics._arrays import Floats, Integers
from fdaudit.metrics.images.perceptual import load_lpips, lpips_distance, lpips_note
from fdaudit.metrics.images.prior import Measure
from fdaudit.metrics.images.similarity import SSIM_SIDE, mse, psnr, ssim, ssim_window
from fdaudit.metrics.images.weights import WeightsUnavailableError
from fdaudit.metrics.intervals import joined, mean_figure, unavailable
from fdaudit.types import Figure

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PSNR_CEILING", "Compared", "ImageScore", "ReconstructionScore", "likenesses", "size_notes"]

PSNR_CEILING = 100.0
"""dB from which two images count as the same (an error of 1e-5, a 400th of an 8-bit grey level): what an
infinite PSNR counts for where means are taken."""


@dataclass(frozen=True, kw_only=True)
class ImageScore:
    """One true image and its guess.

    Attributes:
        target: the party that owns its batch.
        batch: index of the batch.
        truth: index of the true image in its batch.
        guess: index of its guess in the guessed batch.
        psnr: dB, at most `PSNR_CEILING`.
        ssim: in [-1, 1], or None if unavailable.
        mse: mean squared error.
        lpips: LPIPS, or None if unavailable.
        psnr_prior: dB of the prior baseline on this image, or None without auxiliary data.
    """

    target: str
    batch: int
    truth: int
    guess: int
    psnr: float
    ssim: float | None
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

        return pd.DataFrame(list(map(asdict, self.images)))


def _capped_psnr(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return psnr(a, b).clamp(max=PSNR_CEILING)


def likenesses(
    network: torch.nn.Module | None, shape: Sequence[int]
) -> tuple[tuple[Measure, ...], dict[str, str]]:
    """Return the measures that are available for images of this shape, and of all others the reason.

    Args:
        network: the network of LPIPS, or None for the pinned one.
        shape: (c, h, w) of an image.
    """
    channels, height, width = shape
    measures = [Measure("psnr", _capped_psnr, True)]
    lacking = {}
    if min(height, width) >= SSIM_SIDE:
        measures.append(Measure("ssim", ssim, True))
    else:
        why = f"have no side of {SSIM_SIDE} pixels, over which SSIM compares structure"
        lacking["ssim"] = f"images of {height}x{width} {why}"
    measures.append(Measure("mse", mse, False))
    if channels in (1, 3):
        try:
            measures.append(Measure("lpips", _Lpips(load_lpips() if network is None else network), False))
        except WeightsUnavailableError as error:
            lacking["lpips"] = str(error)
    else:
        lacking["lpips"] = f"LPIPS compares grey or RGB images, and these have {channels} channels"
    return tuple(measures), lacking


@dataclass(frozen=True)
class _Lpips:
    """LPIPS by one network; two instances with the same network are equal."""

    network: torch.nn.Module

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return lpips_distance(a, b, self.network)


def size_notes(height: int, width: int) -> dict[str, str]:
    """Return what readers of a measure must know about images of this size, by measure."""
    if min(height, width) < SSIM_SIDE:
        return {"lpips": lpips_note(height, width)}
    window = ssim_window(height, width)
    smaller = f"window {window}, the largest odd one that fits {height}x{width}" if window < 11 else ""
    return {"lpips": lpips_note(height, width), "ssim": smaller}


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """Guessed images beside the true ones, n of each, and beside a baseline's guesses.

    Attributes:
        measures: the available measures.
        lacking: why another measure is not available, by its name.
        likeness: likeness (n,) to the truth, by measure.
        prior: the baseline's likeness (draws, n) by measure; None without auxiliary data.
        strategies: the strategies that the baseline used, by measure.
        places: target, batch, true image and guess of each pair.
    """

    measures: Sequence[Measure]
    lacking: Mapping[str, str]
    likeness: Mapping[str, Floats]
    prior: Mapping[str, Floats] | None
    strategies: Mapping[str, tuple[str, ...]]
    places: Sequence[tuple[str, int, int, int]]

    def rows(self) -> tuple[ImageScore, ...]:
        """Return the scores of each pair."""
        scores = []
        for j, (target, batch, truth, guess) in enumerate(self.places):
            likeness: dict[str, Any] = {"ssim": None, "lpips": None, "psnr_prior": None}
            for name, values in self.likeness.items():
                likeness[name] = float(values[j])
            if self.prior is not None:
                likeness["psnr_prior"] = float(self.prior["psnr"][:, j].mean())
            scores.append(ImageScore(target=target, batch=batch, truth=truth, guess=guess, **likeness))
        return tuple(scores)

    def figures(
        self,
        generator: np.random.Generator,
        *,
        most: str,
        best: Callable[[str, int, int], str],
        notes: Mapping[str, str],
        level: str = "",
        counted: str,
        groups: Integers | None,
        confidence: float,
    ) -> list[Figure]:
        """Return means, gains over the baseline, and the most leaked image.

        Args:
            generator: randomness of the bootstrap.
            most: name of the most leaked image in notes.
            best: says in words which pair a target, a batch and a true image name.
            notes: for readers, by measure.
            level: what was compared, for readers; first in every note of a mean.
            counted: what n counts.
            groups: (n,) pairs that depend on each other, or None.
            confidence: level of every interval.
        """
        figures = []

        def mean(name: str, values: Floats, unit: str, *parts: str) -> Figure:
            note = joined(level, *parts, counted)
            return mean_figure(
                name, values, generator, unit=unit, groups=groups, note=note, confidence=confidence
            )

        for q in self.measures:
            unit, values = "dB" if q.name == "psnr" else "", self.likeness[q.name]
            closest = q.sign * float((q.sign * values).max())
            figures.append(mean(q.name, values, unit, f"{most} {closest:.4g}", notes.get(q.name, "")))
            if self.prior is None:
                why = "no auxiliary data were given, so there is no prior to compare with"
                figures += unavailable((f"{q.name}_prior", f"{q.name}_gain"), why, unit)
                continue
            baseline = self.prior[q.name].mean(0)
            gain = q.sign * (values - baseline)
            strategy = f"strategy {' and '.join(self.strategies[q.name])}"
            figures.append(mean(f"{q.name}_prior", baseline, unit, strategy))
            largest = f"largest {gain.max():.4g}; positive is closer than the prior"
            figures.append(mean(f"{q.name}_gain", gain, unit, largest))
        for name, why in self.lacking.items():
            figures += unavailable((name, f"{name}_prior", f"{name}_gain"), why)
        return [*figures, *self._extremes(best)]

    def _extremes(self, best: Callable[[str, int, int], str]) -> list[Figure]:
        """Return the most leaked image, the prior's luckiest, and the target with the highest mean."""
        psnrs, owner = self.likeness["psnr"], np.array([target for target, *_ in self.places])
        n, at = len(psnrs), int(psnrs.argmax())
        note = f"{best(*self.places[at][:3])}; highest of {n}"
        figures = [Figure(name="psnr_max", value=float(psnrs[at]), unit="dB", n=n, note=note)]
        if self.prior is None:
            figures += unavailable(["psnr_prior_max"], "no auxiliary data were given", "dB")
        else:
            prior = self.prior["psnr"]
            luckiest = float(prior.max(1).mean())
            note = f"highest of {n}, mean over {len(prior)} draws: compare psnr_max with this"
            figures.append(Figure(name="psnr_prior_max", value=luckiest, unit="dB", n=n, note=note))
        means: dict[str, float] = {}
        for name in sorted(set(owner.tolist())):
            means[name] = float(psnrs[owner == name].mean())
        if len(means) > 1:
            worst = max(means, key=lambda name: means[name])
            note = f"{worst}, highest mean of {len(means)} targets"
            n = int((owner == worst).sum())
            figures.append(Figure(name="psnr_worst_target", value=means[worst], unit="dB", n=n, note=note))
        return figures

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
from fdaudit.metrics.images.similarity import mse, psnr, ssim, ssim_window
from fdaudit.metrics.images.weights import WeightsUnavailableError
from fdaudit.metrics.intervals import mean_figure
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


def _capped_psnr(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return psnr(a, b).clamp(max=PSNR_CEILING)


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


def size_notes(height: int, width: int) -> dict[str, str]:
    """Return what readers of a measure must know about images of this size, by measure."""
    window = ssim_window(height, width)
    smaller = f"window {window}, the largest odd one that fits {height}x{width}" if window < 11 else ""
    return {"lpips": lpips_note(height, width), "ssim": smaller}


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """Guessed images beside the true ones, n of each, and beside a baseline's guesses.

    Attributes:
        measures: the available measures.
        no_lpips: why LPIPS is not among them, or empty.
        got: likeness (n,) by measure.
        prior: the baseline's likeness (draws, n) by measure; None without auxiliary data.
        strategies: the strategies that the baseline used, by measure.
        places: target, batch, true image and guess of each pair.
    """

    measures: Sequence[Measure]
    no_lpips: str
    got: Mapping[str, Floats]
    prior: Mapping[str, Floats] | None
    strategies: Mapping[str, tuple[str, ...]]
    places: Sequence[tuple[str, int, int, int]]

    def rows(self) -> tuple[ImageScore, ...]:
        """Return the scores of each pair."""
        prior = self.prior
        return tuple(
            ImageScore(
                target=target,
                batch=batch,
                truth=truth,
                guess=guess,
                psnr_prior=None if prior is None else float(prior["psnr"][:, j].mean()),
                **self._likeness(j),
            )
            for j, (target, batch, truth, guess) in enumerate(self.places)
        )

    def _likeness(self, j: int) -> dict[str, Any]:
        return {"lpips": None, **{name: float(values[j]) for name, values in self.got.items()}}

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
        out = []

        def mean(name: str, values: Floats, unit: str, *parts: str) -> Figure:
            note = "; ".join(filter(None, [level, *parts, counted]))
            return mean_figure(
                name, values, generator, unit=unit, groups=groups, note=note, confidence=confidence
            )

        for q in self.measures:
            unit, values = "dB" if q.name == "psnr" else "", self.got[q.name]
            extreme = float(values.max() if q.higher_is_closer else values.min())
            out.append(mean(q.name, values, unit, f"{most} {extreme:.4g}", notes.get(q.name, "")))
            if self.prior is None:
                why = "no auxiliary data were given, so there is no prior to compare with"
                names = (f"{q.name}_prior", f"{q.name}_gain")
                out += [Figure(name=n, value=None, unit=unit, unavailable=why) for n in names]
                continue
            baseline = self.prior[q.name].mean(0)
            gain = values - baseline if q.higher_is_closer else baseline - values
            played = f"strategy {' and '.join(self.strategies[q.name])}"
            out.append(mean(f"{q.name}_prior", baseline, unit, played))
            largest = f"largest {gain.max():.4g}; positive is closer than the prior"
            out.append(mean(f"{q.name}_gain", gain, unit, largest))
        if self.no_lpips:
            absent = ("lpips", "lpips_prior", "lpips_gain")
            out += [Figure(name=n, value=None, unavailable=self.no_lpips) for n in absent]
        return [*out, *self._extremes(best)]

    def _extremes(self, best: Callable[[str, int, int], str]) -> list[Figure]:
        """Return the most leaked image, the prior's luckiest, and the target with the highest mean."""
        got, owner = self.got["psnr"], np.array([target for target, *_ in self.places])
        at = int(got.argmax())
        note = f"{best(*self.places[at][:3])}; highest of {len(got)}"
        out = [Figure(name="psnr_max", value=float(got[at]), unit="dB", n=len(got), note=note)]
        if self.prior is None:
            why = "no auxiliary data were given"
            out.append(Figure(name="psnr_prior_max", value=None, unit="dB", unavailable=why))
        else:
            prior = self.prior["psnr"]
            luckiest = float(prior.max(1).mean())
            note = f"highest of {len(got)}, mean over {len(prior)} draws: compare psnr_max with this"
            out.append(Figure(name="psnr_prior_max", value=luckiest, unit="dB", n=len(got), note=note))
        means = {name: float(got[owner == name].mean()) for name in sorted(set(owner.tolist()))}
        if len(means) > 1:
            worst = max(means, key=lambda name: means[name])
            note = f"{worst}, highest mean of {len(means)} targets"
            n = int((owner == worst).sum())
            out.append(Figure(name="psnr_worst_target", value=means[worst], unit="dB", n=n, note=note))
        return out

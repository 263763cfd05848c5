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
from fdaudit.metrics.intervals import mean_figure, unavailable
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
    measures = [Measure("psnr", _capped_psnr, True), Measure("mse", mse, False)]
    lacking = {}
    if min(shape[1:]) < SSIM_SIDE:
        size = "x".join(map(str, shape[1:]))
        lacking["ssim"] = (
            f"images of {size} have no side of {SSIM_SIDE} pixels, over which SSIM compares structure"
        )
    else:
        measures.insert(1, Measure("ssim", ssim, True))
    try:
        measures.append(Measure("lpips", _Lpips(load_lpips() if network is None else network), False))
    except WeightsUnavailableError as error:
        lacking["lpips"] = str(error)
    if shape[0] not in (1, 3):
        measures = [m for m in measures if m.name != "lpips"]
        lacking["lpips"] = f"LPIPS compares grey or RGB images, and these have {shape[0]} channels"
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
        got: likeness (n,) by measure.
        prior: the baseline's likeness (draws, n) by measure; None without auxiliary data.
        strategies: the strategies that the baseline used, by measure.
        places: target, batch, true image and guess of each pair.
    """

    measures: Sequence[Measure]
    lacking: Mapping[str, str]
    got: Mapping[str, Floats]
    prior: Mapping[str, Floats] | None
    strategies: Mapping[str, tuple[str, ...]]
    places: Sequence[tuple[str, int, int, int]]

    def rows(self) -> tuple[ImageScore, ...]:
        """Return the scores of each pair."""
        return tuple(
            ImageScore(target=target, batch=batch, truth=truth, guess=guess, **self._likeness(j))
            for j, (target, batch, truth, guess) in enumerate(self.places)
        )

    def _likeness(self, j: int) -> dict[str, Any]:
        likeness: dict[str, Any] = {"ssim": None, "lpips": None, "psnr_prior": None}
        likeness |= {name: float(values[j]) for name, values in self.got.items()}
        if self.prior is not None:
            likeness["psnr_prior"] = float(self.prior["psnr"][:, j].mean())
        return likeness

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
                out += unavailable((f"{q.name}_prior", f"{q.name}_gain"), why, unit)
                continue
            baseline = self.prior[q.name].mean(0)
            gain = values - baseline if q.higher_is_closer else baseline - values
            played = f"strategy {' and '.join(self.strategies[q.name])}"
            out.append(mean(f"{q.name}_prior", baseline, unit, played))
            largest = f"largest {gain.max():.4g}; positive is closer than the prior"
            out.append(mean(f"{q.name}_gain", gain, unit, largest))
        for name, why in self.lacking.items():
            out += unavailable((name, f"{name}_prior", f"{name}_gain"), why)
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

"""SearchSettings of Inverting Gradients, chosen on auxiliary records at the model that the victims started from.

The best total variation, step and start depend on the network. An adversary who knows the architecture, holds auxiliary
records and sees the model can measure them. It makes its own uploads, inverts them with every setting, and compares the
images with the known records.

Guarantees:
  * of all messages only the model and the recorded defences are used. The victims' uploads determine at most the
    classes and the number of records of an auxiliary batch;
  * every setting is tried on the same batches from the same noise;
  * a setting that the user gave is not changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import scipy  # its packages are loaded at first use
import torch
from torch import Tensor

from .class_prior import ClassPrior
from .engine import match_adam
from .gradients import Simulator
from .statistics import BatchStatistics

__all__ = ["BATCHES", "RECORDS", "STARTS", "SearchSettings", "TuningTrial", "choose", "first_images"]

Start = Literal["noise", "blend"]
STARTS: tuple[Start, ...] = ("noise", "blend")
"""Starting images: uniform noise, or equal parts of noise and the class's mean auxiliary image."""

RECORDS = 32
"""Auxiliary records that settings are chosen on."""
BATCHES = 4
"""Largest number of auxiliary batches, if batches are small."""

_TVS = (1e-4, 1e-3, 1e-2, 1e-1)
_FINER = 3.0
"""Factor to the neighbours of the best total variation that are tried at the end."""
_SLOWER = 0.3
"""Share of the step that is tried at the end."""
_SHRINKS = tuple(k / 10 for k in range(10))
_SHORT = 4
"""Short trials take this part of a long one's iterations."""
_FINALISTS = 2
"""Number of settings that continue from short trials to long ones."""


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """SearchSettings of one search, with the defaults for untuned ones.

    Attributes:
        tv: weight of total variation.
        lr: size of the first steps.
        start: the kind of starting images.
        shrink: how strongly the guess is denoised by the class prior (`ClassPrior.denoised`).
    """

    tv: float = 1e-3
    lr: float = 0.1
    start: Start = "noise"
    shrink: float = 0.0

    def described(self) -> str:
        """Return the settings in words."""
        start = {"noise": "noise", "blend": "noise and class means"}[self.start]
        return (
            f"total variation {self.tv:.2g}, step {self.lr:.2g}, start {start}, {self.shrink:.0%} class prior"
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the settings as named numbers, which a cache keeps."""
        values = {**asdict(self), "start": STARTS.index(self.start)}
        tensors = {}
        for name, value in values.items():
            number = float(value)
            tensors[name] = torch.tensor(number, dtype=torch.float64)
        return tensors

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> SearchSettings:
        """Return the settings that `tensors` were made from."""
        values: dict[str, Any] = {name: float(value) for name, value in tensors.items()}
        values["start"] = STARTS[int(values["start"])]
        return cls(**values)


@dataclass(frozen=True, kw_only=True, eq=False)
class TuningTrial:
    """Auxiliary uploads with the records behind them.

    Attributes:
        simulate: the map to invert.
        target: (K, P) the uploads.
        x: (K, n, c, h, w) the records behind them.
        y: (K, n) labels in the order of an attack.
        prior: of images of each class, from auxiliary records without these.
        signed: whether steps follow the gradient's sign.
        statistics: those of the K batches, where uploads carry them.
    """

    simulate: Simulator
    target: Tensor
    x: Tensor
    y: Tensor
    prior: ClassPrior
    signed: bool = True
    statistics: BatchStatistics | None = None

    def inverted(self, settings: Sequence[SearchSettings], noise: Tensor, iterations: int) -> Tensor:
        """Return images (S, K, n, c, h, w) from S settings, all from the same noise (K, n, c, h, w)."""
        S, K = len(settings), len(self.y)
        starts = [first_images(noise, self.y, self.prior.means, s.start) for s in settings]
        lr = noise.new_tensor([s.lr for s in settings])
        tv = noise.new_tensor([s.tv for s in settings])
        penalty = None
        if self.statistics is not None:
            penalty = self.statistics.tiled(S)
        matches = match_adam(
            self.simulate,
            self.target.repeat(S, 1),
            torch.cat(starts),
            self.y.repeat(S, 1),
            iterations=iterations,
            lr=lr.repeat_interleave(K),
            tv=tv.repeat_interleave(K),
            signed=self.signed,
            penalty=penalty,
        )
        return matches.images.nan_to_num(0.5).view(S, K, *noise.shape[1:])


def choose(
    given: Mapping[str, Any], trial: TuningTrial, iterations: int, generator: torch.Generator
) -> SearchSettings:
    """Return the settings whose images come closest to the records behind auxiliary uploads.

    Short trials cover a coarse grid. Long trials follow for the best two and the best one's neighbours. Closeness is
    the mean PSNR after one-to-one matching. Searches from one start differ by chance. The defaults are therefore kept
    unless the best settings beat them by more than the standard error over images.

    Args:
        given: the user's settings, which are kept.
        trial: auxiliary uploads.
        iterations: of a long trial.
        generator: draws starting points.
    """
    plain = SearchSettings(**given)
    tvs = [plain.tv] if "tv" in given else _TVS
    starts = [plain.start] if "start" in given else STARTS
    coarse = []
    for tv in tvs:
        for start in starts:
            settings = replace(plain, tv=tv, start=start)
            coarse.append(settings)
    noise = torch.rand(trial.x.shape, generator=generator).to(trial.x)
    if len(coarse) > _FINALISTS:
        ranked = _ranked(given, trial, coarse, noise, max(1, iterations // _SHORT))
        coarse = [row.settings for row in ranked[:_FINALISTS]]
    best = coarse[0]
    fine = [plain, *coarse]
    if "tv" not in given:
        fine += [replace(best, tv=best.tv / _FINER), replace(best, tv=best.tv * _FINER)]
    if "lr" not in given:
        fine.append(replace(best, lr=best.lr * _SLOWER))
    ranked = _ranked(given, trial, fine, noise, iterations)
    for default in ranked:  # the plain settings are among them
        if replace(default.settings, shrink=plain.shrink) == plain:
            break
    gain = ranked[0].values - default.values
    standard_error = float(gain.std(correction=0)) / len(gain) ** 0.5
    if float(gain.mean()) > standard_error:
        return ranked[0].settings
    return default.settings


def first_images(noise: Tensor, labels: Tensor, means: Tensor | None, start: Start) -> Tensor:
    """Return starting images (R, n, c, h, w) of a search.

    Args:
        noise: (R, n, c, h, w) in [0, 1].
        labels: (R, n).
        means: (C, c, h, w), needed for a blend.
        start: the kind of starting images.
    """
    if start == "noise" or means is None:
        return noise
    return (noise + means[labels].to(noise)) / 2


def _ranked(
    given: Mapping[str, Any],
    trial: TuningTrial,
    tried: Sequence[SearchSettings],
    noise: Tensor,
    iterations: int,
) -> list[_Score]:
    """Return the settings with their best shrinkage, best first."""
    images = trial.inverted(tried, noise, iterations)
    shares = [float(given["shrink"])] if "shrink" in given else _SHRINKS
    scores = []
    for settings, guess in zip(tried, images, strict=True):
        options = []
        for share in shares:
            values = _psnr(trial.prior.denoised(guess, trial.y, share), trial.x)
            options.append(_Score(replace(settings, shrink=share), values))
        scores.append(max(options, key=lambda score: score.mean))
    return sorted(scores, key=lambda score: -score.mean)


class _Score(NamedTuple):
    """SearchSettings with the PSNR in dB of each record (K*n,) under them."""

    settings: SearchSettings
    values: Tensor

    @property
    def mean(self) -> float:
        return float(self.values.mean())


def _psnr(images: Tensor, truth: Tensor) -> Tensor:
    """Return PSNR in dB of each record (K*n,) of K batches (K, n, c, h, w) against its match."""
    values = []
    for guess, x in zip(images.flatten(2).double().cpu(), truth.flatten(2).double().cpu(), strict=True):
        squares = torch.cdist(x, guess).square() / x.shape[1]
        rows, columns = scipy.optimize.linear_sum_assignment(squares.numpy())
        values.append(-10 * squares[rows, columns].clamp_min(1e-12).log10())
    return torch.cat(values)

"""The figures that a site gives away: so coarse that no answer depends on one record.

Guarantees:
  * class shares are compared in parcels of at least `LEAST_RECORDS` labels. Every answer is a function of the parcels,
    so no number of questions tells shares more finely;
  * an image counts only for what it gains over the prior and over the mean image of the party's records, up to a
    ceiling. Guesses that are farther from the truth than these are not told apart;
  * the gain of a guess is the one that more than half of the records behind each of its messages reach, records
    without a guess included. No mean, maximum or minimum over records leaves the site;
  * an answer about a party depends on no other party's records, since it is charged to that party alone;
  * figures are rounded towards no leak, to the step of their definition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import scipy  # its packages are loaded at first use
import torch
from torch import Tensor

from fdaudit.data import class_counts
from fdaudit.errors import UsageError
from fdaudit.goals import Guess
from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.handout.auxiliary import groups_of, others
from fdaudit.metrics import psnr, score_reconstruction
from fdaudit.rng import child_numpy
from fdaudit.scoring.goals.label_distribution import score_labels
from fdaudit.scoring.ground_truth import Truth
from fdaudit.types import Figure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fdaudit.scoring.run_directory import RunDirectory

__all__ = [
    "DEFINED",
    "LEAST_LABELS",
    "LEAST_RECORDS",
    "MOST_ANSWERS",
    "coarse_figures",
    "coarse_shares",
    "defined",
    "multiple",
    "refuse_too_few",
    "together",
]

MOST_ANSWERS = 10
"""Answers about one record, for each goal."""
LEAST_RECORDS = 5
"""Least number of records behind a message whose images are scored, and of records in a parcel of class shares."""
LEAST_LABELS = 20
"""Least number of labels of a party whose class shares are scored."""
_MOST_PARCELS = 20
"""Parcels that a party's labels are divided into at most: class shares in steps of 0.05."""
_CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class _Defined:
    """The definition of a figure that leaves a site.

    Attributes:
        goal: of which guesses.
        unit: its unit.
        step: values are multiples of it.
        most: the largest value; larger ones are not told apart.
        note: what to know when reading it.
        bounded: whether it has the lower end of an interval.
    """

    goal: Literal["reconstruction", "label-distribution"]
    unit: str
    step: float
    most: float
    note: str
    bounded: bool = False


_HALF = "reached by more than half of the records behind each message"
_PARCELS = f"class shares in parcels of {LEAST_RECORDS} records or more"

DEFINED: Mapping[str, _Defined] = {
    "psnr_gain": _Defined(
        goal="reconstruction",
        unit="dB",
        step=0.5,
        most=20.0,
        bounded=True,
        note=f"scored at a site: over the prior and the party's mean image, {_HALF}, in steps of 0.5 dB up to 20",
    ),
    "psnr": _Defined(
        goal="reconstruction",
        unit="dB",
        step=0.5,
        most=30.0,
        note=f"scored at a site: {_HALF}, in steps of 0.5 dB up to 30 dB; given only beside a gain",
    ),
    "label_tv": _Defined(
        goal="label-distribution",
        unit="",
        step=0.05,
        most=1.0,
        note=f"scored at a site: {_PARCELS}, rounded up to 0.05",
    ),
    "label_tv_prior": _Defined(
        goal="label-distribution",
        unit="",
        step=0.05,
        most=1.0,
        note=f"scored at a site: {_PARCELS}, rounded down to 0.05; the better of equal shares and auxiliary records'",
    ),
}
"""The figures of one party, by name."""


def refuse_too_few(run: RunDirectory, guesses: Sequence[Guess]) -> None:
    """Refuse guesses about fewer records than a site answers for, and more images than records.

    Args:
        run: the run directory that scores.
        guesses: guesses of one kind.

    Raises:
        UsageError: a guess is about too few records, has too many images, or is about images that are not there.
    """
    truth = run.truth
    for guess in guesses:
        if isinstance(guess, LabelDistribution):
            if int(_class_counts(truth, guess.target).sum()) < LEAST_LABELS:
                problem = f"has fewer than {LEAST_LABELS} labels, which is too few for its class shares to be scored"
                raise UsageError("GUESSES", guess.target, problem, "Leave it out.")
        elif isinstance(guess, Reconstruction):
            if truth.case.missing("images"):
                problem = "has no images in the truth"
                raise UsageError("GUESSES", guess.target, problem, "Add them: see docs/import.md.")
            groups = _behind_each(truth, guess)
            if not groups or min(map(len, groups)) < LEAST_RECORDS:
                problem = f"names messages that fewer than {LEAST_RECORDS} records stand behind"
                raise UsageError("GUESSES", guess.target, problem, "Name messages of more records.")
            if len(guess.images) > len(truth.rows(guess)):
                problem = "has more images than records stand behind its messages"
                raise UsageError("GUESSES", guess.target, problem, "Give the likeliest.")


def coarse_figures(run: RunDirectory, guesses: Sequence[Guess]) -> dict[str, tuple[Figure, ...]]:
    """Return the coarse figures of each party that guesses are about.

    Args:
        run: the run directory that scores.
        guesses: of one kind, one a party, which `refuse_too_few` let pass.
    """
    by_party: dict[str, tuple[Figure, ...]] = {}
    shares = []
    for guess in guesses:
        if isinstance(guess, LabelDistribution):
            shares.append(guess)
        elif isinstance(guess, Reconstruction):
            by_party[guess.target] = _gains(run.truth, guess)
    if not shares:
        return by_party
    _, targets = score_labels(_CoarseTruth(run.case, run.vault), shares)
    for target in targets:
        values = {figure.name: _value(figure) for figure in target.figures}
        definition = DEFINED["label_tv"]
        steps = math.ceil(min(values["label_tv"], definition.most) / definition.step - _SLACK)
        # One step at least: a coarse distance does not show that nothing is left.
        distance = multiple("label_tv", max(1, steps))
        prior = _rounded_down("label_tv_prior", values["label_tv_prior"])
        by_party[target.target] = (
            defined("label_tv", distance, None, 1),
            defined("label_tv_prior", prior, None, 1),
        )
    return by_party


def together(by_party: Mapping[str, Sequence[Figure]]) -> tuple[Figure, ...]:
    """Return the figures of all parties, which follow from those of each.

    Args:
        by_party: the coarse figures of each party.
    """
    by_name: dict[str, list[Figure]] = {}
    for figures in by_party.values():
        for figure in figures:
            by_name.setdefault(figure.name, []).append(figure)
    overall = []
    for name, figures in by_name.items():
        if len(figures) < len(by_party):
            continue
        values = [_value(figure) for figure in figures]
        if DEFINED[name].goal == "reconstruction":  # more than half of each party's records reach the least
            lows, items = [], 0
            for figure in figures:
                items += figure.n or 0
                if figure.low is not None:
                    lows.append(figure.low)
            overall.append(defined(name, min(values), min(lows, default=None), items))
            continue
        about = defined(name, 0.0, None, len(figures))
        mean = math.fsum(values) / len(values)
        overall.append(replace(about, name=f"{name}_mean", value=mean))
        if not name.endswith("_prior"):  # of the distance also that of the party with the least
            overall.append(replace(about, name=f"{name}_worst", value=min(values), n=1))
    return tuple(overall)


def defined(name: str, value: float, low: float | None, n: int) -> Figure:
    """Return a coarse figure with what its definition says.

    Args:
        name: its name in `DEFINED`.
        value: a multiple of its step.
        low: the lower end of its interval, or None if it has none.
        n: number of items behind it.
    """
    definition = DEFINED[name]
    figure = Figure(name=name, value=value, unit=definition.unit, n=n, note=definition.note)
    if low is None:
        return figure
    method = "order statistic, one-sided"
    return replace(figure, low=low, high=definition.most, confidence=_CONFIDENCE, method=method)


def coarse_shares(counts: Tensor) -> Tensor:
    """Return class shares (C,), float64, in whole parcels of at least `LEAST_RECORDS` labels.

    Parcels are given out by the largest remainder, so that each share is less than one parcel from its true value.

    Args:
        counts: labels of each class (C,), together `LEAST_RECORDS` or more.
    """
    total = int(counts.sum())
    size = max(LEAST_RECORDS, math.ceil(total / _MOST_PARCELS))
    parcels = total // size
    due = counts.long() * parcels  # in parcels of `total` parts each
    shares = due // total
    by_remainder = torch.argsort(due % total, descending=True, stable=True)
    shares[by_remainder[: parcels - int(shares.sum())]] += 1
    return shares.double() / parcels


# -- images -------------------------------------------------------------------------------------------------------


def _behind_each(truth: Truth, guess: Reconstruction) -> list[Tensor]:
    """Return the records (n,) behind each message of a guess that has any."""
    messages = dict.fromkeys(guess.messages)
    groups = [truth.rows(replace(guess, messages=(seq,))) for seq in messages]
    return [rows for rows in groups if len(rows)]


def _gains(truth: Truth, guess: Reconstruction) -> tuple[Figure, ...]:
    """Return the gain that more than half of the records behind each message reach, and their PSNR."""
    case, rows = truth.case, truth.rows(guess)
    records, _ = truth.records(guess)
    # Auxiliary records may be few or of another kind, and an asker would climb from a weak prior. The mean image of the
    # party's records is therefore another.
    all_images, _ = case.records(guess.target)
    mean = all_images.double().mean(0, keepdim=True).clamp(0, 1)
    means: list[float] = psnr(mean.expand_as(records), records.double()).tolist()
    gains, psnrs = np.zeros(len(rows)), np.zeros(len(rows))
    # Other parties' records have no part in it: answers about one party are not charged to others.
    x, y = others(case).prior
    groups = case.dataset.known_groups
    true_labels = None
    if groups is not None:
        true_labels = [groups[rows]]
    score = score_reconstruction(
        [guess.images],
        [records],
        x,
        child_numpy(case.seed, "site", guess.target),
        true_labels=true_labels,
        auxiliary_labels=groups_of(case, y),
    )
    for image in score.images:
        prior = max(means[image.truth], image.psnr_prior or 0.0)
        gains[image.truth] = image.psnr - prior
        psnrs[image.truth] = image.psnr
    sizes, reached_gains, low_gains, reached_psnrs = [], [], [], []
    for behind in _behind_each(truth, guess):
        group = torch.isin(rows, behind).numpy()
        sizes.append(int(group.sum()))
        reached_gains.append(_rounded_down("psnr_gain", _reached(gains[group])))
        # The lower end of the median's interval by the sign test is an order statistic of 5 values or more.
        place = int(scipy.stats.binom.ppf(1 - _CONFIDENCE, sizes[-1], 0.5)) - 1
        low_gains.append(_rounded_down("psnr_gain", float(np.sort(gains[group])[place])))
        reached_psnrs.append(_rounded_down("psnr", _reached(psnrs[group])))
    gain, least = min(reached_gains), min(sizes)
    figures = [defined("psnr_gain", gain, min(low_gains), least)]
    if gain > 0:
        figures.append(defined("psnr", min(reached_psnrs), None, least))
    return tuple(figures)


def _reached(values: NDArray[np.float64]) -> float:
    """Return the largest value that more than half of the values (n,) reach."""
    return float(np.sort(values)[(len(values) - 1) // 2])


# -- class shares -------------------------------------------------------------------------------------------------


def _class_counts(truth: Truth, client: str) -> Tensor:
    """Return how often each class occurs among a client's records (C,)."""
    _, y = truth.case.records(client)
    return class_counts(y, truth.case.dataset.classes)


class _CoarseTruth(Truth):
    """A truth that knows class shares in parcels only."""

    def label_shares(self, client: str) -> Tensor:
        return coarse_shares(_class_counts(self, client))


def _value(figure: Figure) -> float:
    if figure.value is None:
        raise TypeError(f"{figure.name} has no value")
    return figure.value


_SLACK = 1e-9
"""Steps by which a value may lie below a multiple and still count as that multiple, for the error of sums of floats."""


def _rounded_down(name: str, value: float) -> float:
    definition = DEFINED[name]
    return multiple(name, math.floor(min(max(value, 0.0), definition.most) / definition.step + _SLACK))


def multiple(name: str, count: int) -> float:
    """Return a number of steps of a figure as its value, with no digits but the step's."""
    return round(count * DEFINED[name].step, 2)

"""Coarse figures: measurements rounded for a public page so that no single record shows in them.

Guarantees:
  * a membership figure moves by a step only if several coins change, or it is withheld;
  * a figure of one victim, of a few images, or of a goal without a rule has no coarse form;
  * intervals, p-values and counts are always dropped: each would sharpen the rounded value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, log10

from fdaudit.types import Figure

__all__ = ["COINS", "IMAGES", "coarse", "two_digits"]

COINS = 4
"""Least number of coins that must change to move a public AUC by one step."""

IMAGES = 8
"""Least number of images behind a public mean of image figures."""

_TURN = 2.0
"""Largest move of an AUC by one coin of n, times n: a member and its partner swap the first and the last rank."""

_AUC_STEPS = (0.01, 0.02, 0.05, 0.1)
_IMAGE = ("psnr", "psnr_prior", "psnr_gain")
_LABELS = ("label_tv", "label_tv_prior")
_TOO_FEW = "it rests on too few records to be public"


@dataclass(frozen=True)
class _Grid:
    """Rounding of a goal's figures: a step for figures of n items, or None if n is too small."""

    names: tuple[str, ...]
    least: int
    steps: tuple[float, ...]
    turn: float = 0.0

    def step(self, n: int | None) -> float | None:
        if n is None or n < self.least:
            return None
        return next((step for step in self.steps if step * n >= self.turn), None)


_GRIDS: Mapping[str, _Grid] = {
    "membership": _Grid(("auc",), 1, _AUC_STEPS, COINS * _TURN),
    "reconstruction": _Grid(_IMAGE, IMAGES, (1.0,)),
    "label-distribution": _Grid(_LABELS, 2, (0.1,)),
}


def coarse(goal: str, figures: tuple[Figure, ...]) -> tuple[Figure, ...]:
    """Return the public figures of all victims together, rounded to the goal's step.

    Args:
        goal: the attack's goal; only the three known ones have a public figure.
        figures: of all victims, with `n` the number of coins, images or victims.
    """
    grid = _GRIDS.get(goal)
    if grid is None:
        return ()
    return tuple(_rounded(f, grid.step(f.n)) for f in figures if f.name.removesuffix("_mean") in grid.names)


def _rounded(figure: Figure, step: float | None) -> Figure:
    if figure.value is None or step is None:
        return Figure(name=figure.name, value=None, unit=figure.unit, unavailable=_TOO_FEW)
    value = round(round(figure.value / step) * step, 10)
    return Figure(name=figure.name, value=value, unit=figure.unit, note=f"rounded to a multiple of {step:g}")


def two_digits(n: int) -> int:
    """Return a count or size, rounded to two significant digits."""
    return n if abs(n) < 100 else round(n, 1 - floor(log10(abs(n))))

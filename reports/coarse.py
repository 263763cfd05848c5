"""Coarse figures: measurements rounded for a public page so that no single record shows in them.

Guarantees:
  * a membership figure moves by a step only if several coins change, or it is withheld;
  * a figure of one victim, of a few images, or of a goal without a rule has no coarse form;
  * intervals, p-values and counts are always dropped: each would sharpen the rounded value.
"""

from __future__ import annotations

from math import floor, log10

from fdaudit.types import Figure

from .goals import RULES

__all__ = ["coarse", "two_digits"]

_TOO_FEW = "it rests on too few records to be public"


def coarse(goal: str, figures: tuple[Figure, ...]) -> tuple[Figure, ...]:
    """Return the public figures of all victims together, rounded to the goal's step.

    Args:
        goal: the attack's goal; one without a `public` grid in its rule has no public figure.
        figures: of all victims, with `n` the number of coins, images or victims.
    """
    if goal not in RULES or (rounding := RULES[goal].public) is None:
        return ()
    public = []
    for figure in figures:
        if figure.name.removesuffix("_mean") not in rounding.names:
            continue
        step = rounding.step(figure.n)
        rounded = Figure(name=figure.name, value=None, unit=figure.unit, unavailable=_TOO_FEW)
        if figure.value is not None and step is not None:
            value = round(round(figure.value / step) * step, 10)
            note = f"rounded to a multiple of {step:g}"
            rounded = Figure(name=figure.name, value=value, unit=figure.unit, note=note)
        public.append(rounded)
    return tuple(public)


def two_digits(n: int) -> int:
    """Return a count or size, rounded to two significant digits."""
    if abs(n) < 100:
        return n
    return round(n, 1 - floor(log10(abs(n))))

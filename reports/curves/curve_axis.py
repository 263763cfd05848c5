"""The ε axes of curves: the ledger's ε, and the requested ε. An axis break separates infinity.

Guarantees:
  * a finite place on the ledger's axis is the largest ε of the point's runs;
  * a point is at infinity as soon as one of its runs has no finite ε;
  * the axis of the requested ε shows only levels that are an ε, and its label says that they were requested.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .sweep_rows import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["AxisScale", "by_ledger", "delta_of", "ledger_label", "scale_of", "view_of"]

_PAD, _BAND = 0.08, 0.3
"""Room beside the finite values, and width of a band behind a break, as shares of the range of finite values."""
_NARROWEST = 0.6
"""Fewest decades that the finite part spans."""
_MOST_TICKS = 7
_SHADE, _SPINE = "#f3f0e8", "#56626f"
_ONE_WORD = ("server", "aggregator", "eavesdropper", "world")
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def by_ledger(point: Point, adversary: str) -> float | None:
    """Return a point's place on the ledger's axis: its largest ε; None if its ledgers do not state one."""
    bill = point.bill(adversary)
    if bill is None:
        return None
    return bill.epsilon


def view_of(adversary: str) -> str:
    """Return an adversary's view in words."""
    if adversary in _ONE_WORD:
        return f"the {adversary}'s view"
    if "+" in adversary:
        return f"the view of {' colluding with '.join(adversary.split('+', 1))}"
    return f"{adversary}'s view"


def delta_of(points: Iterable[Point], adversary: str) -> str:
    """Return the δ of the points' ledgers, or its range; empty if none states one."""
    deltas = set[float]()
    for point in points:
        bill = point.bill(adversary)
        if bill is not None:
            deltas.update(bill.deltas)
    if not deltas:
        return ""
    ends = dict.fromkeys((min(deltas), max(deltas)))
    return " to ".join(f"{delta:g}".replace("e-0", "e-") for delta in ends)


def ledger_label(points: Iterable[Point], adversary: str) -> str:
    """Return the label of the ledger's axis."""
    label = f"ε of {view_of(adversary)}, ledger"
    if delta := delta_of(points, adversary):
        label += f", δ = {delta}"
    return label


@dataclass(frozen=True, kw_only=True)
class AxisScale:
    """A logarithmic axis with a band for 0 on its left and one for infinity on its right, each behind a break.

    Attributes:
        low: lower end of the finite part, in decades.
        high: upper end of the finite part, in decades.
        levels: finite values with a tick; empty for round numbers.
        marked: finite values with a tick without a number, which were tested.
        zero: whether there is a band for 0.
        infinite: whether there is a band for infinity.
        finite: whether there is a finite part.
        beyond: the tick of the band for infinity.
    """

    low: float
    high: float
    levels: tuple[float, ...] = ()
    marked: tuple[float, ...] = ()
    zero: bool = False
    infinite: bool = False
    finite: bool = True
    beyond: str = "∞"

    @property
    def band(self) -> float:
        """Return the width of a band, in decades."""
        return _BAND * (self.high - self.low)

    @property
    def limits(self) -> tuple[float, float]:
        """Return both ends of the axis."""
        if not self.finite and self.infinite and not self.zero:
            return self.high, self.high + self.band
        return self.low - self.band * self.zero, self.high + self.band * self.infinite

    @property
    def breaks(self) -> tuple[float, ...]:
        """Return the places of the breaks."""
        return (self.low,) * self.zero + (self.high,) * self.infinite

    def place(self, epsilon: float) -> float:
        """Return the place of an ε, in decades; 0 and infinity are in the middle of their bands."""
        if math.isinf(epsilon):
            return self.high + self.band / 2
        if epsilon <= 0:
            return self.low - self.band / 2
        return math.log10(epsilon)

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Return places and labels, from left to right."""
        finite: Sequence[float] = ()
        if self.finite:
            finite = self.levels or _round_numbers(self.low, self.high)
        marks = []
        for value in finite:
            label = f"{value:g}"
            power = round(math.log10(value))
            if (power >= 5 or power <= -4) and math.isclose(value, 10.0**power):
                label = f"10{str(power).translate(_SUPERSCRIPT)}"
            marks.append((self.place(value), label))
        if self.zero:
            marks.insert(0, (self.place(0.0), "0"))
        if self.infinite:
            marks.append((self.place(math.inf), self.beyond))
        return tuple(marks)

    def draw(self, axes: Axes) -> None:
        """Put ticks, limits, bands and breaks on axes."""
        from matplotlib.transforms import ScaledTranslation, blended_transform_factory

        places, names = zip(*self.ticks, strict=True)
        axes.set_xticks(places, names)
        axes.set_xticks([self.place(value) for value in self.marked], minor=True)
        axes.set_xlim(self.limits)
        for number, cut in enumerate(self.breaks):
            end = cut + self.band
            if self.zero and not number:
                end = cut - self.band
            axes.axvspan(min(cut, end), max(cut, end), color=_SHADE, linewidth=0, zorder=0)
            # Two slanted strokes through the lower edge, with nothing between them.
            ground = blended_transform_factory(axes.transData, axes.transAxes)
            axes.plot([cut], [0], marker="s", markersize=3.4, color="white", markeredgewidth=0, transform=ground,
                      clip_on=False, zorder=9)  # fmt: skip
            for name_of_side, side in (("left", -1), ("right", 1)):
                moved = ground + ScaledTranslation(side * 1.6 / 72, 0, axes.figure.dpi_scale_trans)
                line = axes.plot([cut], [0], marker=[(-0.5, -1), (0.5, 1)], markersize=7, color=_SPINE,
                                 linestyle="none", markeredgewidth=0.8, transform=moved, clip_on=False,
                                 zorder=10)  # fmt: skip
                line[0].set_gid(f"break-{number}-{name_of_side}")


def scale_of(
    values: Sequence[float],
    *,
    levels: Sequence[float] = (),
    marked: Sequence[float] = (),
    beyond: str = "∞",
) -> AxisScale:
    """Return the axis for some ε, including infinite ones and 0.

    Args:
        values: at least one.
        levels: finite values with a tick; round numbers if empty.
        marked: values with a tick without a number; of them only finite ones above 0 have one.
        beyond: the tick of the band for infinity.
    """
    finite, ticks = list[float](), set[float]()
    for value in values:
        if 0 < value < math.inf:
            finite.append(math.log10(value))
    for value in marked:
        if 0 < value < math.inf:
            ticks.add(value)
    middle = width = 0.0
    if finite:
        middle = (min(finite) + max(finite)) / 2
        width = max(finite) - min(finite)
    half = max(width, _NARROWEST) / 2 * (1 + 2 * _PAD)
    return AxisScale(
        low=middle - half,
        high=middle + half,
        levels=tuple(levels),
        marked=tuple(sorted(ticks)),
        zero=min(values) <= 0,
        infinite=any(map(math.isinf, values)),
        finite=bool(finite),
        beyond=beyond,
    )


def _round_numbers(low: float, high: float) -> tuple[float, ...]:
    """Return 1, 2, 5 times powers of ten between two decades, or only the powers if there are many."""
    fine, whole = list[float](), list[float]()
    for power in range(math.floor(low), math.ceil(high) + 1):
        for m in (1, 2, 5):
            if low <= math.log10(m) + power <= high:
                fine.append(m * 10.0**power)
        if low <= power <= high:
            whole.append(10.0**power)
    if len(fine) <= _MOST_TICKS:
        return tuple(fine)
    return tuple(whole[:: math.ceil(len(whole) / _MOST_TICKS)])

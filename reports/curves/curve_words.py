"""Conclusions, titles and captions of the curves, computed from the same points as the figures.

Guarantees:
  * an ε in a sentence is the ledger's, unless the sentence says that it was requested;
  * points without a finite ε are counted and named.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ..text import MINUS, bracketed, clip, joined, sentence
from .curve_axis import by_ledger, delta_of, view_of
from .curve_figures import Curve
from .sweep_claims import contradictions
from .sweep_rows import MEASURES, Point, SweepColumn, SweepRow, front

__all__ = ["called", "caption", "conclusions", "title"]

_MOST = 6
"""Sentences about one thing."""


def called(point: Point, adversary: str) -> str:
    """Return a point in words, with its ε by the ledger."""
    who = clip(point.protocol, 40)
    if not point.defended:
        return f"{who} without a defence"
    epsilon = by_ledger(point, adversary)
    ledger, target = "no ledger", ""
    if epsilon is not None:
        ledger = f"ledger ε = {_epsilon(epsilon)}"
    if point.epsilon_asked is not None:
        target = f" asked for {point.level:g}"
    return f"{_system(point)}{target} ({ledger})"


def _system(point: Point) -> str:
    """Return a point's protocol with its defence, if it has one."""
    who = clip(point.protocol, 40)
    return f"{who} under {clip(point.defence, 40)}" if point.defended else who


def _epsilon(value: float) -> str:
    """Return an ε rounded up to three significant digits: rounding never makes it smaller."""
    if value == math.inf:
        return "∞"
    if value <= 0:
        return "0"
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / step - 1e-9) * step:,.6g}"


def _said(point: Point, measure: str) -> str:
    spread = point.spreads[measure]
    unit = next(m.unit for m in MEASURES if m.name == measure)
    return bracketed(spread.mean, spread.low, spread.high, unit)


def conclusions(points: Sequence[Point], rows: Sequence[SweepRow], adversary: str) -> list[str]:
    """Return the conclusions of the whole sweep, one sentence each."""
    sentences = [*contradictions(rows).in_words(), *_unclaimed(points, adversary), *_best(points, adversary)]
    for measure in MEASURES:
        name = measure.name
        measured = [point for point in points if name in point.spreads]
        if measured and name in ("membership_auc", "psnr_gain"):
            means = [point.spreads[name].mean for point in measured]
            worst = measured[means.index(max(means))]
            sentences.append(
                f"{measure.label} is largest for {called(worst, adversary)}: {_said(worst, name)}."
            )
    counts = Counter(row.run.status for row in rows)
    missing = []
    if counts["failed"]:
        missing.append(f"{counts['failed']} failed")
    if counts["pending"]:
        missing.append(f"{counts['pending']} not run yet")
    if missing:
        sentences.append(f"Of {len(rows)} runs {joined(missing)}: the figures lack their values.")
    return sentences


def _unclaimed(points: Sequence[Point], adversary: str) -> list[str]:
    """Return how many defended points have no finite ε by the ledger, and their names."""
    infinite, silent, count = dict[str, None](), 0, 0
    defended = [point for point in points if point.defended and "utility" in point.spreads]
    for point in defended:
        epsilon = by_ledger(point, adversary)
        if epsilon is None:
            silent += 1
        elif epsilon == math.inf:
            count += 1
            infinite[_system(point)] = None
    sentences = []
    if infinite:
        names = joined(list(infinite)[:_MOST])
        if len(infinite) > _MOST:
            names += f" and {len(infinite) - _MOST} more"
        sentences.append(
            f"The ledger has no finite ε of {view_of(adversary)} for {count} of {len(defended)} defended "
            f"points: {names}. The tables give the causes."
        )
    if silent:
        sentences.append(
            f"The ledgers of {silent} of {len(defended)} defended points lack {view_of(adversary)}."
        )
    return sentences


def _best(points: Sequence[Point], adversary: str) -> list[str]:
    """Return which point learns most up to each ledger ε, and which one without a finite ε."""
    finite, places, free = list[Point](), list[tuple[float, float]](), list[Point]()
    for point in points:
        epsilon = by_ledger(point, adversary)
        if epsilon is None or "utility" not in point.spreads:
            continue
        if epsilon == math.inf:
            free.append(point)
        else:
            finite.append(point)
            places.append((epsilon, point.spreads["utility"].mean))
    alike = {}  # of those that read alike, who learns most
    for i in front(places):
        epsilon, _ = places[i]
        alike[_epsilon(epsilon)] = finite[i]
    sentences = []
    for epsilon_text, point in list(alike.items())[-_MOST:]:
        who = called(point, adversary)
        if point.defended:
            who = _system(point)
        sentences.append(f"Up to a ledger ε of {epsilon_text}, {who} learns most: {_said(point, 'utility')}.")
    if free:
        top = max(free, key=lambda point: point.spreads["utility"].mean)
        sentences.append(f"Without a finite ε, {_system(top)} learns most: {_said(top, 'utility')}.")
    return sentences


def title(measure: SweepColumn | None, utility: str, *, asked: bool, adversary: str) -> str:
    """Return the heading of a figure."""
    if measure is not None:
        against = _lower(measure.label)
    elif asked:
        against = "ε asked"
    else:
        against = f"the ledger's ε of {view_of(adversary)}"
    return f"{sentence(utility)} against {against}"


def _lower(label: str) -> str:
    if label.split(" ")[0].rstrip(":").isupper():
        return label
    return label[:1].lower() + label[1:]


def caption(
    measure: SweepColumn | None,
    curve: Curve | None,
    seeds: Sequence[int],
    *,
    asked: bool,
    points: Sequence[Point],
) -> str:
    """Return a figure's content, its conclusion, and its basis.

    Args:
        measure: on the axis; None for an ε.
        curve: the figure; None if there is none.
        seeds: of the sweep.
        asked: whether the axis is the requested ε.
        points: all of the sweep, including those that the figure leaves out.
    """
    if curve is None:
        return _empty(measure, asked)
    rest = _resting_on(curve, seeds)
    if measure is None:
        axis = _asked_said(curve, points) if asked else _ledger_said(curve, points)
        same = ""
        if len(curve.defences) > 1 and not all(point.defended for point in curve.points):
            same = " Runs without a defence are the same in every panel."
        panels = f"A panel a defence, a line a protocol.{same} {_marks(curve)}"
        return f"{axis} {panels}{rest}"
    side = "right" if measure.least else "left"
    strongest = ""
    if measure.goal and measure.level is not None:
        strongest = (
            " The strongest of the attacks counts, so that without any leak it still lies somewhat above the "
            "grey line."
        )
    if curve.attackers:
        strongest += f" Adversaries of these attacks: {joined(curve.attackers)}."
    reading = (
        f"Up and to the {side} is better. Larger marks stand for a larger ε by the ledger, of "
        f"{view_of(curve.adversary)}. {_marks(curve)}"
    )
    best = curve.front
    names = joined(called(point, curve.adversary) for point in best[:4])
    if len(best) > 4:
        names += f" and {len(best) - 4} more"
    conclusion = f"No other point betters {names} in both."
    return f"{conclusion} {reading}{strongest}{rest}"


def _empty(measure: SweepColumn | None, asked: bool) -> str:
    if asked:
        return "No level of this sweep is an ε that a defence was asked for, so this axis has no figure."
    if measure is None:
        return "No run has a ledger of this view, so this axis has no figure."
    return (
        f"Nothing was measured: no run has a value of {_lower(measure.label)}. That is no evidence of safety."
    )


def _resting_on(curve: Curve, seeds: Sequence[int]) -> str:
    rest, noun = "", "seed"
    if curve.has_bars:
        rest, noun = " Bars are 95 % intervals over seeds;", "seeds"
    rest += f" n = {curve.seeds_a_mark} {noun} a mark ({joined(map(str, seeds))})."
    if curve.references:
        lines = joined(name for name, _ in curve.references)
        rest += f" Level lines: {lines}, without any defence, mean over the runs that trained them."
    return rest


def _marks(curve: Curve) -> str:
    hollow = "Hollow marks have no defence."
    if not curve.unclaimed:
        return hollow
    return f"{hollow} Half-filled marks have a defence, but no finite ε by the ledger."


def _ledger_said(curve: Curve, points: Sequence[Point]) -> str:
    """Return what the axis shows, what the smallest ε costs, and the number of missing points."""
    bills = list(filter(None, (point.bill(curve.adversary) for point in curve.points)))
    units, relations = set[str](), set[str]()
    for bill in bills:
        for unit, relation in bill.terms:
            if unit:
                units.add(unit)
            if relation:
                relations.add(relation)
    parts = []
    if delta := delta_of(curve.points, curve.adversary):
        parts.append(f"δ = {delta}")
    if units:
        parts.append(f"for one {joined(sorted(units), 'or')}")
    if relations:
        parts.append(f"under {joined(sorted(relations), 'or')}")
    stated = f" ({', '.join(parts)})" if parts else ""
    sentences = [f"ε is the ledger's, of {view_of(curve.adversary)}{stated}.", _fall(curve)]
    if math.inf in map(curve.epsilon, curve.points):
        sentences.append("Behind the break the ledger has no finite ε.")
    if any(bill.least < bill.epsilon for bill in bills):
        sentences.append("A mark stands at the largest ε of its seeds, with a bar down to the least.")
    if missing := _left_out(curve, points):
        sentences.append(f"Points left out, because their ledgers lack this view: {missing}.")
    return " ".join(sentences)


def _left_out(curve: Curve, points: Sequence[Point]) -> int:
    """Return the number of defended points with a utility that the curve does not show."""
    count = 0
    for point in points:
        if point.defended and "utility" in point.spreads and point not in curve.points:
            count += 1
    return count


def _asked_said(curve: Curve, points: Sequence[Point]) -> str:
    """Return that the axis is no guarantee, and how many points have no finite ε or are missing."""
    defended = above = 0
    for point in curve.points:
        if point.defended:
            defended += 1
            above += point.level < curve.epsilon(point) < math.inf
    counts = []
    if curve.unclaimed:
        counts.append(f"{len(curve.unclaimed)} have no finite ε by the ledger")
    if above:
        counts.append(f"{above} have a larger one than was asked")
    sentences = ["ε asked is what noise was calibrated for. It is no guarantee."]
    sentences.append(f"The ledger's ε is of {view_of(curve.adversary)}.")
    if counts:
        sentences.append(f"Of {defended} defended points {joined(counts)}.")
    if missing := _left_out(curve, points):
        sentences.append(f"Points left out, because their level is no ε: {missing}.")
    return " ".join(sentences)


def _fall(curve: Curve) -> str:
    """Return how utility at each protocol's smallest finite ε differs from that without a defence."""
    if not any(point.defended for point in curve.points):
        return "No defence is in this sweep."
    parts = []
    for defence in curve.defences:
        changes, levels = [], []
        for protocol in curve.protocols:
            own = [point for point in curve.points if point.protocol == protocol]
            free = [point for point in own if not point.defended]
            under = [point for point in own if point.defended and point.defence == defence]
            least = min(under, key=curve.epsilon, default=None)
            if free and least is not None and math.isfinite(curve.epsilon(least)):
                change = least.spreads["utility"].mean - free[0].spreads["utility"].mean
                changes.append(round(100 * change))
                levels.append(curve.epsilon(least))
        if changes:
            ends = dict.fromkeys(map(_signed, (min(changes), max(changes))))
            at = dict.fromkeys(map(_epsilon, (min(levels), max(levels))))
            parts.append(f"{clip(defence, 40)} {' to '.join(ends)} points at ε = {' to '.join(at)}")
    if not parts:
        return "No defence has both a finite ε and a run without it to compare with."
    return f"Each protocol's smallest finite ε against no defence: {joined(parts)}."


def _signed(points: int) -> str:
    return f"{points:+d}".replace("-", MINUS) if points else "0"

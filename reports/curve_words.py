"""Conclusions, titles and captions of the curves, computed from the same points as the figures.

Guarantees:
  * an ε in a sentence is the ledger's, unless the sentence says that it was requested;
  * points without a finite ε are counted and named.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from .curve_axis import by_ledger, delta_of, view_of
from .curve_figures import Curve
from .sweep_claims import contradictions
from .sweep_rows import MEASURES, Measure, Point, Row, front
from .text import MINUS, amount, clip, joined, sentence

__all__ = ["called", "caption", "conclusions", "title"]

_MOST = 6
"""Sentences about one thing."""


def called(point: Point, adversary: str) -> str:
    """Return a point in words, with its ε by the ledger."""
    who = clip(point.protocol, 40)
    if not point.defended:
        return f"{who} without a defence"
    found = by_ledger(point, adversary)
    held = "no ledger" if found is None else f"ledger ε = {_epsilon(found)}"
    asked = "" if point.epsilon_asked is None else f" asked for {point.level:g}"
    return f"{who} under {clip(point.defence, 40)}{asked} ({held})"


def _epsilon(value: float) -> str:
    """Return an ε rounded up to three significant digits: rounding never makes it smaller."""
    if not 0 < value < math.inf:
        return "∞" if value > 0 else "0"
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / step - 1e-9) * step:,.6g}"


def _said(point: Point, measure: str) -> str:
    spread, unit = point.spreads[measure], next(m.unit for m in MEASURES if m.name == measure)
    text = amount(spread.mean, unit)
    if spread.low is None or spread.high is None:
        return text
    return f"{text} [{amount(spread.low, unit)}, {amount(spread.high, unit)}]"


def conclusions(points: Sequence[Point], rows: Sequence[Row], adversary: str) -> list[str]:
    """Return the conclusions of the whole sweep, one sentence each."""
    found = [*contradictions(rows).in_words(), *_unclaimed(points, adversary), *_best(points, adversary)]
    for measure in MEASURES:
        held = [p for p in points if measure.goal and measure.name in p.spreads]
        if held and measure.name in ("membership_auc", "psnr_gain"):
            worst = max(held, key=lambda p: p.spreads[measure.name].mean)
            found.append(
                f"{measure.label} is largest for {called(worst, adversary)}: {_said(worst, measure.name)}."
            )
    counts = Counter(r.run.status for r in rows)
    parts = ((counts["failed"], "failed"), (counts["pending"], "not run yet"))
    missing = [f"{count} {word}" for count, word in parts if count]
    if missing:
        found.append(f"Of {len(rows)} runs {joined(missing)}: the figures lack their values.")
    return found


def _unclaimed(points: Sequence[Point], adversary: str) -> list[str]:
    """Return how many defended points have no finite ε by the ledger, and their names."""
    defended = [p for p in points if p.defended and "utility" in p.spreads]
    infinite = [p for p in defended if by_ledger(p, adversary) == math.inf]
    silent = sum(by_ledger(p, adversary) is None for p in defended)
    names = list(dict.fromkeys(f"{clip(p.protocol, 40)} under {clip(p.defence, 40)}" for p in infinite))
    found = []
    if infinite:
        more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
        found.append(
            f"The ledger has no finite ε of {view_of(adversary)} for {len(infinite)} of {len(defended)} defended "
            f"points: {joined(names[:_MOST])}{more}. The tables give the causes."
        )
    if silent:
        found.append(f"The ledgers of {silent} of {len(defended)} defended points lack {view_of(adversary)}.")
    return found


def _best(points: Sequence[Point], adversary: str) -> list[str]:
    """Return which point learns most up to each ledger ε, and which one without a finite ε."""
    known = [(e, p) for p in points if "utility" in p.spreads and (e := by_ledger(p, adversary)) is not None]
    finite = [(e, p) for e, p in known if math.isfinite(e)]
    best = [finite[i] for i in front([(e, p.spreads["utility"].mean) for e, p in finite])]
    best = list({_epsilon(e): (e, p) for e, p in best}.values())  # of those that read alike, who learns most
    found = [
        f"Up to a ledger ε of {_epsilon(e)}, {clip(p.protocol, 40)} under {clip(p.defence, 40)} learns most: "
        f"{_said(p, 'utility')}."
        if p.defended
        else f"Up to a ledger ε of {_epsilon(e)}, {called(p, adversary)} learns most: {_said(p, 'utility')}."
        for e, p in best[-_MOST:]
    ]
    free = [p for e, p in known if math.isinf(e)]
    if free:
        top = max(free, key=lambda p: p.spreads["utility"].mean)
        how = f" under {clip(top.defence, 40)}" if top.defended else ""
        found.append(
            f"Without a finite ε, {clip(top.protocol, 40)}{how} learns most: {_said(top, 'utility')}."
        )
    return found


def title(measure: Measure | None, utility: str, *, asked: bool, adversary: str) -> str:
    """Return the heading of a figure."""
    if measure is not None:
        against = _lower(measure.label)
    else:
        against = "ε asked" if asked else f"the ledger's ε of {view_of(adversary)}"
    return f"{sentence(utility)} against {against}"


def _lower(label: str) -> str:
    keep = label.split(" ")[0].rstrip(":").isupper()
    return label if keep else label[:1].lower() + label[1:]


def caption(
    measure: Measure | None,
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
        said = _asked_said(curve, points) if asked else _ledger_said(curve, points)
        return f"{said} {_panels(curve)}{rest}"
    side = "right" if measure.least else "left"
    strongest = (
        " The strongest of the attacks counts, so that without any leak it still lies somewhat above the grey line."
        if measure.goal and measure.level is not None
        else ""
    )
    if curve.attackers:
        strongest += f" Adversaries of these attacks: {joined(curve.attackers)}."
    reading = (
        f"Up and to the {side} is better. Larger marks stand for a larger ε by the ledger, of "
        f"{view_of(curve.adversary)}. {_marks(curve)}"
    )
    return f"{_front_said(curve)} {reading}{strongest}{rest}"


def _empty(measure: Measure | None, asked: bool) -> str:
    if asked:
        return "No level of this sweep is an ε that a defence was asked for, so this axis has no figure."
    if measure is None:
        return "No run has a ledger of this view, so this axis has no figure."
    return (
        f"Nothing was measured: no run has a value of {_lower(measure.label)}. That is no evidence of safety."
    )


def _resting_on(curve: Curve, seeds: Sequence[int]) -> str:
    n = sorted({s.n for p in curve.points for m, s in p.spreads.items() if m == "utility"})
    counted = f"n = {n[0]}" if len(n) == 1 else f"n = {n[0]} to {n[-1]}"
    rest = (
        f" Bars are 95 % intervals over seeds; {counted} seeds a mark ({joined(map(str, seeds))})."
        if n[-1] > 1
        else f" n = 1 seed a mark ({joined(map(str, seeds))})."
    )
    lines = [name for name, _ in curve.references]
    level = f" Level lines: {joined(lines)}, without any defence, mean over the runs that trained them."
    return rest + (level if lines else "")


def _panels(curve: Curve) -> str:
    free = any(not p.defended for p in curve.points)
    same = " Runs without a defence are the same in every panel." if free and len(curve.defences) > 1 else ""
    return f"A panel a defence, a line a protocol.{same} {_marks(curve)}"


def _marks(curve: Curve) -> str:
    half = " Half-filled marks have a defence, but no finite ε by the ledger." if curve.unclaimed else ""
    return f"Hollow marks have no defence.{half}"


def _ledger_said(curve: Curve, points: Sequence[Point]) -> str:
    """Return what the axis shows, what the smallest ε costs, and the number of missing points."""
    delta = delta_of(curve.points, curve.adversary)
    terms = {t for p in curve.points if (b := p.bill(curve.adversary)) is not None for t in b.terms}
    units, relations = (sorted({t[i] for t in terms if t[i]}) for i in (0, 1))
    parts = [f"δ = {delta}"] * bool(delta) + [f"for one {joined(units, 'or')}"] * bool(units)
    parts += [f"under {joined(relations, 'or')}"] * bool(relations)
    stated = f" ({', '.join(parts)})" if parts else ""
    said = f"ε is the ledger's, of {view_of(curve.adversary)}{stated}."
    spread = any(_differs(p, curve.adversary) for p in curve.points)
    worst = " A mark stands at the largest ε of its seeds, with a bar down to the least." if spread else ""
    broken = " Behind the break the ledger has no finite ε." if any(map(math.isinf, _all(curve))) else ""
    lost = sum(p.defended and "utility" in p.spreads and p not in curve.points for p in points)
    missing = f" Points left out, because their ledgers lack this view: {lost}." if lost else ""
    return f"{said} {_fall(curve)}{broken}{worst}{missing}"


def _differs(point: Point, adversary: str) -> bool:
    bill = point.bill(adversary)
    return bill is not None and bill.least < bill.epsilon


def _all(curve: Curve) -> list[float]:
    return [curve.epsilon(p) for p in curve.points]


def _asked_said(curve: Curve, points: Sequence[Point]) -> str:
    """Return that the axis is no guarantee, and how many points have no finite ε or are missing."""
    defended = [p for p in curve.points if p.defended]
    above = sum(p.level < curve.epsilon(p) < math.inf for p in defended)
    found = [f"{len(curve.unclaimed)} have no finite ε by the ledger"] * bool(curve.unclaimed)
    found += [f"{above} have a larger one than was asked"] * bool(above)
    of = f" Of {len(defended)} defended points {joined(found)}." if found else ""
    of = f" The ledger's ε is of {view_of(curve.adversary)}.{of}"
    lost = sum(p.defended and "utility" in p.spreads and p not in curve.points for p in points)
    missing = f" Points left out, because their level is no ε: {lost}." if lost else ""
    return f"ε asked is what noise was calibrated for. It is no guarantee.{of}{missing}"


def _fall(curve: Curve) -> str:
    """Return how utility at each protocol's smallest finite ε differs from that without a defence."""
    if not any(p.defended for p in curve.points):
        return "No defence is in this sweep."
    parts = []
    for defence in curve.defences:
        moved: list[tuple[float, int]] = []
        for protocol in curve.protocols:
            own = [p for p in curve.points if p.protocol == protocol]
            free = [p for p in own if not p.defended]
            held = [p for p in own if p.defence == defence and math.isfinite(curve.epsilon(p)) and p.defended]
            if held and free:
                least = min(held, key=curve.epsilon)
                change = least.spreads["utility"].mean - free[0].spreads["utility"].mean
                moved.append((curve.epsilon(least), round(100 * change)))
        if moved:
            changes, levels = [m for _, m in moved], [e for e, _ in moved]
            ends = dict.fromkeys(_signed(v) for v in (min(changes), max(changes)))
            at = dict.fromkeys(_epsilon(v) for v in (min(levels), max(levels)))
            parts.append(f"{clip(defence, 40)} {' to '.join(ends)} points at ε = {' to '.join(at)}")
    if not parts:
        return "No defence has both a finite ε and a run without it to compare with."
    return f"Each protocol's smallest finite ε against no defence: {joined(parts)}."


def _signed(points: int) -> str:
    return f"{points:+d}".replace("-", MINUS) if points else "0"


def _front_said(curve: Curve) -> str:
    best = curve.front
    named = joined(called(p, curve.adversary) for p in best[:4])
    more = f" and {len(best) - 4} more" if len(best) > 4 else ""
    return f"No other point betters {named}{more} in both."

"""Verdicts: plain words for measured figures, by rules that the report prints.

Guarantees:
  * a leak is claimed only from a signal as its goal's rule in `reports/goals/` defines it, never from a bare mean;
  * a failed negative control makes a cell inconclusive, for every result;
  * an attack that found nothing counts as "no leak measured" only if its positive control passed;
  * a cell with a test that is significant among its own tests, but not among all tests of the run, is a possible leak,
    never "no leak measured";
  * a gain below zero supports no possible leak, unless many records are identified far beyond chance; nor does a cell
    of a run whose final model is near chance;
  * no rule yields "safe".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from fdaudit.goals import challenged
from fdaudit.result import Cell, Result, Target
from fdaudit.types import Figure

from .correction import Correction, corrections, groups
from .goals import RULES
from .goals.rule import FAMILY_LEVEL, Rule, RuleInput, beside, by_name, decided_by, framed, worth
from .identification import LOOK, identifies
from .text import clip, detectable, joined, label, measure, odds

__all__ = ["EVERYONE", "LEVELS", "SETTLED", "Finding", "Level", "judge", "judge_all", "strongest"]

Level = Literal[
    "leak",
    "partial",
    "possible",
    "none-seen",
    "inconclusive",
    "not-tested",
    "failed",
    "not-applicable",
    "not-requested",
]

LEVELS: Mapping[Level, str] = MappingProxyType(
    {
        "leak": "Leak",
        "partial": "Partial leak",
        "possible": "Possible leak",
        "none-seen": "No leak measured",
        "inconclusive": "Inconclusive",
        "not-tested": "Not tested",
        "failed": "Failed",
        "not-applicable": "Not applicable",
        "not-requested": "Not requested",
    }
)
"""Levels from the gravest to the least informative, with the words shown for each. No cell is "not tested": a view is,
if private messages in it were read by no attack."""
SETTLED: Sequence[Level] = ("leak", "partial", "possible", "none-seen")
"""Levels of cells that gave an answer."""

_LOW = "The model is near chance on test records, which supports no possible leak."
EVERYONE = "all victims together"
"""Stands for a victim's name in evidence of all victims."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A cell's finding.

    Attributes:
        number: the cell's place in the result, from 1.
        level: the level found.
        measured: the measurement in one sentence with its numbers; empty if the cell did not run.
        because: why this level, in one sentence.
        cautions: limits of the finding that a reader must know.
        worst: the victim whose deciding figure leaks most, or None.
        key: the deciding figure of all victims together, or None.
        worst_key: the deciding figure of the worst victim, or None.
        affected: the victims for each of whom alone a leak was found.
        together: whether a leak was found for all victims together.
        decided_by: what decided in place of the deciding figure, by victim; `EVERYONE` stands for all together.
        detectable: what would have been significant, in a clause, if nothing was found.
        rehearsed: what the attack reached where coins are known, in a sentence, if nothing was found.
    """

    number: int
    cell: Cell
    level: Level
    measured: str
    because: str
    cautions: tuple[str, ...] = ()
    worst: Target | None = None
    key: Figure | None = None
    worst_key: Figure | None = None
    affected: tuple[str, ...] = ()
    together: bool = False
    decided_by: Mapping[str, str] = field(default_factory=dict)
    detectable: str = ""
    rehearsed: str = ""


def judge_all(result: Result) -> tuple[Finding, ...]:
    """Return every cell's finding, in the result's order, by p-values that are corrected for all tests of the run."""
    judged = zip(result.cells, corrections(result), strict=True)
    low = bool(result.utility.warnings)
    return tuple(judge(cell, i, correction, low) for i, (cell, correction) in enumerate(judged, start=1))


def strongest(findings: Sequence[Finding]) -> Finding | None:
    """Return the gravest finding; among equals the one with the worst victim; then the first."""
    order = list(LEVELS)

    def rank(finding: Finding) -> tuple[int, float]:
        rule = RULES.get(finding.cell.goal)
        return order.index(finding.level), -worth(rule, finding.worst_key or finding.key) if rule else 0.0

    return min(findings, key=rank, default=None)


def judge(
    cell: Cell, number: int = 1, correction: Correction | None = None, near_chance: bool = False
) -> Finding:
    """Judge one cell by the rule of its goal and the state of its controls.

    Args:
        cell: the cell.
        number: its place in the result, from 1.
        correction: of its p-values. Without one, each test is judged alone.
        near_chance: whether a final model of the run is near chance on test records.
    """
    rule = RULES.get(cell.goal)
    if rule is None:
        reason = cell.reason or f"The goal {clip(cell.goal, 60)} has no rule: its figures stand alone."
        as_it_is: Level = "inconclusive" if cell.status == "run" else cell.status
        return Finding(number=number, cell=cell, level=as_it_is, measured="", because=reason)
    with_key = [t for t in cell.targets if by_name(t.figures, rule.figure)]
    worst = max(with_key, key=lambda t: worth(rule, by_name(t.figures, rule.figure)), default=None)
    key = by_name(cell.figures, rule.figure)
    worst_key = by_name(worst.figures, rule.figure) if worst else None
    finding = Finding(
        number=number,
        cell=cell,
        level="inconclusive",
        measured="",
        because=cell.reason,
        worst=worst,
        key=key,
        worst_key=worst_key,
    )
    # A cell whose positive control failed may still have found a leak.
    if cell.status != "run" and not (cell.status == "inconclusive" and cell.controls):
        return replace(finding, level=cell.status, cautions=_look(cell, cell.status))
    measured = _measured(rule, key, worst, worst_key)
    decided = _decided(replace(finding, measured=measured), rule, correction or Correction())
    if decided.level == "possible" and near_chance:
        decided = replace(decided, level="inconclusive", because=f"{decided.because} {_LOW}")
    if cell.status == "inconclusive" and decided.level not in ("leak", "partial", "possible"):
        decided = replace(decided, level="inconclusive", because=cell.reason or decided.because)
    return replace(decided, cautions=(*decided.cautions, *_look(cell, decided.level)))


def _decided(finding: Finding, rule: Rule, correction: Correction) -> Finding:
    """Return the finding of a cell that ran, with its level, reason and cautions."""
    cell = finding.cell
    positive = cell.controls.positive if cell.controls else None
    negative = cell.controls.negative if cell.controls else None
    if negative is not None and not negative.passed:
        why = (
            "Its negative control failed: it finds a leak where there is none, so its figures prove nothing."
        )
        return replace(finding, because=why)
    evidence = list(_evidence(cell, correction))
    signals = [(e, sign) for e in evidence if (sign := rule.signal(e))]
    if signals:
        grave = [(e, sign) for e, sign in signals if rule.strong(e)]
        shown, sign = (grave or signals)[0]
        who = [e.who for e, _ in signals]
        return replace(
            finding,
            level="leak" if grave else "partial",
            because=f"For {shown.who}, {sign}.",
            cautions=tuple(_cautions(cell, who)),
            affected=tuple(name for name in who if name != EVERYONE),
            together=EVERYONE in who,
            decided_by={e.who: told for e, _ in signals if (told := decided_by(rule, e))},
        )
    if not any(rule.telling(e) for e in evidence):
        return replace(finding, because="Its deciding figure has no interval, or nothing to compare it with.")
    away, own = _corrected_away(cell, rule, correction)
    if own:
        cautions = (*_in_this_run(correction), *_rehearsed(cell))
        return replace(finding, level="possible", because=away, cautions=cautions)
    if positive is None or not positive.passed:
        why = "failed" if positive else "was not run"
        told = away or "It found nothing."
        return replace(finding, because=f"{told} Its positive control {why}: it has shown nothing.")
    power = cell.controls.power if cell.controls else None
    if power is not None and not power.passed:
        told = away or "It found nothing."
        blind = "In a rehearsal of this run with known coins it finds nothing either: it has no power here."
        return replace(finding, because=f"{told} {blind}")
    nothing = "Nothing lies above chance or the prior, and the attack's positive control passed."
    return replace(
        finding,
        level="none-seen",
        because=away or nothing,
        detectable=_detectable(correction),
        rehearsed=" ".join(_rehearsed(cell)),
        cautions=(
            *_in_this_run(correction),
            *_rehearsed(cell),
            "This attack, with this budget, found nothing. A stronger one may.",
        ),
    )


def _look(cell: Cell, found: Level) -> tuple[str, ...]:
    """Return the caution beside pictures that no test distinguished from chance."""
    return (LOOK,) if found in ("none-seen", "inconclusive") and any(t.images for t in cell.targets) else ()


def _evidence(cell: Cell, correction: Correction) -> Iterator[RuleInput]:
    """Yield the figures of all victims and of each, with their p-values after correction."""
    for target, figures, images in groups(cell):
        named = [t for t in cell.targets if target in (None, t.target)]
        yield RuleInput(
            who=EVERYONE if target is None else clip(target, 60),
            figures=[replace(f, p=correction.of(target, f)) for f in figures],
            images=images,
            shares=[t.shares for t in named if t.shares is not None] if _all_shown(named) else [],
            tests=correction.tests,
        )


def _all_shown(targets: Sequence[Target]) -> bool:
    """Return whether the class shares of every victim are known."""
    return all(t.shares is not None for t in targets)


def _corrected_away(cell: Cell, rule: Rule, correction: Correction) -> tuple[str, bool]:
    """Return a sentence if a figure is significant alone but not after correction, else an empty text.

    Figures beside a gain below zero do not count, except an identification of many records. Also return whether the
    figure is significant among the tests of its own cell (Bonferroni).
    """
    tested = [
        (figure.p, after, figure.name, EVERYONE if target is None else clip(target, 60), figures)
        for target, figures, _ in groups(cell)
        for figure in figures
        if figure.p is not None
        and (after := correction.of(target, figure)) is not None
        and not figure.name.endswith("_worst")
    ]
    found = [t[:4] for t in tested if t[0] <= FAMILY_LEVEL < t[1] and not _worse_than_guessing(rule, t[4])]
    if not found:
        return "", False
    p, after, name, who = min(found)
    said = (
        f"Not significant after correction ({label(name)}, {who}). Guessing would score this well "
        f"{odds(p, FAMILY_LEVEL).partition(';')[0]} in this test alone, but in one of {correction.tests:,} tests "
        f"{odds(after, FAMILY_LEVEL)}."
    )
    return said, p * len(tested) <= FAMILY_LEVEL


def _worse_than_guessing(rule: Rule, figures: Sequence[Figure]) -> bool:
    """Return whether the deciding figure is a gain over guessing below zero, and few records are identified."""
    key = by_name(figures, rule.figure)
    below = rule.chance == 0.0 and key is not None and (key.value or 0.0) < 0
    return below and not identifies(figures, level=1.0)


def _detectable(correction: Correction) -> str:
    """Return a clause with the least AUC that would have been significant in this cell; empty if there is none."""
    return "" if correction.floor is None else detectable(correction.floor, correction.floor_one_victim)


def _in_this_run(correction: Correction) -> Iterator[str]:
    if said := _detectable(correction):
        yield f"In this run it {said}."


def _rehearsed(cell: Cell) -> Iterator[str]:
    """Yield what a membership attack reached where the coins are known; of other goals there is nothing to say."""
    if not challenged(cell.goal):
        return
    power = cell.controls.power if cell.controls else None
    told = by_name(power.figures, "auc") if power is not None else None
    if told is not None and told.value is not None:
        yield f"In a rehearsal of this run with known coins it reached AUC {told.value:.3f}."
    elif (share := by_name(cell.figures, "pair_accuracy_rehearsed")) is not None and share.value is not None:
        yield f"In rehearsed federations with known coins it told {share.value:.0%} of them right; guessing tells 50%."
    else:
        yield "It was not tried on a rehearsal with known coins: `power: true` in the spec does so."


def _cautions(cell: Cell, signs: Sequence[str]) -> Iterator[str]:
    controls = cell.controls
    if controls is None or controls.negative is None:
        yield "No negative control was run beside it."
    if controls is None or controls.positive is None:
        yield "No positive control was run beside it."
    elif not controls.positive.passed:
        yield "Its positive control failed, so the attack is weak here; the leak may be larger."
    if EVERYONE not in signs and len(cell.targets) > 1:
        yield f"{_affected(cell, signs)}; the pooled result is not significant."
        if any(f.p is None for t in cell.targets for f in t.figures if f.name == "auc"):
            yield "Intervals are not corrected for the number of victims: one may stand out by chance."


def _affected(cell: Cell, victims: Sequence[str]) -> str:
    """Return the affected victims of a cell, as a clause."""
    if len(victims) == len(cell.targets):
        return "Each victim is affected"
    if len(victims) == 1:
        return f"Only {victims[0]} is affected"
    return f"Only {joined(victims)} of {len(cell.targets)} victims are affected"


def _measured(rule: Rule, key: Figure | None, worst: Target | None, worst_key: Figure | None) -> str:
    """Return the deciding figures in one sentence: of all victims and always also of the worst one."""
    parts = [f"{framed(rule, key)} over all victims"] if key else []
    if worst and worst_key:
        said = beside(rule, worst_key, key) if key else framed(rule, worst_key)
        parts.append(f"{said} for the worst victim, {clip(worst.target, 60)}")
        added = by_name(worst.figures, rule.beside_worst) if rule.beside_worst else None
        if added is not None and added.value is not None:
            parts.append(f"whose {label(rule.beside_worst)} is {measure(added, added.value)}")
    return f"{', '.join(parts)}." if parts else "Its deciding figure is unavailable."

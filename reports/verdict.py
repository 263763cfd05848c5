"""From measured figures to plain words, by rules that the report prints.

Guarantees:
  * a leak is claimed only from a signal as `fdaudit.reports.rules` defines it, never from a bare mean;
  * a failed negative control makes a cell inconclusive, whatever it found;
  * an attack that found nothing counts as "no leak measured" only where its positive control passed;
  * no rule yields "safe".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from fdaudit.types import Figure

from .rules import FAMILY_LEVEL, RULES, Evidence, Rule, by_name, tested, worth
from .schema import Cell, Result, Target
from .text import clip, measure, with_interval

__all__ = ["LEVELS", "Finding", "Level", "judge", "judge_all", "strongest"]

Level = Literal["leak", "partial", "none-seen", "inconclusive", "failed", "not-applicable", "not-requested"]

LEVELS: Mapping[Level, str] = MappingProxyType(
    {
        "leak": "Leak",
        "partial": "Partial leak",
        "none-seen": "No leak measured",
        "inconclusive": "Inconclusive",
        "failed": "Failed",
        "not-applicable": "Not applicable",
        "not-requested": "Not requested",
    }
)
"""Levels from the gravest to the one that says least, with the words shown for each."""

_MEAN = "all victims together"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A cell and what may be said of it.

    Attributes:
        number: the cell's place in the result, from 1.
        level: what was found.
        measured: what was measured, in one sentence with its numbers; empty where the cell did not run.
        because: why this level, in one sentence.
        cautions: what a reader must hold against it.
        worst: the victim whose deciding figure shows most, or None.
        key: the deciding figure of all victims together, or None.
        worst_key: the deciding figure of the worst victim, or None.
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


def judge_all(result: Result) -> tuple[Finding, ...]:
    """Every cell's finding, in the result's order.

    Figures with p-values share one level: the more of them a run has, the less one that stands out by chance counts.
    Those of membership share it among themselves, and so do those of reconstruction.
    """
    shares = {goal: FAMILY_LEVEL / max(_tests(result, goal), 1) for goal in RULES}
    return tuple(judge(c, i, shares.get(c.goal, FAMILY_LEVEL)) for i, c in enumerate(result.cells, start=1))


def _tests(result: Result, goal: str) -> int:
    """How many p-values the cells of a goal have."""
    told = [c for c in result.cells if c.status == "run" and c.goal == goal]
    return sum(tested(f) for c in told for f in (c.figures, *(t.figures for t in c.targets)))


def strongest(findings: Sequence[Finding]) -> Finding | None:
    """The gravest finding; among equals the one whose worst victim is worst; among those the first."""
    order = list(LEVELS)

    def rank(finding: Finding) -> tuple[int, float]:
        rule = RULES.get(finding.cell.goal)
        return order.index(finding.level), -worth(rule, finding.worst_key or finding.key) if rule else 0.0

    return min(findings, key=rank, default=None)


def judge(cell: Cell, number: int = 1, level: float = FAMILY_LEVEL) -> Finding:
    """What may be said of one cell, by the rule of its goal and the state of its controls.

    Args:
        cell: the cell.
        number: its place in the result, from 1.
        level: the p-value up to which a figure counts.
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
    found: Level
    if cell.status == "run":
        found, because, cautions = _decide(cell, rule, level)
        measured = _measured(rule, key, worst, worst_key)
    else:
        found, because, cautions, measured = cell.status, cell.reason, (), ""
    return Finding(
        number=number,
        cell=cell,
        level=found,
        measured=measured,
        because=because,
        cautions=cautions,
        worst=worst,
        key=key,
        worst_key=worst_key,
    )


def _decide(cell: Cell, rule: Rule, at: float) -> tuple[Level, str, tuple[str, ...]]:
    positive = cell.controls.positive if cell.controls else None
    negative = cell.controls.negative if cell.controls else None
    if negative is not None and not negative.passed:
        why = (
            "Its negative control failed: it finds a leak where there is none, so its figures prove nothing."
        )
        return "inconclusive", why, ()
    evidence = list(_evidence(cell, at))
    signals = [(e, sign) for e in evidence if (sign := rule.signal(e))]
    if signals:
        grave = [(e, sign) for e, sign in signals if rule.strong(e)]
        shown, sign = (grave or signals)[0]
        because = f"For {shown.who}, {sign}."
        cautions = tuple(_cautions(cell, [e.who for e, _ in signals]))
        return ("leak" if grave else "partial"), because, cautions
    if not any(rule.telling(e) for e in evidence):
        return "inconclusive", "Its deciding figure has no interval, or nothing to compare it with.", ()
    if positive is None or not positive.passed:
        why = "failed" if positive else "was not run"
        return "inconclusive", f"It found nothing, and its positive control {why}: it has shown nothing.", ()
    return (
        "none-seen",
        "Nothing lies above chance or the prior, and the attack's positive control passed.",
        ("This attack, with this budget, found nothing. A stronger one may.",),
    )


def _evidence(cell: Cell, level: float) -> Iterator[Evidence]:
    if cell.figures:
        yield Evidence(who=_MEAN, figures=cell.figures, level=level)
    for target in cell.targets:
        who = clip(target.target, 60)
        yield Evidence(who=who, figures=target.figures, images=target.images or (), level=level)


def _cautions(cell: Cell, signs: Sequence[str]) -> Iterator[str]:
    controls = cell.controls
    if controls is None or controls.negative is None:
        yield "No negative control was run beside it."
    if controls is None or controls.positive is None:
        yield "No positive control was run beside it."
    elif not controls.positive.passed:
        yield "Its positive control failed, so the attack is weak here; the leak may be larger."
    if _MEAN not in signs and len(cell.targets) > 1:
        corrected = all(f.p is not None for t in cell.targets for f in t.figures if f.name == "auc")
        yield (
            f"{'Only ' if len(signs) < len(cell.targets) else ''}{len(signs)} of {len(cell.targets)} victims show it "
            "and all together do not"
            + (
                "."
                if corrected
                else "; intervals are not corrected for their number: one may stand out by chance."
            )
        )


def _measured(rule: Rule, key: Figure | None, worst: Target | None, worst_key: Figure | None) -> str:
    """The deciding figures in one sentence: of all victims and, always beside it, of the worst one."""
    parts = [f"{rule.frame.format(with_interval(key))} over all victims"] if key else []
    if worst and worst_key:
        value = with_interval(worst_key)
        said = value if parts else rule.frame.format(value)
        parts.append(f"{said} for the worst victim, {clip(worst.target, 60)}")
        psnr = by_name(worst.figures, "psnr")
        if psnr and psnr.value is not None and rule is RULES["reconstruction"]:
            parts.append(f"whose PSNR is {measure(psnr, psnr.value)}")
    return f"{', '.join(parts)}." if parts else "Its deciding figure is unavailable."

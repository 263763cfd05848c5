"""From measured figures to plain words, by rules that the report prints.

Guarantees:
  * a leak is claimed only from an interval that lies above chance or above the prior, never from a bare value;
  * a failed negative control makes a cell inconclusive, whatever it found;
  * an attack that found nothing counts as "no leak measured" only where its positive control passed;
  * no rule yields "safe".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from fdaudit.types import Figure

from .schema import Cell, Result, Target
from .text import amount, clip, party, with_interval

__all__ = [
    "AUC_STRONG",
    "LEVELS",
    "PSNR_STRONG",
    "RULES",
    "TPR_STRONG",
    "TV_STRONG",
    "Finding",
    "Level",
    "Rule",
    "by_name",
    "judge",
    "judge_all",
    "strongest",
]

Level = Literal["leak", "partial", "none-seen", "inconclusive", "failed", "not-applicable"]

LEVELS: Mapping[Level, str] = MappingProxyType(
    {
        "leak": "Leak",
        "partial": "Partial leak",
        "none-seen": "No leak measured",
        "inconclusive": "Inconclusive",
        "failed": "Failed",
        "not-applicable": "Not applicable",
    }
)
"""Levels from the gravest to the one that says least, with the words shown for each."""

PSNR_STRONG = 20.0
"""dB; a root-mean-square pixel error of a tenth of the range."""

AUC_STRONG = 0.7
"""Area under the ROC curve from which membership counts as a leak, not a partial one."""

TPR_STRONG = 5.0
"""Multiple of the false-positive rate from which membership counts as a leak."""

TV_STRONG = 0.1
"""Total variation distance up to which a guessed label distribution counts as a leak."""

_TPR = re.compile(r"tpr_at_(\d+(?:\.\d+)?)fpr")

Figures = Sequence[Figure]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How cells of one goal are judged.

    Attributes:
        figure: the figure whose interval decides.
        chance: the value it has when nothing leaks.
        what: the goal as a noun.
        leaked: what the adversary could do, as a clause that follows the adversary's name.
        strong: whether figures that show a signal show a grave one.
        text: the rule in words, as the report prints it.
    """

    figure: str
    chance: float
    what: str
    leaked: str
    strong: Callable[[Figures], bool]
    text: str


def by_name(figures: Figures, name: str) -> Figure | None:
    """The figure of that name that has a value, or None."""
    return next((f for f in figures if f.name == name and f.value is not None), None)


def _strong_reconstruction(figures: Figures) -> bool:
    psnr = by_name(figures, "psnr")
    return psnr is not None and psnr.value is not None and psnr.value >= PSNR_STRONG


def _strong_membership(figures: Figures) -> bool:
    auc = by_name(figures, "auc")
    if auc is not None and auc.value is not None and auc.value >= AUC_STRONG and _above(auc, 0.5):
        return True
    return any((f.value or 0.0) >= TPR_STRONG * rate and _above(f, rate) for f, rate in _tprs(figures))


def _strong_labels(figures: Figures) -> bool:
    distance = by_name(figures, "total_variation")
    return distance is not None and distance.value is not None and distance.value <= TV_STRONG


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "reconstruction": Rule(
            figure="psnr_gain",
            chance=0.0,
            what="reconstruction of inputs",
            leaked="could reconstruct private training inputs",
            strong=_strong_reconstruction,
            text="The interval of the PSNR gain over the prior lies above 0 dB. It is a leak when PSNR reaches "
            f"{PSNR_STRONG:.0f} dB (pixels off by a tenth of their range, root mean square), else a partial leak.",
        ),
        "membership": Rule(
            figure="auc",
            chance=0.5,
            what="membership of records",
            leaked="could tell which records were trained on",
            strong=_strong_membership,
            text="The interval of the AUC lies above 0.5, or that of the true-positive rate at a stated "
            "false-positive rate lies above that rate. It is a leak when such an AUC reaches "
            f"{AUC_STRONG:.2f} or such a rate reaches {TPR_STRONG:.0f} times the false-positive rate, "
            "else a partial leak.",
        ),
        "label-distribution": Rule(
            figure="total_variation_gain",
            chance=0.0,
            what="clients' label distributions",
            leaked="could tell how clients' data divide among the classes",
            strong=_strong_labels,
            text="The interval of the gain in total variation over the prior lies above 0. It is a leak when the "
            f"distance left is at most {TV_STRONG:.1f}, else a partial leak.",
        ),
    }
)
"""The rules, by goal. A goal without one gets no verdict: its cells read inconclusive."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A cell and what may be said of it.

    Attributes:
        number: the cell's place in the result, from 1.
        level: what was found.
        measured: what was measured, in one sentence with its numbers.
        because: why this level, in one sentence.
        cautions: what a reader must hold against it.
        worst: the victim with the highest deciding figure, or None.
        key: the deciding figure of the mean over victims, or None.
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
    """Every cell's finding, in the result's order."""
    return tuple(judge(cell, i) for i, cell in enumerate(result.cells, start=1))


def strongest(findings: Sequence[Finding]) -> Finding | None:
    """The gravest finding; among equals the one whose worst victim is worst; among those the first."""
    order = list(LEVELS)
    return min(findings, key=lambda f: (order.index(f.level), -_value(f.worst_key or f.key)), default=None)


def judge(cell: Cell, number: int = 1) -> Finding:
    """What may be said of one cell, by the rule of its goal and the state of its controls."""
    rule = RULES.get(cell.goal)
    if cell.status != "run" or rule is None:
        status: Level = "inconclusive" if cell.status == "run" else cell.status
        reason = cell.reason or f"The goal {clip(cell.goal, 60)!r} has no rule: its figures stand without a verdict."
        return Finding(number=number, cell=cell, level=status, measured="", because=reason)
    worst = max(
        (t for t in cell.targets if by_name(t.figures, rule.figure)),
        key=lambda t: _value(by_name(t.figures, rule.figure)),
        default=None,
    )
    key = by_name(cell.figures, rule.figure)
    worst_key = by_name(worst.figures, rule.figure) if worst else None
    level, because, cautions = _decide(cell, rule)
    return Finding(
        number=number,
        cell=cell,
        level=level,
        measured=_measured(cell, key, worst, worst_key),
        because=because,
        cautions=cautions,
        worst=worst,
        key=key,
        worst_key=worst_key,
    )


def _decide(cell: Cell, rule: Rule) -> tuple[Level, str, tuple[str, ...]]:
    positive = cell.controls.positive if cell.controls else None
    negative = cell.controls.negative if cell.controls else None
    if negative is not None and not negative.passed:
        why = "Its negative control failed: the attack reports a leak where there is none, so its figures prove nothing."
        return "inconclusive", why, ()
    signals = list(_signals(cell, rule))
    if signals:
        grave = any(rule.strong(figures) for _, figures, _ in signals)
        who, _, sign = signals[0]
        why = f"For {who}, {sign}."
        return ("leak" if grave else "partial"), why, tuple(_cautions(cell, [who for who, _, _ in signals]))
    if not any(_has_interval(figures, rule) for _, figures in _groups(cell)):
        return "inconclusive", "No interval could be given for its deciding figure.", ()
    if positive is None or not positive.passed:
        why = "failed" if positive else "was not run"
        return "inconclusive", f"It found nothing, and its positive control {why}: it has shown nothing.", ()
    return (
        "none-seen",
        "No interval lies above chance or the prior, and the attack's positive control passed.",
        ("This attack, with this budget, found nothing. A stronger one may.",),
    )


def _cautions(cell: Cell, signs: Sequence[str]) -> Iterator[str]:
    controls = cell.controls
    if controls is None or controls.negative is None:
        yield "No negative control was run beside it."
    if controls is not None and controls.positive is not None and not controls.positive.passed:
        yield "Its positive control failed, so the attack is weaker than it should be: the leak may be larger."
    if "the mean over victims" not in signs and len(cell.targets) > 1:
        yield (
            f"Only {len(signs)} of {len(cell.targets)} victims' intervals show it and the mean's does not; "
            "the intervals are not corrected for their number, so one may stand out by chance."
        )


def _groups(cell: Cell) -> Iterator[tuple[str, Figures]]:
    if cell.figures:
        yield "the mean over victims", cell.figures
    for target in cell.targets:
        yield clip(target.target, 60), target.figures


def _signals(cell: Cell, rule: Rule) -> Iterator[tuple[str, Figures, str]]:
    """Who shows a signal (the mean, then each victim), by which figures, and how it shows."""
    for who, figures in _groups(cell):
        deciding = by_name(figures, rule.figure)
        if deciding is not None and _above(deciding, rule.chance):
            bound = amount(rule.chance, deciding.unit)
            yield who, figures, f"the interval's lower end, {amount(deciding.low or 0.0, deciding.unit)}, lies above {bound}"
            continue
        for tpr, rate in _tprs(figures) if cell.goal == "membership" else ():
            if _above(tpr, rate):
                low, bound = amount(tpr.low or 0.0, "fraction"), amount(rate, "fraction")
                yield who, figures, f"the true-positive rate's lower end, {low}, lies above {bound}"
                break


def _has_interval(figures: Figures, rule: Rule) -> bool:
    figure = by_name(figures, rule.figure)
    return figure is not None and figure.low is not None


def _above(figure: Figure, bound: float) -> bool:
    return figure.low is not None and figure.low > bound


def _tprs(figures: Figures) -> Iterator[tuple[Figure, float]]:
    for figure in figures:
        match = _TPR.fullmatch(figure.name)
        if match and figure.value is not None:
            yield figure, float(match[1]) / 100


def _value(figure: Figure | None) -> float:
    return float("-inf") if figure is None or figure.value is None else figure.value


def _measured(cell: Cell, key: Figure | None, worst: Target | None, worst_key: Figure | None) -> str:
    """The deciding figures in one sentence: the mean and, always beside it, the worst victim."""
    names = {"reconstruction": "PSNR above the prior's by", "membership": "AUC", "label-distribution": "gain"}
    name = names[cell.goal]
    parts = [f"{name} {with_interval(key)} in the mean"] if key else []
    if worst and worst_key:
        parts.append(f"{'' if parts else name + ' '}{with_interval(worst_key)} for the worst victim, {clip(worst.target, 60)}")
    psnr = by_name(worst.figures, "psnr") if worst else None
    if psnr and psnr.value is not None and cell.goal == "reconstruction":
        parts.append(f"whose PSNR is {amount(psnr.value, psnr.unit)}")
    attack = f"{clip(cell.attack, 60)} by {party(cell.adversary)}"
    return f"{attack}: {', '.join(parts)}." if parts else f"{attack}: its deciding figure is unavailable."

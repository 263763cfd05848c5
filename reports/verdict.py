"""Verdicts: plain words for measured figures, by rules that the report prints.

Guarantees:
  * a leak is claimed only from a signal as its goal's rule in `reports/goals/` defines it, never from a bare mean;
  * a failed negative control makes a cell inconclusive, for every result;
  * an attack that found nothing counts as "no leak measured" only if its positive control passed;
  * a cell with a test that is significant among its own tests, but not among all tests of the run, is a possible leak,
    never "no leak measured";
  * a gain below zero supports no possible leak, unless many records are identified far beyond chance; nor does a cell
    of a run whose final model is near chance;
  * no rule yields "safe";
  * a cell that is still to come, or that a budget of time left out, is "not tested", never "no leak measured".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from fdaudit.goals import challenged
from fdaudit.result import Cell, Controls, Level, Recording, Result, Target
from fdaudit.types import Figure

from .correction import Correction, corrections, groups
from .goals import RULES
from .goals.rule import FAMILY_LEVEL, Rule, RuleInput, beside, by_name, decided_by, framed, worth
from .identification import LOOK, identifies
from .text import clip, corrected, detectable, joined, label, measure, p_value

__all__ = ["EVERYONE", "LEVELS", "SETTLED", "Finding", "judge", "judge_all", "strongest"]

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
"""Levels from the gravest to the least informative, with the words shown for each."""
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
        certain: whether a leak leaves little doubt about any record, by the rule of its goal.
        of_classes: whether it is about what classes look like, and not about single records.
        decided_by: what decided in place of the deciding figure, by victim; `EVERYONE` stands for all together.
        detectable: what would have been significant, in a clause, if nothing was found.
        rehearsed: what the attack reached where coins are known, in a sentence, if nothing was found.
        blind: too few coins were tossed for any AUC to be significant.
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
    certain: bool = False
    of_classes: bool = False
    decided_by: Mapping[str, str] = field(default_factory=dict)
    detectable: str = ""
    rehearsed: str = ""
    blind: bool = False

    @property
    def untried(self) -> bool:
        """Return whether nothing was tried: no attack fits, none was asked for, or no time was left."""
        return self.level in ("not-applicable", "not-requested", "not-tested")

    @property
    def weak(self) -> bool:
        """Return whether the attack's positive control failed, so that it may miss much of a leak."""
        positive = self.cell.controls.positive if self.cell.controls else None
        return positive is not None and not positive.passed


def judge_all(result: Result) -> tuple[Finding, ...]:
    """Return every cell's finding, in the result's order, by p-values that are corrected for all tests of the run."""
    judged = zip(result.cells, corrections(result), strict=True)
    low = bool(result.utility.warnings)
    findings = []
    for number, (cell, correction) in enumerate(judged, start=1):
        findings.append(_with_unused(judge(cell, number, correction, low), result.run.recording))
    return tuple(findings)


def _with_unused(finding: Finding, recording: Recording | None) -> Finding:
    """Return a finding about members with how many of these no message used.

    They stay members, as the coins decided: to leave out pairs by what was used would break the test. They can only
    hide a leak. Where no candidate was used, finding nothing shows nothing.
    """
    if (
        recording is None
        or not challenged(finding.cell.goal)
        or finding.level not in (*SETTLED, "inconclusive")
    ):
        return finding
    victims = {target.target for target in finding.cell.targets}
    about = [one for one in recording.unused if one.party in victims and one.unused_candidates]
    if not about:
        return finding
    unused, of = sum(one.unused_candidates for one in about), sum(one.candidates for one in about)
    who = joined(clip(one.party, 60) for one in about)
    said = f"{unused} of {of} candidates that are members of {who} were used by no message."
    if unused == of and len(about) == len(victims) and finding.level in ("none-seen", "possible"):
        return replace(
            finding, level="inconclusive", because=f"{said} There was nothing to find.", detectable=""
        )
    return replace(finding, cautions=(*finding.cautions, f"{said} They count as members, which hides leaks."))


def strongest(findings: Sequence[Finding]) -> Finding | None:
    """Return the gravest finding.

    Among equals a certain one comes first, then one of records, then one whose positive control passed, then that of
    the worst victim.
    """
    order = list(LEVELS)

    def rank(finding: Finding) -> tuple[int, bool, bool, bool, float]:
        rule = RULES.get(finding.cell.goal)
        harm = worth(rule, finding.worst_key or finding.key) if rule else 0.0
        return order.index(finding.level), not finding.certain, finding.of_classes, finding.weak, -harm

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
    of_classes = by_name(cell.figures, "evaluator_accuracy") is not None
    if rule is None:
        reason = cell.reason or f"The goal {clip(cell.goal, 60)} has no rule: its figures stand alone."
        as_it_is: Level = "inconclusive" if cell.status == "run" else cell.status
        return Finding(
            number=number, cell=cell, level=as_it_is, measured="", because=reason, of_classes=of_classes
        )
    worst: Target | None = None
    worst_key: Figure | None = None
    for target in cell.targets:
        figure = by_name(target.figures, rule.figure)
        if figure is not None and (worst is None or worth(rule, figure) > worth(rule, worst_key)):
            worst, worst_key = target, figure
    key = by_name(cell.figures, rule.figure)
    finding = Finding(
        number=number,
        cell=cell,
        level="inconclusive",
        measured="",
        because=cell.reason,
        worst=worst,
        key=key,
        worst_key=worst_key,
        of_classes=of_classes,
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
    controls = cell.controls or Controls()
    positive, negative, power = controls.positive, controls.negative, controls.power
    if negative is not None and not negative.passed:
        why = (
            "Its negative control failed: it finds a leak where there is none, so its figures prove nothing."
        )
        return replace(finding, because=why)
    evidence = list(_evidence(cell, correction))
    signals = [(e, sign) for e in evidence if (sign := rule.signal(e))]
    if signals:
        grave = [(e, sign) for e, sign in signals if rule.strong(e)]
        top, sign = (grave or signals)[0]
        clauses = {e.who: decided_by(rule, e) for e, _ in signals}
        return replace(
            finding,
            level="leak" if grave else "partial",
            because=f"For {top.who}, {sign}.",
            cautions=tuple(_cautions(cell, list(clauses))),
            affected=tuple(name for name in clauses if name != EVERYONE),
            together=EVERYONE in clauses,
            certain=rule.certain is not None and any(rule.certain(e) for e, _ in grave),
            decided_by={who: clause for who, clause in clauses.items() if clause},
        )
    if not any(rule.telling(e) for e in evidence):
        return replace(finding, because="Its deciding figure has no interval, or nothing to compare it with.")
    away, own = _corrected_away(cell, rule, correction)
    if own:
        cautions = (*_in_this_run(correction), *_rehearsed(cell))
        blind = correction.too_few > 0
        return replace(finding, level="possible", because=away, cautions=cautions, blind=blind)
    if positive is None or not positive.passed:
        why = "failed" if positive else "was not run"
        clause = away or "It found nothing."
        return replace(finding, because=f"{clause} Its positive control {why}: it has shown nothing.")
    if power is not None and not power.passed:
        clause = away or "It found nothing."
        powerless = (
            "In a rehearsal of this run with known coins it finds nothing either: it has no power here."
        )
        return replace(finding, because=f"{clause} {powerless}")
    if correction.too_few:
        few = f"Only {correction.too_few} coins decided who is a member: no AUC would be significant in this run."
        return replace(finding, because=f"{away or 'It found nothing.'} {few}", blind=True)
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
    if found in ("none-seen", "inconclusive") and any(t.images for t in cell.targets):
        return (LOOK,)
    return ()


def _evidence(cell: Cell, correction: Correction) -> Iterator[RuleInput]:
    """Yield the figures of all victims and of each, with their p-values after correction."""
    for target, figures, images in groups(cell):
        targets = [t for t in cell.targets if target in (None, t.target)]
        shares = [t.shares for t in targets if t.shares is not None]
        if len(shares) < len(targets):  # the shares of some victims say nothing of all
            shares = []
        yield RuleInput(
            who=_victim(target),
            figures=[replace(f, p=correction.of(target, f)) for f in figures],
            images=images,
            shares=shares,
            tests=correction.tests,
        )


def _victim(target: str | None) -> str:
    """Return a victim's name for readers, or the word for all together."""
    return EVERYONE if target is None else clip(target, 60)


def _corrected_away(cell: Cell, rule: Rule, correction: Correction) -> tuple[str, bool]:
    """Return a sentence if a figure is significant alone but not after correction, else an empty text.

    Figures beside a gain below zero do not count, except an identification of many records. Also return whether the
    figure is significant among the tests of its own cell (Bonferroni).
    """
    count, only_alone = 0, []
    for target, figures, _ in groups(cell):
        for figure in figures:
            after = correction.of(target, figure)
            if figure.p is None or after is None or figure.name.endswith("_worst"):
                continue
            count += 1
            if figure.p <= FAMILY_LEVEL < after and not _worse_than_guessing(rule, figures):
                only_alone.append((figure.p, after, figure.name, _victim(target)))
    if not only_alone:
        return "", False
    p, after, name, who = min(only_alone)
    note = (
        f"Not significant after correction ({label(name)}, {who}): {p_value(p, FAMILY_LEVEL)} in this test alone, and "
        f"{corrected(after, FAMILY_LEVEL, correction.tests)}."
    )
    return note, p * count <= FAMILY_LEVEL


def _worse_than_guessing(rule: Rule, figures: Sequence[Figure]) -> bool:
    """Return whether the deciding figure is a gain over guessing below zero, and few records are identified."""
    key = by_name(figures, rule.figure)
    below = rule.chance == 0.0 and key is not None and (key.value or 0.0) < 0
    return below and not identifies(figures, level=1.0)


def _detectable(correction: Correction) -> str:
    """Return a clause with the least AUC that would have been significant in this cell; empty if there is none."""
    if correction.floor is None or correction.floor <= 0.5:
        return ""
    return detectable(correction.floor, correction.floor_one_victim)


def _in_this_run(correction: Correction) -> Iterator[str]:
    if clause := _detectable(correction):
        yield f"In this run it {clause}."


def _rehearsed(cell: Cell) -> Iterator[str]:
    """Yield what a membership attack reached where the coins are known; of other goals there is nothing to say."""
    if not challenged(cell.goal):
        return
    controls = cell.controls or Controls()
    auc = by_name(controls.power.figures, "auc") if controls.power else None
    if auc is not None and auc.value is not None:
        yield f"In a rehearsal of this run with known coins it reached AUC {auc.value:.3f}."
    elif (share := by_name(cell.figures, "pair_accuracy_rehearsed")) is not None and share.value is not None:
        yield f"In rehearsed federations with known coins it told {share.value:.0%} of them right; guessing tells 50%."
    else:
        yield "It was not tried on a rehearsal with known coins: `power: true` in the spec does so."


def _cautions(cell: Cell, signs: Sequence[str]) -> Iterator[str]:
    controls = cell.controls or Controls()
    if controls.negative is None:
        yield "No negative control was run beside it."
    if controls.positive is None:
        yield "No positive control was run beside it."
    elif not controls.positive.passed:
        yield "Its positive control failed: the attack is weak here, and the leak may be larger."
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
        at_worst = beside(rule, worst_key, key) if key else framed(rule, worst_key)
        parts.append(f"{at_worst} for the worst victim, {clip(worst.target, 60)}")
        added = by_name(worst.figures, rule.beside_worst) if rule.beside_worst else None
        if added is not None and added.value is not None:
            parts.append(f"whose {label(rule.beside_worst)} is {measure(added, added.value)}")
    return f"{', '.join(parts)}." if parts else "Its deciding figure is unavailable."

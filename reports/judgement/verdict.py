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

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType

from fdaudit.goals import challenged
from fdaudit.result import Cell, Controls, Level, Recording, Result, Shares, Target
from fdaudit.types import Figure

from ..goals import RULES
from ..goals.identification import LOOK, identifies
from ..goals.rule import FAMILY_LEVEL, Rule, RuleInput, beside, by_name, decided_by, framed, worth
from ..grouping import grouped
from ..text import clip, corrected, detectable, joined, label, measure, p_value
from .correction import Correction, corrections, groups

__all__ = ["EVERYONE", "LEVELS", "SETTLED", "Finding", "by_view", "judge", "judge_all", "strongest"]

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
    pairs = zip(result.cells, corrections(result), strict=True)
    near_chance = bool(result.utility.warnings)
    findings = []
    for number, (cell, correction) in enumerate(pairs, start=1):
        finding = judge(cell, number, correction, near_chance)
        findings.append(_with_unused(finding, result.run.recording))
    return tuple(findings)


def _with_unused(finding: Finding, recording: Recording | None) -> Finding:
    """Return a finding about members with how many of these no message used.

    They stay members, as the coins decided: to leave out pairs by what was used would break the test. They can only
    hide a leak. Where no candidate was used, finding nothing shows nothing.
    """
    if recording is None or not challenged(finding.cell.goal):
        return finding
    victims = {target.target for target in finding.cell.targets}
    parties, unused, candidates = list[str](), 0, 0
    for one in recording.unused:
        if one.party in victims and one.unused_candidates:
            parties.append(clip(one.party, 60))
            unused += one.unused_candidates
            candidates += one.candidates
    if not parties or finding.level not in (*SETTLED, "inconclusive"):
        return finding
    who = joined(parties)
    text = f"{unused} of {candidates} candidates that are members of {who} were used by no message."
    all_unused = unused == candidates and len(parties) == len(victims)
    if all_unused and finding.level in ("none-seen", "possible"):
        because = f"{text} There was nothing to find."
        return replace(finding, level="inconclusive", because=because, detectable="")
    return replace(finding, cautions=(*finding.cautions, f"{text} They count as members, which hides leaks."))


def by_view(findings: Iterable[Finding]) -> dict[tuple[str, str], list[Finding]]:
    """Return findings by adversary and goal."""
    return grouped(findings, lambda finding: (finding.cell.adversary, finding.cell.goal))


def strongest(findings: Sequence[Finding]) -> Finding | None:
    """Return the gravest finding.

    Among equals a certain one comes first, then one of records, then one whose positive control passed, then that of
    the worst victim.
    """
    order = list(LEVELS)

    def rank(finding: Finding) -> tuple[int, bool, bool, bool, float]:
        rule, harm = RULES.get(finding.cell.goal), 0.0
        if rule is not None:
            harm = worth(rule, finding.worst_key or finding.key)
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
    status: Level = "inconclusive" if cell.status == "run" else cell.status
    finding = Finding(
        number=number,
        cell=cell,
        level=status,
        measured="",
        because=cell.reason,
        of_classes=by_name(cell.figures, "evaluator_accuracy") is not None,
    )
    if rule is None:
        alone = f"The goal {clip(cell.goal, 60)} has no rule: its figures stand alone."
        return replace(finding, because=cell.reason or alone)
    worst: Target | None = None
    worst_key: Figure | None = None
    for target in cell.targets:
        figure = by_name(target.figures, rule.figure)
        if figure is not None and (worst is None or worth(rule, figure) > worth(rule, worst_key)):
            worst, worst_key = target, figure
    key = by_name(cell.figures, rule.figure)
    finding = replace(finding, worst=worst, key=key, worst_key=worst_key)
    # A cell whose positive control failed may still have found a leak.
    if cell.status != "run" and not (cell.status == "inconclusive" and cell.controls):
        return replace(finding, cautions=_look(cell, status))
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
    negative = cell.controls.negative if cell.controls else None
    if negative is not None and not negative.passed:
        why = (
            "Its negative control failed: it finds a leak where there is none, so its figures prove nothing."
        )
        return replace(finding, because=why)
    evidence = list(_evidence(cell, correction))
    signals, grave = list[tuple[RuleInput, str]](), list[tuple[RuleInput, str]]()
    clauses = dict[str, str]()
    for e in evidence:
        if sign := rule.signal(e):
            signals.append((e, sign))
            clauses[e.who] = decided_by(rule, e)
            if rule.strong(e):
                grave.append((e, sign))
    if signals:
        top, sign = (grave or signals)[0]
        level: Level = "leak" if grave else "partial"
        affected, reasons = list[str](), dict[str, str]()
        for who, clause in clauses.items():
            if who != EVERYONE:
                affected.append(who)
            if clause:
                reasons[who] = clause
        return replace(
            finding,
            level=level,
            because=f"For {top.who}, {sign}.",
            cautions=tuple(_cautions(cell, clauses)),
            affected=tuple(affected),
            together=EVERYONE in clauses,
            certain=rule.certain is not None and any(rule.certain(e) for e, _ in grave),
            decided_by=reasons,
        )
    if not any(rule.telling(e) for e in evidence):
        return replace(finding, because="Its deciding figure has no interval, or nothing to compare it with.")
    return _without_signal(finding, rule, correction)


def _without_signal(finding: Finding, rule: Rule, correction: Correction) -> Finding:
    """Return the finding of a cell in which nothing shows a leak: possible, not seen, or why it cannot be told."""
    cell = finding.cell
    controls = cell.controls or Controls()
    positive, power = controls.positive, controls.power
    away, own = _corrected_away(cell, rule, correction)
    rehearsed = tuple(_rehearsed(cell))
    cautions, least = rehearsed, ""
    if correction.floor is not None and correction.floor > 0.5:
        least = detectable(correction.floor, correction.floor_one_victim)
        cautions = (f"In this run it {least}.", *rehearsed)
    blind = correction.too_few > 0
    if own:
        return replace(finding, level="possible", because=away, cautions=cautions, blind=blind)
    clause = away or "It found nothing."
    if positive is None:
        return replace(finding, because=f"{clause} Its positive control was not run: it has shown nothing.")
    if not positive.passed:
        return replace(finding, because=f"{clause} Its positive control failed: it has shown nothing.")
    if power is not None and not power.passed:
        powerless = (
            "In a rehearsal of this run with known coins it finds nothing either: it has no power here."
        )
        return replace(finding, because=f"{clause} {powerless}")
    if blind:
        few = f"Only {correction.too_few} coins decided who is a member: no AUC would be significant in this run."
        return replace(finding, because=f"{clause} {few}", blind=True)
    nothing = "Nothing lies above chance or the prior, and the attack's positive control passed."
    return replace(
        finding,
        level="none-seen",
        because=away or nothing,
        detectable=least,
        rehearsed=" ".join(rehearsed),
        cautions=(*cautions, "This attack, with this budget, found nothing. A stronger one may."),
    )


def _look(cell: Cell, level: Level) -> tuple[str, ...]:
    """Return the caution beside pictures that no test distinguished from chance."""
    if level in ("none-seen", "inconclusive") and any(target.images for target in cell.targets):
        return (LOOK,)
    return ()


def _evidence(cell: Cell, correction: Correction) -> Iterator[RuleInput]:
    """Yield the figures of all victims and of each, with their p-values after correction."""
    for target, figures, images in groups(cell):
        victims, shares = 0, list[Shares]()
        for victim in cell.targets:
            if target in (None, victim.target):
                victims += 1
                if victim.shares:
                    shares.append(victim.shares)
        if len(shares) < victims:  # the shares of some victims say nothing of all
            shares = []
        corrected_figures = list[Figure]()
        for figure in figures:
            corrected_figures.append(replace(figure, p=correction.of(target, figure)))
        yield RuleInput(
            who=_victim(target),
            figures=corrected_figures,
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
        key = by_name(figures, rule.figure)
        below_guessing = rule.chance == 0.0 and key is not None and (key.value or 0.0) < 0
        counts = not below_guessing or identifies(figures, level=1.0)
        for figure in figures:
            after = correction.of(target, figure)
            if figure.p is None or after is None or figure.name.endswith("_worst"):
                continue
            count += 1
            if counts and figure.p <= FAMILY_LEVEL < after:
                only_alone.append((figure.p, after, figure.name, _victim(target)))
    if not only_alone:
        return "", False
    p, after, name, who = min(only_alone)
    note = (
        f"Not significant after correction ({label(name)}, {who}): {p_value(p, FAMILY_LEVEL)} in this test alone, and "
        f"{corrected(after, FAMILY_LEVEL, correction.tests)}."
    )
    return note, p * count <= FAMILY_LEVEL


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


def _cautions(cell: Cell, signs: Collection[str]) -> Iterator[str]:
    controls = cell.controls or Controls()
    if controls.negative is None:
        yield "No negative control was run beside it."
    if controls.positive is None:
        yield "No positive control was run beside it."
    elif not controls.positive.passed:
        yield "Its positive control failed: the attack is weak here, and the leak may be larger."
    if EVERYONE not in signs and len(cell.targets) > 1:
        affected = f"Only {joined(signs)} of {len(cell.targets)} victims are affected"
        if len(signs) == len(cell.targets):
            affected = "Each victim is affected"
        elif len(signs) == 1:
            affected = f"Only {joined(signs)} is affected"
        yield f"{affected}; the pooled result is not significant."
        figures = chain.from_iterable(target.figures for target in cell.targets)
        if any(figure.name == "auc" and figure.p is None for figure in figures):
            yield "Intervals are not corrected for the number of victims: one may stand out by chance."


def _measured(rule: Rule, key: Figure | None, worst: Target | None, worst_key: Figure | None) -> str:
    """Return the deciding figures in one sentence: of all victims and always also of the worst one."""
    parts = []
    if key is not None:
        parts.append(f"{framed(rule, key)} over all victims")
    if worst is not None and worst_key is not None:
        at_worst = beside(rule, worst_key, key) if key else framed(rule, worst_key)
        parts.append(f"{at_worst} for the worst victim, {clip(worst.target, 60)}")
        added = by_name(worst.figures, rule.beside_worst)
        if added is not None and added.value is not None:
            parts.append(f"whose {label(rule.beside_worst)} is {measure(added, added.value)}")
    if not parts:
        return "Its deciding figure is unavailable."
    return f"{', '.join(parts)}."

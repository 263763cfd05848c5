"""The matrices: a row for each attack that ran, and *Who can learn what*: each adversary's result for each goal.

Guarantees:
  * a mean always has the worst victim beside it, and a figure has its baseline;
  * the row's picture is the first one of the worst victim in the result's order, never chosen by quality.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fdaudit.goals import GOALS
from fdaudit.result import Level, Result
from fdaudit.types import Figure

from ..goals import RULES
from ..goals.model_extraction import HELD
from ..goals.rule import WorstRecord, by_name, value_of
from ..judgement.inheritance import Standing, private_kinds
from ..judgement.verdict import LEVELS, SETTLED, Finding, by_view
from ..text import clip, party, plural, sentence
from .actions import lacks_auxiliary

__all__ = ["AttackMatrix", "MatrixEntry", "MatrixLine", "MatrixRow", "attack_matrix", "grid", "matrix_of"]

_NOTHING = "Receives nothing private."
_HELD = f"{HELD}."
"""End of the reason why a model that an adversary holds is not copied."""


@dataclass(frozen=True, kw_only=True)
class MatrixLine:
    """One attack against one adversary's view.

    Attributes:
        finding: the cell and its verdict.
        figure: the name of the deciding figure.
        mean: the deciding figure over all victims, or None.
        worst: that of the worst victim, or None.
        baseline: the figure without the attack: chance, or the prior's figure; None if neither is known.
        baseline_name: "chance" or "prior".
        record: the worst record, if the attack is about single ones.
    """

    finding: Finding
    figure: str
    mean: Figure | None
    worst: Figure | None
    baseline: float | None
    baseline_name: str
    record: WorstRecord | None


@dataclass(frozen=True, kw_only=True)
class AttackMatrix:
    """What became of every attack against every adversary.

    Attributes:
        adversaries: the columns.
        goals: by goal, then by attack, a level for each adversary; empty where there is no such cell.
        nowhere: the attacks that are applicable to no adversary; they have no line.
    """

    adversaries: tuple[str, ...]
    goals: dict[str, dict[str, tuple[str, ...]]]
    nowhere: tuple[str, ...]


def grid(findings: Sequence[Finding]) -> AttackMatrix:
    """Return every cell's level, a line an attack."""
    adversaries = tuple(dict.fromkeys(f.cell.adversary for f in findings))
    attacks: dict[tuple[str, str], dict[str, str]] = {}
    for finding in findings:
        cell = finding.cell
        attacks.setdefault((cell.goal, cell.attack), {})[cell.adversary] = finding.level
    goals: dict[str, dict[str, tuple[str, ...]]] = {}
    nowhere = []
    for (goal, attack), levels in attacks.items():
        if set(levels.values()) == {"not-applicable"}:
            nowhere.append(attack)
        else:
            goals.setdefault(goal, {})[attack] = tuple(levels.get(name, "") for name in adversaries)
    return AttackMatrix(adversaries=adversaries, goals=goals, nowhere=tuple(nowhere))


def attack_matrix(findings: Sequence[Finding]) -> tuple[MatrixLine, ...]:
    """Return a line for each cell with an answer whose goal has a rule, the gravest first, then in the result's order.

    A leak is an answer even where the positive control failed.
    """
    order = list(LEVELS)
    answers = list[Finding]()
    for finding in findings:
        if finding.cell.goal in RULES and (finding.cell.status == "run" or finding.level in SETTLED):
            answers.append(finding)
    return tuple(map(_line, sorted(answers, key=lambda finding: order.index(finding.level))))


def _line(finding: Finding) -> MatrixLine:
    cell = finding.cell
    rule = RULES[cell.goal]
    name = rule.tabled or rule.figure
    mean = by_name(cell.figures, name)
    worst_figures = finding.worst.figures if finding.worst else ()
    at_worst = by_name(worst_figures, name)
    baseline = rule.chance
    if rule.baseline != "chance" and mean is None and at_worst is None:
        baseline = None  # a prior stands beside the figure that it is compared with
    elif rule.baseline != "chance":
        baseline = value_of((*cell.figures, *worst_figures), f"{name}_prior")
    return MatrixLine(
        finding=finding,
        figure=name,
        mean=mean,
        worst=at_worst,
        baseline=baseline,
        baseline_name=rule.baseline,
        record=None if rule.record is None else rule.record(cell),
    )


@dataclass(frozen=True, kw_only=True)
class MatrixEntry:
    """An adversary's result for one goal: its standing, and how many of its own attacks support it.

    `note` says whose finding it is, or what a result without a leak leaves open.
    """

    goal: str
    level: Level
    finding: Finding | None
    note: str = ""
    conclusive: int = 0
    tried: int = 0

    @property
    def words(self) -> str:
        """Return the level in words; where nothing was tried on private messages, it says so."""
        finding = self.finding
        if finding is None:
            return LEVELS[self.level]
        if self.level == "partial" and finding.of_classes:
            return "Partial: classes"
        if self.level == "not-tested" and self.conclusive:
            return "Tested in part"
        if not finding.untried or self.level == "not-requested" or self.note == _NOTHING:
            return LEVELS[self.level]
        if self.note.endswith(_HELD):
            return "Already held"
        return "Not tested"


@dataclass(frozen=True, kw_only=True)
class MatrixRow:
    """One adversary's entries, a goal each."""

    adversary: str
    entries: tuple[MatrixEntry, ...]


def matrix_of(
    result: Result, all_standings: Sequence[Standing], findings: Sequence[Finding]
) -> tuple[tuple[str, ...], tuple[MatrixRow, ...]]:
    """Return the goals of the columns, and the rows.

    Args:
        result: the result.
        all_standings: of the result's judgement.
        findings: of the result's judgement.
    """
    own_findings = by_view(findings)
    # Images or texts, of which nothing was tried, are another kind of records than the run's: their goal is left out.
    all_goals, tried = set[str](), set[str]()
    for finding in findings:
        all_goals.add(finding.cell.goal)
        if not finding.untried:
            tried.add(finding.cell.goal)
    showing = list[str]()
    for goal in GOALS.values():
        if goal.shows and goal.name in all_goals:
            showing.append(goal.name)
    left_out = set(showing).difference(tried.intersection(showing) or showing[:1])
    rows: dict[str, list[MatrixEntry]] = {}
    goals = dict[str, None]()
    for standing in all_standings:
        row = rows.setdefault(standing.adversary, [])
        if standing.goal in left_out:
            continue
        goals[standing.goal] = None
        own = own_findings.get((standing.adversary, standing.goal), [])
        row.append(
            MatrixEntry(
                goal=standing.goal,
                level=standing.level,
                finding=standing.finding,
                note=_note(result, standing, own),
                conclusive=sum(f.level in SETTLED for f in own),
                tried=sum(not f.untried for f in own),
            )
        )
    matrix = [MatrixRow(adversary=name, entries=tuple(entries)) for name, entries in rows.items()]
    return tuple(goals), tuple(matrix)


def _in_part(standing: Standing, own: Sequence[Finding]) -> str:
    """Return what the attacks that ran could have seen, and what was not tested; empty unless a part was tested."""
    answers = [f for f in own if f.level in SETTLED]
    if standing.level != "not-tested" or not answers:
        return ""
    clause = f"{plural(len(answers), 'attack')} found none"
    for finding in answers:
        if finding is standing.finding and finding.detectable:
            clause += f"; the strongest {finding.detectable}"
    return f"{clause}. {standing.untested}"


def _note(result: Result, standing: Standing, own: Sequence[Finding]) -> str:
    """Return whose finding an entry is, or what a result without a leak leaves open."""
    if clause := _in_part(standing, own) or standing.inherited:
        return clause
    if standing.alone:
        return f"{sentence(party(standing.alone))} alone has this leak too."
    if standing.level == "inconclusive" and standing.finding is not None and not result.withheld:
        if standing.finding.level == "inconclusive" and lacks_auxiliary(result):
            return "No auxiliary records were brought: nothing compares its figure with chance."
        return f"{sentence(clip(standing.finding.because.rstrip('.'), 90))}."
    if standing.level == "none-seen" and standing.finding is not None and standing.finding.detectable:
        finding = standing.finding
        return f"It {finding.detectable}. A smaller leak would be missed. {finding.rehearsed}".rstrip()
    if standing.level != "not-applicable":
        return ""
    if not private_kinds(result, standing.adversary):
        return _NOTHING
    reasons = {f.cell.reason for f in own}
    if len(reasons) != 1 or result.withheld or not any(reasons):
        return "No attack here fits what it receives."
    return f"{sentence(clip(reasons.pop(), 90))}."

"""The attack matrix: a row for every attack that ran, with all victims, the worst victim and the worst record.

Guarantees:
  * a mean always has the worst victim beside it, and a figure has its baseline;
  * the row's picture is the first one of the worst victim in the result's order, never chosen by quality.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fdaudit.types import Figure

from ..goals import RULES
from ..goals.rule import WorstRecord, by_name, value_of
from ..judgement.verdict import LEVELS, SETTLED, Finding

__all__ = ["AttackMatrix", "MatrixLine", "attack_matrix", "grid"]


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
    answered = [f for f in findings if f.cell.status == "run" or f.level in SETTLED]
    with_rule = [f for f in answered if f.cell.goal in RULES]
    return tuple(map(_line, sorted(with_rule, key=lambda finding: order.index(finding.level))))


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

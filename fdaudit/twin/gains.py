"""What a deviation gains: each adversary's gravest finding for each goal, beside that of the honest twin.

Guarantee:
  * a gain is claimed only where intervals part, or where no attack applies to the twin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fdaudit.reports.goals import RULES
from fdaudit.reports.goals.rule import Rule, by_name
from fdaudit.reports.judgement.judgement import findings_of
from fdaudit.reports.judgement.verdict import SETTLED, Finding, strongest
from fdaudit.result import Gain, GainVerdict, Result
from fdaudit.types import Figure

__all__ = ["gains"]

_LEAKS = ("leak", "partial")


def gains(active: Result, honest: Result) -> Iterator[Gain]:
    """Yield what an adversary reaches in a run and in its twin, for each goal that either run has an answer for.

    Args:
        active: the run's result.
        honest: the twin's.
    """
    twins = _by_pair(honest)
    for pair, finding in _by_pair(active).items():
        twin = twins.get(pair)
        rule = RULES.get(finding.cell.goal)
        if twin is None or rule is None or not {finding.level, twin.level} & set(SETTLED):
            continue
        yield _gain(rule, finding, twin, "")
        victims = [target.target for target in finding.cell.targets]
        if len(victims) > 1:
            for victim in victims:
                yield _gain(rule, finding, twin, victim)


def _by_pair(result: Result) -> Mapping[tuple[str, str], Finding]:
    """Return the gravest finding of each adversary and goal."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings_of(result):
        groups.setdefault((finding.cell.adversary, finding.cell.goal), []).append(finding)
    gravest: dict[tuple[str, str], Finding] = {}
    for pair, group in groups.items():
        worst = strongest(group)
        if worst is not None:
            gravest[pair] = worst
    return gravest


def _gain(rule: Rule, finding: Finding, twin: Finding, victim: str) -> Gain:
    """Return what both runs found for one victim, or for all together where `victim` is empty."""
    figure = _deciding(rule, finding, victim)
    honest_figure = _deciding(rule, twin, victim)
    return Gain(
        adversary=finding.cell.adversary,
        goal=finding.cell.goal,
        victim=victim,
        attack=finding.cell.attack,
        level=finding.level,
        figure=figure,
        honest_attack=twin.cell.attack,
        honest_level=twin.level,
        honest_figure=honest_figure,
        verdict=_verdict(rule, finding, twin, victim, figure, honest_figure),
    )


def _deciding(rule: Rule, finding: Finding, victim: str) -> Figure | None:
    """Return the deciding figure of one victim or of all together; a single victim's stands for all if it is alone."""
    if not victim:
        return finding.key or finding.worst_key
    for target in finding.cell.targets:
        if target.target == victim:
            return by_name(target.figures, rule.figure)
    return None


def _verdict(
    rule: Rule, finding: Finding, twin: Finding, victim: str, figure: Figure | None, honest: Figure | None
) -> GainVerdict:
    affected = victim in finding.affected if victim else finding.level in _LEAKS
    if twin.level == "not-applicable" and affected:
        return "only-active"
    if finding.level not in SETTLED or twin.level not in SETTLED:
        return "no-figure"
    ends, honest_ends = _ends(rule, figure), _ends(rule, honest)
    if ends is None or honest_ends is None:
        return "no-figure"
    if ends[0] > honest_ends[1]:
        return "gain"
    if ends[1] < honest_ends[0]:
        return "less"
    return "none"


def _ends(rule: Rule, figure: Figure | None) -> tuple[float, float] | None:
    """Return the ends of a figure's interval so that the second leaks more; None without an interval."""
    if figure is None or figure.low is None or figure.high is None:
        return None
    if rule.higher:
        return figure.low, figure.high
    return -figure.high, -figure.low

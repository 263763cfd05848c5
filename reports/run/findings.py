"""Findings: who can do what to whom, how bad it is, what shows it, and what to do.

Guarantees:
  * every leak of the table *Who can learn what* is in a finding, inherited ones too;
  * levels, severities and remedies are those of the result's judgement;
  * a finding names every client for whom one of its adversaries' attacks found a leak, and clears no other client;
  * all figures are those of a cell, which the finding names.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fdaudit.result import Level, Remedy, Result
from fdaudit.types import Figure

from ..goals import RULES, Rule
from ..goals.rule import beside, by_name, framed
from ..judgement.inheritance import LEAKS, Standing
from ..judgement.judgement import findings_of, standings_of
from ..judgement.remedies import ENCRYPT, carried
from ..judgement.severity import SEVERITIES, impact, needed
from ..judgement.tried import Outcome, effect, outcome
from ..judgement.verdict import EVERYONE, Finding, by_view, strongest
from ..text import clip, joined, measure, party, plural, sentence

__all__ = ["FrontFinding", "by_severity", "found_by", "lines"]

Leaks = dict[tuple[str, str], list[Finding]]
"""The cells with a leak, by adversary and goal."""

_UNTOLD = "not told"
_NAMED = 4
"""Most affected clients named one by one."""

_WIDTHS = {
    "headline": 85,
    "action": 120,
    "standing": 125,
    "notes": 155,
    "what": 40,
    "evidence": 47,
    "affected": 17,
    "remedy": 44,
    "claims": 48,
    "untested": 85,
    "twin": 80,
}
"""Characters of a printed line above the front page's findings, in their columns, and in the two lists below."""


@dataclass(frozen=True, kw_only=True)
class FrontFinding:
    """One finding: who can do what to whom, how bad it is, what shows it, and what to do.

    Attributes:
        severity: one of `SEVERITIES`.
        goals: of the attacks.
        level: leak or partial.
        adversaries: everyone who can do it, by the same remedy.
        brief: what is learnt, by whom who needs no others, and the gravest deciding figure, without a verb.
        what: the finding in a clause.
        affected: the affected clients in words.
        evidence: the strongest attack and its deciding figures.
        remedy: what to do and why.
        effect: what trying the remedy changed, in sentences.
        outcome: what came of trying it, in a word.
        caution: that the controls of an attack behind it failed, in a sentence; empty if they passed.
        strongest: the finding of the cell behind it.
        factors: impact, access and strength, whose product gives the severity.
        because: why the severity, in words.
    """

    severity: str
    goals: tuple[str, ...]
    level: Level
    adversaries: tuple[str, ...]
    brief: str
    what: str
    affected: str
    evidence: str
    remedy: Remedy
    effect: str
    outcome: Outcome
    caution: str
    strongest: Finding
    factors: tuple[int, int, int]
    because: str

    def lines(self, said: str) -> int:
        """Return about how many printed lines the finding takes in the table below what was `said` of effects."""
        count = lines("what", self.what) + lines("evidence", self.evidence, self.caution)
        remedy = f"{self.remedy.do} {self.beyond(said)}"
        return max(count, lines("affected", self.affected), lines("remedy", remedy))

    def beyond(self, said: str) -> str:
        """Return what trying the remedy changed, unless it was said already."""
        return "Tried: see above." if self.effect and self.effect in said else self.effect

    @property
    def line(self) -> str:
        """Return severity, what is learnt by whom with its figure, whom it affects and what to do, in one line."""
        do = re.split(r"[.:;,] ", self.remedy.do)[0].removesuffix(".")
        return " · ".join((self.severity.capitalize(), self.brief, self.affected.removesuffix("."), f"{do}."))

    @property
    def clause(self) -> str:
        """Return the finding with those whom it affects, in a clause."""
        clause = self.what
        if self.level != "leak":
            clause += ", in part"
        if len(self.goals) == 1 and self.affected != _UNTOLD:
            clause += f" ({self.affected})"
        return clause


def lines(column: str, *texts: str) -> int:
    """Return about how many printed lines texts take in a column or list of the front page."""
    total = 0
    for text in texts:
        total += -(-len(text) // _WIDTHS[column])
    return total


def by_severity(findings: Iterable[FrontFinding], words: Sequence[str] = SEVERITIES) -> str:
    """Return how many findings there are of each severity: "1 critical and 2 high"."""
    counts = Counter(finding.severity for finding in findings)
    clauses = list[str]()
    for word in words:
        if counts[word]:
            clauses.append(f"{counts[word]} {word}")
    return joined(clauses)


def found_by(result: Result) -> tuple[FrontFinding, ...]:
    """Return the findings of a result, the gravest first; pure."""
    findings = findings_of(result)
    leaking = dict[tuple[str, str], Standing]()
    for standing in standings_of(result, findings):
        if standing.remedy is not None:
            leaking[standing.adversary, standing.goal] = standing
    with_leak = list[Finding]()
    for finding in findings:
        if finding.level in LEAKS:
            with_leak.append(finding)
    leaks = by_view(with_leak)
    groups: dict[tuple[Remedy, str, object], list[Standing]] = {}
    for standing in leaking.values():
        source, what = leaking.get((standing.alone, standing.goal), standing), standing.remedy or ENCRYPT
        if source.adversary == "world":
            standing = replace(standing, finding=source.finding, source="world")
        # One thing ends all that an eavesdropper can do. Others share a finding only if they share its evidence.
        key: tuple[Remedy, str, object] = (what, "", None)
        if what != ENCRYPT:
            evidence: object = None
            if leak := source.finding:
                value = leak.key and leak.key.value
                at_worst = leak.worst_key and leak.worst_key.value
                worst = leak.worst and leak.worst.target
                evidence = leak.cell.attack, leak.level, value, at_worst, worst, _alone(_all(leak, leaks))
            key = (what, standing.goal, evidence)
        groups.setdefault(key, []).append(standing)
    front_findings = list[FrontFinding]()
    for (what, _, _), who in groups.items():
        front_findings.append(_finding(result, who, what, leaks))
    return tuple(sorted(front_findings, key=_gravest_first))


def _gravest_first(finding: FrontFinding) -> tuple[int, int, bool, int]:
    """Return the order; of equals, what encryption of the transport stops comes last."""
    listens = finding.remedy == ENCRYPT
    return -math.prod(finding.factors), -finding.factors[0], listens, -len(finding.strongest.affected)


def _all(finding: Finding, leaks: Leaks) -> list[Finding]:
    """Return all leaks that the same adversary found for the same goal."""
    return leaks.get((finding.cell.adversary, finding.cell.goal), [finding])


def _alone(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return the clients for each of whom alone a leak was found."""
    names = set[str]()
    for finding in findings:
        names.update(finding.affected)
    return tuple(sorted(names, key=lambda name: (len(name), name)))


def _finding(result: Result, standing: Sequence[Standing], what: Remedy, leaks: Leaks) -> FrontFinding:
    """Return the finding of those who need no others for it; its evidence and victims are theirs alone."""
    adversaries = tuple(dict.fromkeys(s.adversary for s in standing))
    first = dict.fromkeys(s.adversary for s in standing if s.source == s.adversary)  # the others inherit it
    fewest = _fewest(tuple(first) or adversaries)
    own, grades, own_findings = list[Standing](), [], list[Finding]()
    for one in standing:
        if one.adversary in fewest:
            own.append(one)
            if one.severity is not None:
                grades.append((one.severity, one.adversary))
            if one.finding is not None:
                own_findings.append(one.finding)
    grade, whose = min(grades, key=lambda pair: SEVERITIES.index(pair[0].word))
    gravest = min(own, key=lambda s: (LEAKS.index(s.level), -impact(s.goal)))
    by_goal, abilities = {}, []
    for goal in dict.fromkeys(s.goal for s in own):
        same = [f for f in own_findings if f.cell.goal == goal]
        by_goal[goal] = strongest(same) or own_findings[0]
        abilities.append(_can(goal, same))
    goals, top = tuple(by_goal), by_goal[gravest.goal]
    who = joined(map(party, fewest))
    learnt, at_most = joined(map(_learnt, by_goal.values())), _in_short(top).removesuffix(".")
    evidence = [f"{_attack(result, top)}: {_evidence(top)}"]
    evidence += [f"{_attack(result, f)}: {_in_short(f)}" for f in by_goal.values() if f is not top]
    ordered = tuple(dict.fromkeys((*fewest, *adversaries)))

    return FrontFinding(
        severity=grade.word,
        goals=goals,
        level=gravest.level,
        adversaries=adversaries,
        brief=f"{learnt} by {who} ({at_most.partition(' (')[0]})",
        what=f"{sentence(who)} could {joined(abilities)}",
        affected=_affected_by_goal(by_goal, leaks, result.run.clients),
        evidence=" ".join(evidence),
        remedy=what,
        effect=effect(result, what, ordered, goals),
        outcome=outcome(result, what, ordered, goals),
        caution=_caution(by_goal.values()),
        strongest=top,
        factors=grade.factors,
        because=f"impact {grade.impact} × access {grade.access} ({needed(whose, result.run.release)}) "
        f"× strength {grade.strength}",
    )


def _caution(findings: Iterable[Finding]) -> str:
    """Return which attacks' positive controls failed, in a sentence; empty if all passed."""
    weak = list[str]()
    for finding in findings:
        if finding.weak:
            weak.append(clip(finding.cell.attack, 60))
    if not weak:
        return ""
    return (
        f"The positive control of {joined(weak)} failed: the attack is weak here, and the leak may be larger."
    )


def _fewest(adversaries: Sequence[str]) -> list[str]:
    """Return the adversaries without coalitions of which a part can do the same."""
    coalitions = {name: set(name.split("+")) for name in adversaries}
    fewest = []
    for name, members in coalitions.items():
        if not any(part < members for part in coalitions.values()):
            fewest.append(name)
    return fewest


def _can(goal: str, findings: Sequence[Finding]) -> str:
    """Return what adversaries could do, in a clause without "could"."""
    rule = RULES.get(goal)
    if rule is None:
        return "learn more than they should"
    clause = rule.leaked
    if rule.shown and all(f.level == "partial" and f.of_classes for f in findings):
        clause = rule.shown
    elif rule.likely and not any(f.certain for f in findings):
        clause = rule.likely
    return clause.removeprefix("could ")


def _attack(result: Result, finding: Finding) -> str:
    """Return the attack's name, and that it asks questions of its own if it reads no message."""
    name = clip(finding.cell.attack, 60)
    return f"{name} (by questions of its own)" if carried(result, finding).ways == ("oracle",) else name


def _evidence(finding: Finding) -> str:
    """Return the deciding figures that carry the finding: of all victims and of the worst one."""
    rule, key, worst = RULES.get(finding.cell.goal), finding.key, finding.worst_key
    if rule is None or key is None or key.value is None:
        return finding.measured
    overall = framed(rule, key)
    if rule.counted and key.n:
        overall += f" over {plural(key.n, rule.counted)}"
    overall += f"{_in_all(finding, rule)}{_decided_by(finding, EVERYONE)}"
    if recognition := _recognised(finding):
        return f"{recognition}; {overall}."
    if worst is None or worst.value is None or finding.worst is None:
        return finding.measured
    if worst.value == key.value:
        return f"{overall}."
    name = clip(finding.worst.target, 60)
    if not finding.affected:
        return f"{overall}; highest alone: {beside(rule, worst, key)} for {name}, {_no_leak(worst)}."
    if finding.worst.target not in finding.affected:
        alone = list[str]()
        for victim in finding.affected[:_NAMED]:
            alone.append(_one_alone(finding, rule, victim))
        return f"{overall}; {'; '.join(alone)}; at most {measure(worst, worst.value)} for {name}, {_no_leak(worst)}."
    if not finding.together:
        for_one = f"{framed(rule, worst)} for {name}{_decided_by(finding, name)}"
        return f"{for_one}; {beside(rule, key, worst)} for all together, {_no_leak(key)}."
    return f"{overall}; worst: {beside(rule, worst, key)} for {name}{_decided_by(finding, name)}."


def _one_alone(finding: Finding, rule: Rule, victim: str) -> str:
    """Return the deciding figure of a victim for whom alone a leak was found, in a clause."""
    value = "a leak"
    for target in finding.cell.targets:
        if target.target == victim:
            figure = by_name(target.figures, rule.figure)
            if figure is not None and figure.value is not None:
                value = measure(figure, figure.value)
            break
    return f"{value} for {clip(victim, 60)}{_decided_by(finding, victim)}"


def _no_leak(figure: Figure) -> str:
    """Return why a figure shows no leak by itself, in a clause."""
    return "which is no leak" if figure.p is None else "not significant after correction"


def _learnt(finding: Finding) -> str:
    """Return what a finding's adversary learns, as a noun."""
    if finding.of_classes:
        return "what classes look like"
    return finding.cell.goal.replace("-", " ")


def _in_short(finding: Finding) -> str:
    """Return the deciding figure that carries a finding, without its interval."""
    rule = RULES.get(finding.cell.goal)
    figure = finding.worst_key
    if finding.together:
        figure = finding.key
    if rule is None or figure is None or figure.value is None:
        return finding.measured
    if recognition := _recognised(finding):
        return f"{recognition}."
    short = f"{framed(rule, replace(figure, low=None, high=None))}{_in_all(finding, rule)}"
    if not finding.together and finding.worst is not None:
        short += f" for {clip(finding.worst.target, 60)}"
    return f"{short}."


def _in_all(finding: Finding, rule: Rule) -> str:
    """Return the figure that the rule adds, such as how often a copy agrees beside its gain over the baseline."""
    whole = by_name(finding.cell.figures, rule.in_all)
    if whole is None or whole.value is None:
        return ""
    return f" ({measure(whole, whole.value)} in all)"


def _recognised(finding: Finding) -> str:
    """Return the share of pictures that an evaluator recognises, if it is above chance; else empty."""
    right = by_name(finding.cell.figures, "evaluator_accuracy")
    chance = by_name(finding.cell.figures, "evaluator_chance")
    if right is None or right.low is None or chance is None or chance.value is None:
        return ""
    if right.low <= chance.value:
        return ""
    share, by_chance = measure(right, right.value or 0.0), measure(chance, chance.value)
    return f"{share} of the pictures recognised, {by_chance} by chance"


def _decided_by(finding: Finding, who: str) -> str:
    """Return what decided for a victim, if its deciding figure alone did not."""
    reason = finding.decided_by.get(who)
    return f" ({reason})" if reason else ""


def _affected_by_goal(by_goal: Mapping[str, Finding], leaks: Leaks, clients: int) -> str:
    """Return the affected clients in words, once if they are the same for every goal."""
    goals: dict[str, list[str]] = {}
    most = 1 if len(by_goal) > 1 else _NAMED
    for goal, finding in by_goal.items():
        goals.setdefault(_affected(_all(finding, leaks), clients, most), []).append(goal.replace("-", " "))
    if len(goals) == 1:
        return next(iter(goals))
    return " ".join(f"{sentence(joined(which))}: {who}." for who, which in goals.items())


def _affected(findings: Sequence[Finding], clients: int, most: int = _NAMED) -> str:
    """Return for whom a leak was found alone, and who is not cleared; at most so many are named one by one."""
    alone, attacked = _alone(findings), set[str]()
    for finding in findings:
        attacked.update(target.target for target in finding.cell.targets)
    members = findings[0].cell.adversary.split("+")
    of_clients = all(member.startswith("client/") for member in members)
    everyone = f"all {len(attacked)} attacked clients"
    if len(attacked) == clients > 1:
        everyone = f"all {len(attacked)} clients"
    elif of_clients and len(attacked) == clients - len(members):
        everyone = f"all {len(attacked)} other clients"
    if len(alone) == len(attacked) > 1:
        return everyone
    names = joined(alone)
    if len(alone) > most:
        names = f"{len(alone)} of them"
    pooled = len(attacked) > 1 and any(f.together for f in findings)
    if pooled and alone:
        return f"{everyone} pooled; shown alone for {names}"
    if pooled:
        return f"{everyone} pooled; none shown alone"
    if not alone:
        return _UNTOLD
    if len(attacked) == len(alone):
        return names
    return f"{names}; {plural(len(attacked) - len(alone), 'other')} not cleared"

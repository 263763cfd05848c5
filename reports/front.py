"""The front page: findings with their severity and remedy, what ε may be stated, and what was not tested.

Guarantees:
  * every leak of the table *What leaks to whom* is in a finding, inherited ones too;
  * severity is computed from the finding and its adversary alone, by the printed table;
  * nothing here is measured anew: each finding names the cell behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType

from .inheritance import Standing, standings, unread
from .remedies import ENCRYPT, Remedy, remedy
from .rules import RULES, by_name, framed
from .schema import LedgerEntry, Result
from .text import amount, clip, joined, measure, party, sentence
from .verdict import Finding, Level, strongest

__all__ = [
    "ACCESS",
    "IMPACT",
    "MEANS",
    "SEVERITIES",
    "Front",
    "FrontFinding",
    "front",
    "severity",
    "shows_classes",
]

SEVERITIES = ("critical", "high", "medium", "low")

IMPACT: Mapping[str, int] = MappingProxyType(
    {"reconstruction": 4, "membership": 3, "label-distribution": 2, "model-extraction": 2}
)
"""Harm to those whom the data are about, if the adversary succeeds; a partial leak counts one less."""

_CLASSES = 2
"""Impact where an adversary was shown what classes look like, and no record."""

ACCESS: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "world": (3, "has the released model"),
        "eavesdropper": (2, "reads the transport"),
        "server": (2, "runs the server"),
        "client": (2, "takes part as a client"),
        "aggregator": (2, "runs the aggregator"),
        "coalition": (1, "several parties together"),
        "internal": (1, "gets hold of a model that stays internal"),
    }
)
"""How easily one becomes this adversary, from 1 to 3, and what one must have for it."""

_LEAST = ((9, "critical"), (6, "high"), (3, "medium"), (1, "low"))
"""Least product of impact and access of each severity."""

MEANS: Mapping[str, str] = MappingProxyType(
    {
        "reconstruction": "what records look like",
        "membership": "which records were trained on",
        "label-distribution": "a client's class shares",
        "model-extraction": "a copy of a model",
    }
)
"""What an adversary learns, by goal."""

_SCALES: Mapping[str, str] = MappingProxyType(
    {
        "reconstruction": "a gain of 0 dB (PSNR) is no better than a guess",
        "membership": "an AUC of 0.5 is guessing, and 1 is certainty",
        "label-distribution": "a total variation of 0 is exact, and 1 is entirely wrong",
        "model-extraction": "agreement is the share of equal answers",
    }
)
"""How to read the figure that decides about a goal."""

_NO_ANSWER: Sequence[tuple[Level, str]] = (
    ("inconclusive", "inconclusive"),
    ("failed", "failed"),
    ("not-applicable", "not applicable to what the adversary sees"),
    ("not-requested", "not requested"),
)

_LEAKS: Sequence[Level] = ("leak", "partial")
_UNTOLD = "not told"
_NAMED = 4
"""Most affected clients named one by one."""

_LINES, _MOST = 38, 7
"""Lines of the printed page for adversaries, findings and the lists below them; most findings shown."""

_WIDTHS = {"what": 56, "evidence": 66, "affected": 17, "remedy": 34, "claims": 48, "untested": 85}
"""Characters of a printed line in the columns of the findings, and in the two lists."""


@dataclass(frozen=True, kw_only=True)
class FrontFinding:
    """One finding: who can do what to whom, how bad it is, what shows it, and what to do.

    Attributes:
        severity: one of `SEVERITIES`.
        goals: of the attacks.
        level: leak or partial.
        adversaries: everyone who can do it, by the same remedy.
        what: the finding in a clause.
        affected: the affected clients in words.
        evidence: the strongest attack and its deciding figures.
        remedy: what to do and why.
        strongest: the finding of the cell behind it.
        factors: impact and access, whose product gives the severity.
        because: why the severity, in words.
    """

    severity: str
    goals: tuple[str, ...]
    level: Level
    adversaries: tuple[str, ...]
    what: str
    affected: str
    evidence: str
    remedy: Remedy
    strongest: Finding
    factors: tuple[int, int]
    because: str

    @property
    def lines(self) -> int:
        """Return about how many printed lines the finding takes in the table of the front page."""
        told = _lines("what", self.what) + _lines("evidence", self.evidence)
        return max(told, _lines("affected", self.affected), _lines("remedy", self.remedy.do))

    @property
    def clause(self) -> str:
        """Return the finding with those whom it affects, in a clause."""
        partly = "" if self.level == "leak" else ", in part"
        return f"{self.what}{partly}{'' if self.affected == _UNTOLD else f' ({self.affected})'}"


@dataclass(frozen=True, kw_only=True)
class Front:
    """The parts of the front page.

    Attributes:
        findings: the gravest first.
        adversaries: how many were tried.
        claims: what ε may be stated, one sentence each.
        untested: what was not tested, one sentence each.
    """

    findings: tuple[FrontFinding, ...]
    adversaries: int
    claims: tuple[str, ...]
    untested: tuple[str, ...]

    @property
    def shown(self) -> tuple[FrontFinding, ...]:
        """Return the findings that one printed page has room for, the gravest first; always one if there is one."""
        room = _LINES - self.adversaries
        room -= max(_lines("claims", *self.claims), _lines("untested", *self.untested))
        fits = sum(end <= room for end in accumulate(f.lines for f in self.findings))
        return self.findings[: max(1, min(fits, _MOST))]

    @property
    def scales(self) -> str:
        """Return how to read the figures of the shown findings, in a sentence; empty if there are none."""
        goals = dict.fromkeys(goal for f in self.shown for goal in f.goals)
        said = "; ".join(_SCALES[goal] for goal in goals if goal in _SCALES)
        return f"{sentence(said)}." if said else ""


def _lines(column: str, *texts: str) -> int:
    """Return about how many printed lines texts take in a column."""
    return sum(-(-len(text) // _WIDTHS[column]) for text in texts)


def front(result: Result, findings: Sequence[Finding]) -> Front:
    """Return the front page's parts; pure."""
    return Front(
        findings=_findings(result, findings),
        adversaries=len({f.cell.adversary for f in findings}),
        claims=tuple(_claims(result)),
        untested=tuple(_untested(result, findings)),
    )


def severity(
    goal: str, level: Level, adversary: str, release: str | None = None, *, of_classes: bool = False
) -> tuple[str, tuple[int, int], str]:
    """Return a severity, its factors impact and access, and what the access needs.

    Args:
        goal: of the attacks.
        level: leak or partial.
        adversary: who can do it.
        release: where the spec sends the model; None counts as the widest release.
        of_classes: whether classes were shown and no record.
    """
    impact = _CLASSES if of_classes else IMPACT.get(goal, 2) - (level == "partial")
    access, must = ACCESS[_role(adversary, release)]
    product = impact * access
    word = next(word for least, word in _LEAST if product >= least)
    return word, (impact, access), must


def _role(adversary: str, release: str | None) -> str:
    if "+" in adversary:
        return "coalition"
    if adversary == "world" and release == "internal":
        return "internal"
    name = adversary.partition("/")[0]
    return name if name in ACCESS else "coalition"


def _findings(result: Result, findings: Sequence[Finding]) -> tuple[FrontFinding, ...]:
    held = [s for s in standings(result, findings) if s.level in _LEAKS and s.finding is not None]
    groups: dict[tuple[Remedy, str, object], list[Standing]] = {}
    for standing in held:
        source = _same_by_fewer(standing, held) or standing
        what = _remedy(result, source)
        # One thing ends all that an eavesdropper can do. Others share a finding only if they share its evidence.
        key = (what, "", None) if what is ENCRYPT else (what, standing.goal, _figures(source.finding))
        groups.setdefault(key, []).append(standing)
    made = (_finding(result, who, what) for (what, _, _), who in groups.items())
    return tuple(sorted(made, key=_gravest_first))


def _gravest_first(finding: FrontFinding) -> tuple[int, int, int, bool, int]:
    """Return the order; of equals, what encryption of the transport stops comes last."""
    listens = finding.remedy is ENCRYPT
    level, impact = _LEAKS.index(finding.level), finding.factors[0]
    return SEVERITIES.index(finding.severity), level, -impact, listens, -len(finding.strongest.affected)


def _same_by_fewer(standing: Standing, held: Sequence[Standing]) -> Standing | None:
    """Return a part of a coalition that can do as much without the others; None if there is none."""
    members = set(standing.adversary.split("+"))
    return next(
        (
            s
            for s in held
            if s.goal == standing.goal
            and set(s.adversary.split("+")) < members
            and _LEAKS.index(s.level) <= _LEAKS.index(standing.level)
        ),
        None,
    )


def _remedy(result: Result, standing: Standing) -> Remedy:
    """Return the remedy for a standing: an inherited finding's own, unless the heir only listens in."""
    if standing.adversary == "eavesdropper" or standing.finding is None:
        return ENCRYPT
    return remedy(result, standing.finding)


def _figures(finding: Finding | None) -> object:
    """Return what makes two findings one: attack, deciding figures, the worst victim and the affected ones."""
    if finding is None:
        return None
    values = [None if f is None else f.value for f in (finding.key, finding.worst_key)]
    worst = finding.worst and finding.worst.target
    return finding.cell.attack, finding.level, *values, worst, finding.affected


def _finding(result: Result, standing: Sequence[Standing], what: Remedy) -> FrontFinding:
    """Return the finding of those who need no others for it; its evidence and victims are theirs alone."""
    adversaries = tuple(dict.fromkeys(s.adversary for s in standing))
    named = _fewest(adversaries)
    held = [s for s in standing if s.adversary in named]
    ranked = sorted(
        (
            severity(
                s.goal,
                s.level,
                s.adversary,
                result.run.release,
                of_classes=s.finding is not None and shows_classes(s.finding),
            )
            for s in held
        ),
        key=lambda r: SEVERITIES.index(r[0]),
    )
    found = [s.finding for s in held if s.finding is not None]
    goals = list(dict.fromkeys(s.goal for s in held))
    gravest = sorted(held, key=lambda s: (_LEAKS.index(s.level), -IMPACT.get(s.goal, 2)))[0]
    by_goal = {goal: strongest([f for f in found if f.cell.goal == goal]) or found[0] for goal in goals}
    top = by_goal[gravest.goal]
    word, factors, must = ranked[0]
    can = joined(_can(goal, [f for f in found if f.cell.goal == goal]) for goal in goals)
    return FrontFinding(
        severity=word,
        goals=tuple(goals),
        level=gravest.level,
        adversaries=adversaries,
        what=f"{sentence(joined(party(a) for a in named))} could {can}",
        affected=_affected(found, result.run.clients),
        evidence=" ".join(f"{clip(f.cell.attack, 60)}: {_evidence(f)}" for f in by_goal.values()),
        remedy=what,
        strongest=top,
        factors=factors,
        because=f"impact {factors[0]} × access {factors[1]} ({must})",
    )


def _fewest(adversaries: Sequence[str]) -> list[str]:
    """Return the adversaries without coalitions of which a part can do the same."""
    parts = {a: set(a.split("+")) for a in adversaries}
    return [a for a in adversaries if not any(parts[b] < parts[a] for b in adversaries)]


def _can(goal: str, found: Sequence[Finding]) -> str:
    """Return what adversaries could do, in a clause without "could"."""
    rule = RULES.get(goal)
    if rule is None:
        return "learn more than they should"
    partial = all(f.level == "partial" for f in found)
    of_classes = bool(rule.shown) and partial and all(shows_classes(f) for f in found)
    return (rule.shown if of_classes else rule.leaked).removeprefix("could ")


def _evidence(finding: Finding) -> str:
    """Return the deciding figure of all victims with its interval, and the worst victim's value."""
    rule, key, worst = RULES.get(finding.cell.goal), finding.key, finding.worst_key
    if rule is None or key is None or key.value is None:
        return finding.measured
    said = framed(rule, key)
    if worst is None or worst.value is None or finding.worst is None:
        return f"{said}." if finding.cell.targets and finding.worst else finding.measured
    if worst.value == key.value:
        return f"{said}."
    worst_one = f"{measure(worst, worst.value)} for {clip(finding.worst.target, 60)}"
    if finding.affected and finding.worst.target not in finding.affected:
        return f"{said}; at most {worst_one}, which alone is no leak."
    return f"{said}; worst: {worst_one}."


def shows_classes(finding: Finding) -> bool:
    """Return whether a finding is about classes and not about single records."""
    return by_name(finding.cell.figures, "evaluator_accuracy") is not None


def _affected(findings: Sequence[Finding], clients: int) -> str:
    """Return the affected clients: by name, or how many of those that were attacked."""
    affected = sorted({name for f in findings for name in f.affected}, key=lambda name: (len(name), name))
    attacked = len({t.target for f in findings for t in f.cell.targets})
    if not affected:
        return f"all {attacked} attacked together" if any(f.together for f in findings) else _UNTOLD
    if len(affected) == attacked == clients > 1:
        return f"all {clients} clients"
    if len(affected) == attacked > 1:
        return f"all {attacked} attacked, of {clients} clients"
    named = joined(affected) if len(affected) <= _NAMED else str(len(affected))
    return f"{named} of {attacked} attacked" if attacked > 1 else named


def _claims(result: Result) -> Iterator[str]:
    """Yield what ε may be stated for which view, and for whom none may be."""
    ledger = result.ledger or ()
    fallen = {c.adversary for c in result.checks if c.verdict == "contradicted" and not c.source}
    held = [e for e in ledger if e.epsilon is not None and e.contributions and e.adversary not in fallen]
    for entry in held:
        yield (
            f"{sentence(party(entry.adversary))}: ε of at most {amount(entry.epsilon or 0.0)} at "
            f"δ = {amount(entry.delta or 0.0)}, {_unit(entry)}."
        )
    reached = [e.adversary for e in ledger if e.epsilon is None or e.adversary in fallen]
    if reached or not ledger:
        whom = f" for the view of {joined(party(a) for a in reached)}" if reached else ""
        if 2 < len(reached) == len(ledger):
            whom = " for the view of any adversary"
        yield f"No ε may be stated{whom}."
    causes = [e.cause for e in ledger if e.epsilon is None and e.cause]
    if causes:
        yield f"The first reason is {clip(causes[0].partition(';')[0], 160)}."
    spared = [
        e.adversary for e in ledger if e.epsilon == 0 and not e.contributions and e.adversary not in fallen
    ]
    if spared:
        yield f"{sentence(joined(party(a) for a in spared))} received nothing computed from private data."
    if fallen:
        yield f"Attacks contradict the ledger's ε for {joined(party(a) for a in sorted(fallen))}."
    for check in [c for c in result.checks if c.verdict == "contradicted" and c.source][:2]:
        claim = f"ε = {amount(check.claimed or 0.0)} ({clip(check.source, 60)})"
        yield f"The system's own claim of {claim} is contradicted."


def _unit(entry: LedgerEntry) -> str:
    return f"for one {clip(entry.unit, 40)} of a client, {clip(entry.relation, 40)}"


def _untested(result: Result, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield what was not tested."""
    counts = [(sum(f.level == level for f in findings), words) for level, words in _NO_ANSWER]
    told = [f"{n} {words}" for n, words in counts if n]
    if told:
        yield f"{sum(n for n, _ in counts)} of {len(findings)} tests gave no answer: {joined(told)}."
    if possible := sum(f.level == "possible" for f in findings):
        many = f"{possible} tests show" if possible > 1 else "1 test shows"
        yield f"{many} a possible leak, neither shown nor ruled out. More candidates would tell."
    if left := unread(result):
        yield f"No attack reads {'; '.join(left)}: what these messages tell was not tested."
    attacked = len({t.target for f in findings for t in f.cell.targets})
    if 0 < attacked < result.run.clients:
        yield f"{result.run.clients - attacked} of {result.run.clients} clients were not attacked."
    attacking = {a for f in findings for a in f.cell.adversary.split("+") if a.startswith("client/")}
    if 0 < len(attacking) < result.run.clients:
        only = joined(sorted(attacking, key=lambda name: (len(name), name)))
        yield f"Of the clients, only {only} was tried as an adversary. Others may learn more."
    if result.out_of_scope:
        kinds = joined(clip(o.name, 40) for o in result.out_of_scope)
        yield f"Out of scope here: {kinds}."
    recording = result.run.recording
    if recording is not None and recording.asserted:
        yield f"{len(recording.asserted)} statements of the recorder and its card were not checked."
    profile = clip(result.run.profile, 40)
    yield f"Other seeds, other data and stronger attacks: this is one run with the {profile} profile."

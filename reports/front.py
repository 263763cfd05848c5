"""The front page: findings with their severity and remedy, what ε may be stated, and what was not tested.

All figures are those of the result.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from fdaudit.goals import GOALS, challenged
from fdaudit.result import Level, Result

from .findings import FrontFinding, found_by, lines
from .goals.rule import single_rates
from .inheritance import gaps
from .judgement import findings_of
from .severity import SEVERITIES
from .text import amount, clip, joined, only_if, party, sentence
from .twin import HOW_TO_MAKE
from .untried import not_tried
from .verdict import Finding

__all__ = [
    "Front",
    "front",
    "released",
]

_NO_ANSWER: Sequence[tuple[Level, str]] = (
    ("failed", "failed"),
    ("not-requested", "were not asked for"),
    ("not-tested", "found no time"),
)

_MESSAGE = re.compile(r"(\S+) of (\S+) in round \d+ \(message (\d+)\)(.*)", re.DOTALL)
"""A ledger's cause: kind, sender, number of the message, and what follows."""

_LINES, _MOST = 43, 7
"""Lines of the printed page for its headline, adversaries, notes, findings and the lists below; most findings shown."""


@dataclass(frozen=True, kw_only=True)
class Front:
    """The parts of the front page.

    Attributes:
        findings: the gravest first.
        adversaries: how many were tried.
        claims: what ε may be stated, one sentence each.
        untested: what was not tested, one sentence each.
        above: lines that the headline and the notes of the table take.
        said: what was said of effects above the findings.
    """

    findings: tuple[FrontFinding, ...]
    adversaries: int
    claims: tuple[str, ...]
    untested: tuple[str, ...]
    above: int = 0
    said: str = ""

    @property
    def shown(self) -> tuple[FrontFinding, ...]:
        """Return the findings that one printed page has room for, the gravest first; always one if there is one."""
        room = _LINES - self.above - self.adversaries
        room -= max(lines("claims", *self.claims), lines("untested", *self.untested))
        most = min(len(self.findings), _MOST)
        count = most
        while count > 1 and self._lines(count) > room:
            count -= 1
        return self.findings[: max(1, count)]

    @property
    def more(self) -> str:
        """Return how many findings are not shown, by severity, in a sentence; empty if all are shown."""
        rest = self.findings[len(self.shown) :]
        if not rest:
            return ""
        by_severity = Counter(f.severity for f in rest)
        counts = [f"{by_severity[word]} {word}" for word in SEVERITIES if by_severity[word]]
        return f"{len(rest)} more in section Findings: {joined(counts)}."

    @property
    def grave(self) -> tuple[str, ...]:
        """Return the high or worse findings that are not shown, a line each."""
        return self._grave(len(self.shown))

    def _lines(self, shown: int) -> int:
        """Return the lines of so many findings and of the words about those that are left out, beyond one."""
        return sum(f.lines(self.said) for f in self.findings[:shown]) + lines("notes", *self._grave(shown))

    def _grave(self, shown: int) -> tuple[str, ...]:
        return tuple(f.line for f in self.findings[shown:] if f.severity in SEVERITIES[:2])

    @property
    def scales(self) -> str:
        """Return how to read the figures of the shown findings, in a sentence; empty if there are none."""
        goals = dict.fromkeys(goal for f in self.shown for goal in f.goals)
        scales = [GOALS[goal].scale for goal in goals if goal in GOALS]
        return f"{sentence('; '.join(scales))}." if scales else ""


def front(result: Result) -> Front:
    """Return the front page's parts; pure."""
    findings = findings_of(result)
    return Front(
        findings=found_by(result),
        adversaries=len({f.cell.adversary for f in findings}),
        claims=tuple(_claims(result)),
        untested=tuple(_untested(result, findings)),
    )


def _open(findings: Sequence[Finding]) -> str:
    """Return how many tests show a possible leak, and what would settle them, in a sentence; empty if none does."""
    counts = Counter(f.cell.goal for f in findings if f.level == "possible")
    if not counts:
        return ""
    tests = joined(f"{n} {GOALS[name].words}" for name, n in counts.items())
    more = joined(dict.fromkeys(GOALS[name].settled_by for name in counts))
    are, them = ("test is", "it") if counts.total() == 1 else ("tests are", "them")
    return f"{tests} {are} open; more {more} would settle {them}."


def _inconclusive(findings: Sequence[Finding]) -> str:
    """Return how many tests ended inconclusive, and in how many of these a leak is still shown; empty if none did."""
    ended = [f for f in findings if "inconclusive" in (f.cell.status, f.level)]
    if not ended:
        return ""
    levels = [f.level for f in ended if f.level in ("leak", "partial")]
    what = "a leak" if "leak" in levels else "a partial leak"
    still = (
        f", of which {len(levels)} still {'shows' if len(levels) == 1 else 'show'} {what}" if levels else ""
    )
    return f"{len(ended)} inconclusive by their controls{still}"


def _claims(result: Result) -> Iterator[str]:
    """Yield what ε may be stated for which view, and for whom none may be."""
    ledger = result.ledger or ()
    fallen = result.contradicted_views
    claims = [e for e in result.bounds if e.adversary not in fallen]
    for entry in claims:
        yield (
            f"{sentence(party(entry.adversary))}: ε of at most {amount(entry.epsilon or 0.0)} at "
            f"δ = {amount(entry.delta or 0.0)}, for one {clip(entry.unit, 40)} of a client, "
            f"{clip(entry.relation, 40)}.{only_if(entry.needs)}"
        )
    reached = [e.adversary for e in ledger if e.epsilon is None or e.adversary in fallen]
    if reached or not ledger:
        whom = ""
        if 2 < len(reached) == len(ledger):
            whom = " for the view of any adversary"
        elif reached:
            whom = f" for the view of {joined(map(party, reached))}"
        yield f"No ε may be stated{whom}."
    causes = [(e.adversary, e.cause) for e in ledger if e.epsilon is None and e.cause]
    if causes:
        whose, cause = causes[0]
        yield f"First gap in what {party(whose)} sees: {_first_cause(cause)}. Closing it may uncover others."
    ran = {(clip(d, 60), clip(row.kind, 60)) for row in result.exposure for d in row.defenses}
    if causes and ran and not claims:
        yield f"These defences ran, and give no ε: {joined(f'{d} on {kind}' for d, kind in sorted(ran))}."
    free = [e.adversary for e in ledger if e.epsilon == 0 and not e.contributions]
    spared = [adversary for adversary in free if adversary not in fallen]
    if "world" in spared and not released(result):
        spared.remove("world")
        yield "The world is given no model. Of clients' own models, if they are used elsewhere, no ε is stated."
    if spared:
        yield f"{sentence(joined(map(party, spared)))} received nothing computed from private data: ε = 0."
    if fallen:
        yield f"Attacks contradict the ledger's ε for {joined(map(party, sorted(fallen)))}."
    foreign = [c for c in result.checks if c.verdict == "contradicted" and c.source]
    for check in foreign[:2]:
        claim = f"ε = {amount(check.claimed or 0.0)} ({clip(check.source, 60)})"
        yield f"The system's own claim of {claim} is contradicted."


def _first_cause(cause: str) -> str:
    """Return who sends what without a guarantee, in a clause; a ledger's cause as it is if it names no message."""
    message = cause.partition(", which reaches the view")[0]
    message = message.replace(": computed from raw data, without a guarantee", "")
    named = _MESSAGE.fullmatch(message)
    if named is None:
        return clip(message, 200)
    kind, sender, number, rest = named.groups()
    return (
        f"{clip(sender, 60)} sends {clip(kind, 60)} without a guarantee (message {number}){clip(rest, 200)}"
    )


def _untried(result: Result, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield which adversaries were not tried, and which rates could not be measured."""
    tried = {f.cell.adversary for f in findings if not f.untried}
    with_clients = sorted((a for a in tried if "client/" in a), key=lambda name: (len(name), name))
    alone = [a for a in with_clients if "+" not in a]
    together = [a for a in with_clients if "+" in a]
    if len(alone) < result.run.clients:
        clients, pairs = "no client by messages of its own (no attack fits)", "no parties that collude"
        if alone:
            clients = f"only {joined(alone)} of the clients"
        if together:
            pairs = f"only {joined(together)} of parties that collude"
        yield f"Tried as adversaries: {clients}, and {pairs}. Others may learn more."
    rates = [single_rates(t.figures) for f in findings if challenged(f.cell.goal) for t in f.cell.targets]
    if any(rates):
        least = amount(min(chain.from_iterable(rates)), "fraction")
        whole = [single_rates(f.cell.figures) for f in findings if challenged(f.cell.goal)]
        pooled = ""
        if any(whole):
            pooled = f", {amount(min(chain.from_iterable(whole)), 'fraction')} for all together"
        yield f"Lowest false-positive rate measured: {least} for a single victim{pooled}."


def released(result: Result) -> bool:
    """Return whether anything was released to the world."""
    return any(row.party == "world" for row in result.exposure)


def _unread(result: Result, findings: Sequence[Finding]) -> str:
    """Return the kinds of messages that no attack has read, those for one reason together; empty if there are none."""
    kinds: dict[str, dict[str, None]] = {}
    for gap in chain.from_iterable(gaps(result, findings).values()):
        kinds.setdefault(gap.why, {})[gap.kind] = None
    clauses = []
    for why, names in kinds.items():
        clauses.append(
            f"{joined(names)}: {why if len(names) == 1 else why.replace(' reads it', ' reads them')}"
        )
    return "; ".join(clauses)


def _untested(result: Result, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield what was not tested."""
    levels = Counter(f.level for f in findings)
    parts = [f"{levels[level]} {words}" for level, words in _NO_ANSWER if levels[level]]
    if result.unfinished is not None and levels["not-tested"]:
        parts[-1] = f"{levels['not-tested']} have not run yet"
    parts = [*filter(None, [_inconclusive(findings)]), *parts]
    if parts:
        yield f"Tests that clear nobody: {'; '.join(parts)}."
    if open_tests := _open(findings):
        yield open_tests
    if unread := _unread(result, findings):
        yield f"Messages without a test: {unread}."
    attacked = len({t.target for f in findings for t in f.cell.targets})
    if 0 < attacked < result.run.clients:
        spared = result.run.clients - attacked
        yield f"{spared} of {result.run.clients} clients {'was' if spared == 1 else 'were'} not attacked."
    yield from _untried(result, findings)
    if active := not_tried(result):
        yield active
    if result.out_of_scope:
        kinds = ", ".join(clip(o.name, 40) for o in result.out_of_scope)
        others = "other parties" if result.run.departures else "parties"
        departing = "" if active else f", and {others} that depart from the protocol"
        yield f"Out of scope here: {kinds}{departing}."
    if result.run.release is None and released(result) and any(f.cell.adversary == "world" for f in findings):
        yield "Where the model goes is not stated (release): it is taken to be public."
    if result.run.departures and result.twin is None and result.auditor_only:
        yield HOW_TO_MAKE
    recording = result.run.recording
    if recording is not None and recording.asserted:
        yield f"{len(recording.asserted)} statements of the recorder and its card were not checked."
    profile = clip(result.run.profile, 40)
    open_questions = [
        "other seeds and data",
        "stronger attacks",
        *([] if result.remedies else ["the remedies"]),
    ]
    yield f"{sentence(joined(open_questions))}: this is one run with the {profile} profile."
    if late := [clip(one.words, 200) for one in result.remedies if one.state == "no-time"]:
        yield f"The budget left no time to try {joined(late)}."

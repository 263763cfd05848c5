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
from fdaudit.result import LedgerEntry, Level, Result

from ..goals.rule import single_rates
from ..judgement.inheritance import gaps
from ..judgement.judgement import findings_of
from ..judgement.severity import SEVERITIES
from ..judgement.verdict import Finding
from ..text import amount, clip, joined, only_if, party, sentence
from ..twin import HOW_TO_MAKE
from ..untried import not_tried
from .findings import FrontFinding, by_severity, found_by, lines

__all__ = [
    "Front",
    "front",
    "released",
]

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
        count = min(len(self.findings), _MOST)
        while count > 1:
            needed = lines("notes", *self._grave(count))
            for finding in self.findings[:count]:
                needed += finding.lines(self.said)
            if needed <= room:
                break
            count -= 1
        return self.findings[:count]

    @property
    def more(self) -> str:
        """Return how many findings are not shown, by severity, in a sentence; empty if all are shown."""
        rest = self.findings[len(self.shown) :]
        if not rest:
            return ""
        return f"{len(rest)} more in section Findings: {by_severity(rest)}."

    @property
    def grave(self) -> tuple[str, ...]:
        """Return the high or worse findings that are not shown, a line each."""
        return self._grave(len(self.shown))

    def _grave(self, shown: int) -> tuple[str, ...]:
        grave = list[str]()
        for finding in self.findings[shown:]:
            if finding.severity in SEVERITIES[:2]:
                grave.append(finding.line)
        return tuple(grave)

    @property
    def scales(self) -> str:
        """Return how to read the figures of the shown findings, in a sentence; empty if there are none."""
        goals = dict.fromkeys(chain.from_iterable(finding.goals for finding in self.shown))
        scales = [GOALS[goal].scale for goal in goals if goal in GOALS]
        if not scales:
            return ""
        return f"{sentence('; '.join(scales))}."


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
    counts = Counter[str]()
    for finding in findings:
        if finding.level == "possible":
            counts[finding.cell.goal] += 1
    if not counts:
        return ""
    tests = joined(f"{n} {GOALS[name].words}" for name, n in counts.items())
    more = joined(dict.fromkeys(GOALS[name].settled_by for name in counts))
    if counts.total() == 1:
        return f"{tests} test is open; more {more} would settle it."
    return f"{tests} tests are open; more {more} would settle them."


def _inconclusive(findings: Sequence[Finding]) -> str:
    """Return how many tests ended inconclusive, and in how many of these a leak is still shown; empty if none did."""
    levels = list[Level]()
    for finding in findings:
        if "inconclusive" in (finding.cell.status, finding.level):
            levels.append(finding.level)
    if not levels:
        return ""
    clause = f"{len(levels)} inconclusive by their controls"
    leaks = levels.count("leak") + levels.count("partial")
    if leaks:
        show = "shows" if leaks == 1 else "show"
        what = "a leak" if "leak" in levels else "a partial leak"
        clause += f", of which {leaks} still {show} {what}"
    return clause


def _claims(result: Result) -> Iterator[str]:
    """Yield what ε may be stated for which view, and for whom none may be."""
    yield from _stated(result)
    yield from _unbounded(result)
    yield from _free(result)
    yield from _contradicted(result)


def _standing(result: Result) -> list[LedgerEntry]:
    """Return the bounds that no attack contradicts."""
    return [entry for entry in result.bounds if entry.adversary not in result.contradicted_views]


def _stated(result: Result) -> Iterator[str]:
    """Yield each ε that may be stated."""
    for entry in _standing(result):
        yield (
            f"{sentence(party(entry.adversary))}: ε of at most {amount(entry.epsilon or 0.0)} at "
            f"δ = {amount(entry.delta or 0.0)}, for one {clip(entry.unit, 40)} of a client, "
            f"{clip(entry.relation, 40)}.{only_if(entry.needs)}"
        )


def _unbounded(result: Result) -> Iterator[str]:
    """Yield for whom no ε may be stated, the first reason, and the defences that ran for nothing."""
    ledger, fallen = result.ledger or (), result.contradicted_views
    reached, causes = list[str](), list[tuple[str, str]]()
    for e in ledger:
        if e.epsilon is None or e.adversary in fallen:
            reached.append(e.adversary)
        if e.epsilon is None and e.cause:
            causes.append((e.adversary, e.cause))
    if reached or not ledger:
        whom = ""
        if 2 < len(reached) == len(ledger):
            whom = " for the view of any adversary"
        elif reached:
            whom = f" for the view of {joined(map(party, reached))}"
        yield f"No ε may be stated{whom}."
    if not causes:
        return
    whose, cause = causes[0]
    yield f"First gap in what {party(whose)} sees: {_first_cause(cause)}. Closing it may uncover others."
    ran = set[tuple[str, str]]()
    for row in result.exposure:
        for defence in row.defenses:
            ran.add((clip(defence, 60), clip(row.kind, 60)))
    if ran and not _standing(result):
        defences = joined(f"{defence} on {kind}" for defence, kind in sorted(ran))
        yield f"These defences ran, and give no ε: {defences}."


def _free(result: Result) -> Iterator[str]:
    """Yield who received nothing computed from private data."""
    spared = list[str]()
    for e in result.ledger or ():
        if e.epsilon == 0 and not e.contributions and e.adversary not in result.contradicted_views:
            spared.append(e.adversary)
    if "world" in spared and not released(result):
        spared.remove("world")
        yield "The world is given no model. Of clients' own models, if they are used elsewhere, no ε is stated."
    if spared:
        yield f"{sentence(joined(map(party, spared)))} received nothing computed from private data: ε = 0."


def _contradicted(result: Result) -> Iterator[str]:
    """Yield the claims that attacks contradict: the ledger's, then two of the system's own."""
    if result.contradicted_views:
        fallen = sorted(result.contradicted_views)
        yield f"Attacks contradict the ledger's ε for {joined(map(party, fallen))}."
    foreign = [check for check in result.contradicted if check.source]
    for check in foreign[:2]:
        claim = f"ε = {amount(check.claimed or 0.0)} ({clip(check.source, 60)})"
        yield f"The system's own claim of {claim} is contradicted."


def _first_cause(cause: str) -> str:
    """Return who sends what without a guarantee, in a clause; a ledger's cause as it is if it names no message."""
    message = cause.partition(", which reaches the view")[0]
    message = message.replace(": computed from raw data, without a guarantee", "")
    match = _MESSAGE.fullmatch(message)
    if match is None:
        return clip(message, 200)
    kind, sender, number, rest = match.groups()
    return (
        f"{clip(sender, 60)} sends {clip(kind, 60)} without a guarantee (message {number}){clip(rest, 200)}"
    )


def _untried(result: Result, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield which adversaries were not tried, and which rates could not be measured."""
    alone, together = list[str](), list[str]()
    tried = {f.cell.adversary for f in findings if not f.untried}
    for name in sorted(tried, key=lambda name: (len(name), name)):
        if "client/" in name:
            names = together if "+" in name else alone
            names.append(name)
    if len(alone) < result.run.clients:
        clients, pairs = "no client by messages of its own (no attack fits)", "no parties that collude"
        if alone:
            clients = f"only {joined(alone)} of the clients"
        if together:
            pairs = f"only {joined(together)} of parties that collude"
        yield f"Tried as adversaries: {clients}, and {pairs}. Others may learn more."
    single, pooled = list[float](), list[float]()
    for finding in findings:
        if challenged(finding.cell.goal):
            pooled += single_rates(finding.cell.figures)
            for target in finding.cell.targets:
                single += single_rates(target.figures)
    if single:
        least = f"{amount(min(single), 'fraction')} for a single victim"
        if pooled:
            least += f", {amount(min(pooled), 'fraction')} for all together"
        yield f"Lowest false-positive rate measured: {least}."


def released(result: Result) -> bool:
    """Return whether anything was released to the world."""
    return any(row.party == "world" for row in result.exposure)


def _untested(result: Result, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield what was not tested."""
    yield from _clearing_nobody(result, findings)
    if open_tests := _open(findings):
        yield open_tests
    kinds: dict[str, dict[str, None]] = {}  # by the reason why no attack has read them
    for gap in chain.from_iterable(gaps(result, findings).values()):
        kinds.setdefault(gap.why, {})[gap.kind] = None
    unread = []
    for why, names in kinds.items():
        if len(names) > 1:
            why = why.replace(" reads it", " reads them")
        unread.append(f"{joined(names)}: {why}")
    if unread:
        yield f"Messages without a test: {'; '.join(unread)}."
    yield from _unattacked(result, findings)
    yield from _untried(result, findings)
    yield from _out_of_scope(result)
    if result.run.release is None and released(result) and any(f.cell.adversary == "world" for f in findings):
        yield "Where the model goes is not stated (release): it is taken to be public."
    if result.run.departures and result.twin is None and result.auditor_only:
        yield HOW_TO_MAKE
    recording = result.run.recording
    if recording is not None and recording.asserted:
        yield f"{len(recording.asserted)} statements of the recorder and its card were not checked."
    open_questions = "Other seeds and data, stronger attacks and the remedies"
    if result.remedies:
        open_questions = "Other seeds and data and stronger attacks"
    yield f"{open_questions}: this is one run with the {clip(result.run.profile, 40)} profile."
    late = list[str]()
    for one in result.remedies:
        if one.state == "no-time":
            late.append(clip(one.words, 200))
    if late:
        yield f"The budget left no time to try {joined(late)}."


def _clearing_nobody(result: Result, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield how many tests have no answer, by reason."""
    levels = Counter(f.level for f in findings)
    parts = [_inconclusive(findings)]
    if levels["failed"]:
        parts.append(f"{levels['failed']} failed")
    if levels["not-requested"]:
        parts.append(f"{levels['not-requested']} were not asked for")
    if levels["not-tested"]:
        later = "found no time" if result.unfinished is None else "have not run yet"
        parts.append(f"{levels['not-tested']} {later}")
    if any(parts):
        yield f"Tests that clear nobody: {'; '.join(filter(None, parts))}."


def _unattacked(result: Result, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield how many clients no attack had as its target, if any had a target."""
    attacked = set[str]()
    for finding in findings:
        attacked.update(target.target for target in finding.cell.targets)
    spared = result.run.clients - len(attacked)
    if attacked and spared > 0:
        were = "was" if spared == 1 else "were"
        yield f"{spared} of {result.run.clients} clients {were} not attacked."


def _out_of_scope(result: Result) -> Iterator[str]:
    """Yield which parties might depart from the protocol and were not tried, and what else is out of scope."""
    active = not_tried(result)
    if active:
        yield active
    if result.out_of_scope:
        kinds = ", ".join(clip(o.name, 40) for o in result.out_of_scope)
        others = "other parties" if result.run.departures else "parties"
        if not active:
            kinds += f", and {others} that depart from the protocol"
        yield f"Out of scope here: {kinds}."

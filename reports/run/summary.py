"""The first page: one headline, three reasons, actions, and who can learn what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType

from fdaudit.result import LedgerEntry, Level, Result

from ..grouping import grouped
from ..judgement.inheritance import private_kinds
from ..judgement.judgement import findings_of, judgement_in, standings_of
from ..judgement.severity import SEVERITIES
from ..judgement.tried import Outcome
from ..judgement.verdict import SETTLED, Finding, strongest
from ..text import amount, clip, joined, only_if, party, plural, sentence
from ..twin import TwinSummary, twin_summary
from .actions import Action, actions, lacks_auxiliary, open_cells
from .findings import FrontFinding, by_severity, lines
from .front import Front, front
from .matrix import MatrixRow, matrix_of

__all__ = ["Reason", "Summary", "summarise"]


@dataclass(frozen=True, kw_only=True)
class Reason:
    """One reason for the verdict; `number` is the cell behind it, if there is one."""

    text: str
    because: str = ""
    cautions: tuple[str, ...] = ()
    number: int | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The verdict and its consequences."""

    level: Level
    headline: str
    standing: str
    reasons: tuple[Reason, ...]
    actions: tuple[Action, ...]
    goals: tuple[str, ...]
    matrix: tuple[MatrixRow, ...]
    front: Front
    twin: TwinSummary | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the distinct notes of the matrix; an entry shows the number of its own."""
        notes = dict[str, None]()
        for row in self.matrix:
            for entry in row.entries:
                if entry.note:
                    notes[entry.note] = None
        return tuple(notes)

    @property
    def first_is_all(self) -> bool:
        """Return whether the first action is what to do about every finding."""
        first = self.actions[0].do
        return all(f.remedy.do == first for f in self.front.findings)

    @property
    def first_for(self) -> str:
        """Return the finding that the first action serves, where that is not the gravest; else an empty text."""
        served = self._served
        if not served or served[0] is self.front.findings[0]:
            return ""
        return served[0].brief

    @property
    def first_effect(self) -> str:
        """Return what trying the first action changed, and what came of the gravest finding's own remedy."""
        served = self._served
        if not served:
            return ""
        if not self.first_for:
            return served[0].effect
        return f"{served[0].effect} {_OF_GRAVEST[self.front.findings[0].outcome]}".strip()

    @property
    def _served(self) -> list[FrontFinding]:
        """Return the findings whose remedy is the first action, the gravest first."""
        served = list[FrontFinding]()
        for finding in self.front.findings:
            if finding.remedy.do == self.actions[0].do:
                served.append(finding)
        return served


_OF_GRAVEST: Mapping[Outcome, str] = MappingProxyType(
    {
        "worked": "",
        "untried": "Against the gravest finding no remedy was tried.",
        "stays": "Under what was tried against the gravest finding a leak stays, or may stay.",
        "useless": "No remedy tried against the gravest finding leaves a useful model.",
    }
)
"""What came of the gravest finding's remedies, where another action comes first."""
_TWIN_HEAD = 3
"""Printed lines of the heading of the comparison with the honest twin, and of its table's."""


def summarise(result: Result) -> Summary:
    """Return the first page of a result, from its judgement and its exposure; pure."""
    findings, level = findings_of(result), judgement_in(result).level
    front_page = front(result)
    goals, matrix = matrix_of(result, standings_of(result, findings), findings)
    summary = Summary(
        level=level,
        headline=_headline(result, level, findings, front_page.findings),
        standing=_standing(result, findings),
        reasons=tuple(_reasons(result, findings))[:3],
        actions=tuple(actions(result, findings, front_page.findings)),
        goals=goals,
        matrix=matrix,
        front=front_page,
        twin=twin_summary(result),
    )
    above = (
        lines("headline", summary.headline)
        + lines("action", f"{summary.first_for} {summary.actions[0].do} {summary.first_effect}")
        + lines("standing", summary.standing)
    )
    above += lines("notes", " ".join(summary.notes))
    if summary.twin is not None:
        above += _TWIN_HEAD + lines("standing", summary.twin.headline)
        for row in summary.twin.front:
            above += lines("twin", row.honest, row.active)
    return replace(summary, front=replace(front_page, above=above, said=summary.first_effect))


def _headline(
    result: Result, level: Level, findings: Sequence[Finding], front_findings: Sequence[FrontFinding]
) -> str:
    """Return the verdict in a few sentences: the gravest and the widest finding, how many more, and a failed gate."""
    gates, besides = len(result.failed_gates), ""
    if gates == 1:
        besides = " A gate of the spec failed."
    elif gates:
        besides = f" {gates} gates of the spec failed."
    if result.unfinished is not None:
        besides += f" Provisional: {result.unfinished.words}."
    if result.utility.warnings:
        besides += " The model is near chance on test records."
    if front_findings:
        return f"{_gravest_and_widest(front_findings)}{besides}"
    if level == "possible":
        return (
            f"A leak is possible: a test stands out alone, but not after correction for all tests.{besides}"
        )
    if level == "none-seen":
        return f"No leak was measured. That is not evidence of safety.{besides}"
    if level == "not-tested":
        answers = plural(sum(f.level in SETTLED for f in findings), "test")
        clause = f"Tested in part: {answers} with an answer measured no leak"
        return f"{clause}. Of the rest nothing can be concluded.{besides}"
    why = "no attack ran whose controls hold"
    untried = all(f.untried for f in findings)
    if untried and result.unfinished is None:
        why = "no attack was tried"
    elif untried:
        why = "no attack has an answer yet"
    elif lacks_auxiliary(result):
        why = "attacks ran without controls, which need auxiliary records"
    return f"Nothing can be concluded: {why}.{besides}"


def _gravest_and_widest(front_findings: Sequence[FrontFinding]) -> str:
    """Return the gravest finding, a high one of wider access if there is one, and how many others there are."""
    gravest, named = front_findings[0], [front_findings[0]]
    widest = max(front_findings, key=lambda finding: finding.factors[1])
    if widest.factors[1] > gravest.factors[1] and widest.severity in SEVERITIES[:2]:
        named.append(widest)
    text = ". ".join(finding.clause for finding in named)
    others = [finding for finding in front_findings if finding not in named]
    if not others:
        return f"{text}."
    counts = by_severity(others, SEVERITIES[:2]) or "none of them high"
    return f"{text}. {plural(len(others), 'more finding')}, {counts}."


def _standing(result: Result, findings: Sequence[Finding]) -> str:
    """Return the scope of the verdict: how many attacks ran, on which data, and what that leaves open."""
    levels, run = Counter(f.level for f in findings), result.run
    untried = []
    if levels["not-applicable"]:
        untried.append(f"{levels['not-applicable']} do not apply (which clears nobody)")
    if levels["not-requested"]:
        untried.append(f"{levels['not-requested']} were not asked for")
    if levels["not-tested"]:
        later = "found no time" if result.unfinished is None else "are not tested yet"
        untried.append(f"{levels['not-tested']} {later}")
    extent = f"Of {plural(len(findings), 'possible test')} (one attack by one adversary each)"
    tried = sum(not f.untried for f in findings)
    if untried:
        extent += f" {joined(untried)}. Of the {tried} that ran"
    # The public page does not tell possible leaks: it may not say that there are none either.
    show = "shows" if levels["leak"] == 1 else "show"
    answers = [f"{levels['leak']} {show} a leak", f"{levels['partial']} a partial leak"]
    if levels["possible"]:
        answers.append(f"{levels['possible']} a possible leak")
    answers.append(f"{levels['none-seen']} found none")
    silent = tried - sum(levels[level] for level in SETTLED)
    if silent:
        answers.append(f"{silent} gave no answer")
    one_run = "One simulated run" if run.recording is None else "One recorded run"
    scope = (
        f"{extent} {joined(answers)}. {one_run} of {clip(run.protocol)} with {run.clients} clients on "
        f"{clip(run.dataset)}: {run.rounds} rounds from one seed with the {clip(run.profile)} profile."
    )
    if run.departures:
        departed = joined(f"{party(d.party)} departs from it by {clip(d.name, 60)}" for d in run.departures)
        scope += f" In it {departed}; all others follow the protocol."
    return scope


def _reasons(result: Result, findings: Sequence[Finding]) -> Iterator[Reason]:
    """Return the reasons: a contradicted claim, two findings (of two goals if possible), exposure, open points."""
    yield from _contradictions(result)
    settled = [f for f in findings if f.level in SETTLED]
    groups = grouped(settled, lambda finding: finding.cell.goal)
    if len(groups) == 1:
        groups = grouped(settled, lambda finding: finding.cell.adversary)
    best = list(filter(None, map(strongest, groups.values())))
    for _ in range(min(2, len(best))):
        top = strongest(best)
        if top is not None:
            best.remove(top)
            who = sentence(f"{party(top.cell.adversary)} (attack: {clip(top.cell.attack, 60)})")
            yield Reason(
                text=f"{who}: {top.measured}", because=top.because, cautions=top.cautions, number=top.number
            )
    yield from _exposure_reasons(result)
    unsettled = open_cells(findings)
    if unsettled:
        stay = "stays" if len(unsettled) == 1 else "stay"
        tests = plural(len(findings), "test")
        yield Reason(
            text=f"{len(unsettled)} of {tests} {stay} open: failed, or a control did.",
            because="An open test is neither a leak nor its absence.",
        )


def _contradictions(result: Result) -> Iterator[Reason]:
    """Yield the claim that the attacks exceed by most; it comes first."""
    fallen = result.contradicted
    if not fallen:
        return
    worst = max(fallen, key=lambda c: (c.bound or 0.0) - (c.claimed or 0.0))
    claim = f"The ε of {amount(worst.claimed or 0.0)} claimed for {party(worst.adversary)} is contradicted"
    text = f"{claim} by attacks."
    if worst.bound is not None:
        text = f"{claim}: attacks show at least {amount(worst.bound)}."
    if len(fallen) > 1:
        text += f" So is that of {len(fallen) - 1} other views."
    yield Reason(
        text=text,
        because="What is claimed does not hold: a mechanism is not what its event says, or something is left out.",
    )


def _exposure_reasons(result: Result) -> Iterator[Reason]:
    """Yield the ledger's bounds; else the audited adversary with most undefended kinds, and the number of others."""
    bounded = dict[str, LedgerEntry]()
    for entry in result.bounds:
        if entry.adversary not in result.contradicted_views:
            bounded[entry.adversary] = entry
    if bounded:
        worst = max(bounded.values(), key=lambda entry: entry.epsilon or 0.0)
        stated = f"one {clip(worst.unit, 40)} of a client, {clip(worst.relation, 40)}"
        figure = f"{amount(worst.epsilon or 0.0)} at δ = {amount(worst.delta or 0.0)}"
        needs = dict.fromkeys(chain.from_iterable(entry.needs for entry in bounded.values()))
        yield Reason(
            text=f"ε is at most {figure} for {stated}: in the view of {joined(map(party, bounded))}."
            f"{only_if(needs)}",
            because="It bounds what any attack can tell about a single one, within the ledger's assumptions. "
            + _checked(result, bounded),
        )
    bare: dict[str, list[str]] = {}
    for adversary in dict.fromkeys(cell.adversary for cell in result.cells):
        kinds = [kind for kind, defended in private_kinds(result, adversary) if not defended]
        if kinds and adversary not in bounded:
            bare[adversary] = kinds
    if not bare:
        return
    most = max(bare, key=lambda adversary: len(bare[adversary]))
    others = [party(adversary) for adversary in bare if adversary != most]
    because = "Without a noisy release on every path no ε can be claimed, whatever the attacks found."
    if others:
        because = f"{sentence(joined(others))} received these, or data derived from them. {because}"
    yield Reason(
        text=f"{sentence(party(most))} received {joined(clip(k, 60) for k in bare[most])}, computed from "
        "private data, with no defence on the way.",
        because=because,
    )


def _checked(result: Result, bounded: Collection[str]) -> str:
    """Return the outcome of the checks of the shown claims, in a sentence; empty if none was judged."""
    verdicts = list[str]()
    for check in result.checks:
        if check.adversary in bounded and not check.source:
            verdicts.append(check.verdict)
    consistent, inconclusive = verdicts.count("consistent"), verdicts.count("inconclusive")
    if consistent and inconclusive:
        return (
            f"Attacks that could have contradicted it did not in {consistent} views; in {inconclusive} they could "
            "not have."
        )
    if consistent:
        return "Attacks that could have contradicted it did not."
    if inconclusive:
        return "No attack here could have contradicted it."
    return ""

"""The first page: one headline, three reasons, actions, and who can learn what."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType

from fdaudit.goals import GOALS
from fdaudit.result import Budget, Level, Result, in_words

from ..goals.model_extraction import HELD
from ..grouping import grouped
from ..judgement.inheritance import Standing, private_kinds
from ..judgement.judgement import findings_of, judgement_in, standings_of
from ..judgement.remedies import ENCRYPT
from ..judgement.severity import SEVERITIES
from ..judgement.tried import Outcome
from ..judgement.verdict import LEVELS, SETTLED, Finding, by_view, strongest
from ..text import amount, clip, joined, only_if, party, plural, sentence
from .findings import FrontFinding, by_severity, lines
from .front import Front, front
from .twin import TwinSummary, twin_summary

__all__ = [
    "Action",
    "MatrixEntry",
    "MatrixRow",
    "Reason",
    "Summary",
    "summarise",
]


@dataclass(frozen=True, kw_only=True)
class Reason:
    """One reason for the verdict; `number` is the cell behind it, if there is one."""

    text: str
    because: str = ""
    cautions: tuple[str, ...] = ()
    number: int | None = None


@dataclass(frozen=True, kw_only=True)
class Action:
    """One thing to do and why."""

    do: str
    why: str


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
        notes = dict.fromkeys(entry.note for row in self.matrix for entry in row.entries)
        return tuple(filter(None, notes))

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
        return [f for f in self.front.findings if f.remedy.do == self.actions[0].do]


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
_NOTHING = "Receives nothing private."
_HELD = f"{HELD}."
"""End of the reason why a model that an adversary holds is not copied."""


def summarise(result: Result) -> Summary:
    """Return the first page of a result, from its judgement and its exposure; pure."""
    findings, level = findings_of(result), judgement_in(result).level
    front_page = front(result)
    goals, matrix = _matrix(result, standings_of(result, findings), findings)
    summary = Summary(
        level=level,
        headline=_headline(result, level, findings, front_page.findings),
        standing=_standing(result, findings),
        reasons=tuple(_reasons(result, findings))[:3],
        actions=tuple(_actions(result, findings, front_page.findings)),
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
        above += sum(lines("twin", row.honest, row.active) for row in summary.twin.front)
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
    elif _lacks_auxiliary(result):
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
    open_cells = _open_cells(findings)
    if open_cells:
        stay = "stays" if len(open_cells) == 1 else "stay"
        tests = plural(len(findings), "test")
        yield Reason(
            text=f"{len(open_cells)} of {tests} {stay} open: failed, or a control did.",
            because="An open test is neither a leak nor its absence.",
        )


def _open_cells(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings of cells that failed, or whose controls did."""
    return [f for f in findings if f.level in ("inconclusive", "failed")]


def _contradictions(result: Result) -> Iterator[Reason]:
    """Yield the claim that the attacks exceed by most; it comes first."""
    fallen = [c for c in result.checks if c.verdict == "contradicted"]
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
    bounded = {e.adversary: e for e in result.bounds if e.adversary not in result.contradicted_views}
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
    verdicts = [c.verdict for c in result.checks if c.adversary in bounded and not c.source]
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


def _matrix(
    result: Result, all_standings: Sequence[Standing], findings: Sequence[Finding]
) -> tuple[tuple[str, ...], tuple[MatrixRow, ...]]:
    own_findings = by_view(findings)
    # Images or texts, of which nothing was tried, are another kind of records than the run's: their goal is left out.
    all_goals = {f.cell.goal for f in findings}
    tried = {f.cell.goal for f in findings if not f.untried}
    showing = [goal.name for goal in GOALS.values() if goal.shows and goal.name in all_goals]
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
        if standing.finding.level == "inconclusive" and _lacks_auxiliary(result):
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


def _actions(
    result: Result, findings: Sequence[Finding], front_findings: Sequence[FrontFinding]
) -> Iterator[Action]:
    """Yield what to do: gates and false claims first, then the remedies of the findings, then what is open."""
    if result.failed_gates:
        names = joined(clip(gate.name, 80) for gate in result.failed_gates)
        yield Action(do="Hold the release: a gate of the spec failed.", why=f"Not met: {names}.")
    fallen = [c.adversary for c in result.checks if c.verdict == "contradicted"]
    if fallen:
        yield Action(
            do="Claim no ε: find out why attacks show more than the ledger allows.",
            why=f"Contradicted for {joined(map(party, fallen))}.",
        )
    remedies = [finding.remedy for finding in sorted(front_findings, key=_most_useful_first)]
    for do, why in dict.fromkeys((remedy.do, remedy.why) for remedy in remedies):
        yield Action(do=do, why=why)
    possible = sum(f.level == "possible" for f in findings)
    if possible:
        yield Action(
            do=f"Repeat the {plural(possible, 'test')} of a possible leak on a run with more "
            "candidates (`splits.candidates`).",
            why="Significant alone, not among all tests of this run: chance and a leak are both open.",
        )
    open_cells = _open_cells(findings)
    if _lacks_auxiliary(result) and any(f.level == "inconclusive" for f in open_cells):
        inconclusive = sum(f.level == "inconclusive" for f in open_cells)
        yield Action(
            do="Import the record again, and bring auxiliary records: ones like the clients', which nobody trained on.",
            why=f"Without them no attack has controls. So {plural(inconclusive, 'test')} stayed inconclusive.",
        )
        open_cells = [f for f in open_cells if f.level == "failed"]
    if open_cells:
        yield Action(do=_rerun(result, open_cells), why="Until then treat each as a possible leak.")
    if result.unfinished is not None:
        yield Action(
            do="Wait for the final report. If the command was interrupted, call it again (`run` and `quickstart` with "
            "`--resume`): it continues.",
            why=f"Provisional: {result.unfinished.words}.",
        )
    elif result.run.recording is not None and all(f.untried for f in findings):
        missing = [clip(rung.bring, 80) for rung in result.run.recording.ladder if not rung.there]
        if missing:
            yield Action(
                do=f"Import the record again, and bring {missing[0]}.",
                why="No attack could be tried. The table under Coverage says what else to bring.",
            )
    if result.budget is not None and result.budget.left_out:
        yield Action(
            do=_more_time(result.budget),
            why=f"The time budget left out {joined(clip(one.attack, 60) for one in result.budget.left_out)}.",
        )
    if not front_findings:
        yield Action(
            do="Claim no more than was measured: these attacks, this profile, this data.",
            why="Not finding a leak does not show that there is none. Only a mechanism with an ε bounds one.",
        )


def _most_useful_first(finding: FrontFinding) -> tuple[bool, bool, int]:
    """Return the order of remedies; encryption comes late, since it changes nothing for those who take part."""
    rank = ("worked", "untried", "stays", "useless").index(finding.outcome)
    return finding.outcome == "useless", finding.remedy == ENCRYPT, rank


def _more_time(budget: Budget) -> str:
    """Return how long a budget must be that holds one more attack."""
    needed = [one.needed for one in budget.left_out if one.needed is not None]
    if not needed:
        return "Run the attacks again with a longer `--budget`."
    return f"Run the attacks again with a `--budget` of {in_words(math.ceil(min(needed) / 60) * 60)} or more."


def _lacks_auxiliary(result: Result) -> bool:
    """Return whether a record was imported without auxiliary records, from which the controls of attacks are made."""
    recording = result.run.recording
    if recording is None:
        return False
    return any(rung.bring == "auxiliary records" and not rung.there for rung in recording.ladder)


def _rerun(result: Result, open_cells: Sequence[Finding]) -> str:
    """Return how to settle open tests: mend what failed, and spend more on the others."""
    failed = sum(f.level == "failed" for f in open_cells)
    parts = []
    if failed:
        parts.append(f"mend the {plural(failed, 'failed test')} (their errors are in the appendix)")
    if inconclusive := len(open_cells) - failed:
        wider = {"quick": "with `profile: standard`", "standard": "with `profile: full`"}
        more = wider.get(result.run.profile, "with more records, or on another task")
        parts.append(f"rerun the {plural(inconclusive, 'inconclusive test')} {more}")
    return f"{sentence(joined(parts))}."

"""Comparison of several runs: their utility, their traffic, what each adversary saw, and the attacks' results.

Everything is read from the runs' `result.json`; nothing is measured here.

Guarantees:
  * the comparison says so if runs differ in more than their protocol;
  * a goal that no attack was tried for is never shown as free of leaks, and a model that an adversary holds is shown
    as held;
  * of runs that differ only in their seeds the gravest outcome counts, and figures are means with intervals;
  * the same results give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from itertools import chain
from types import MappingProxyType

from fdaudit.result import Exposure, LedgerEntry, Result
from fdaudit.transcript.messages import role

from ..curves.sweep_rows import Spread, spreads_of
from ..goals import RULES
from ..goals.model_extraction import holds_model
from ..grouping import grouped
from ..judgement.judgement import findings_of, standings_of
from ..judgement.verdict import LEVELS, SETTLED, Finding, strongest
from ..run_figures import (
    LineUtility,
    StrongestFigure,
    measure_of,
    reference_lines,
    strongest_figure,
    utility,
)
from ..text import clip, joined
from .trade import Reach

__all__ = [
    "HELD",
    "SHOWN",
    "ComparedRun",
    "Comparison",
    "ComparisonRow",
    "GoalOutcome",
    "PartyView",
    "ReceivedKind",
    "compare",
]

HELD = "held"
"""The level of a goal where an adversary has in view what attacks would copy."""
SHOWN: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "leak": ("◆", LEVELS["leak"]),
        "partial": ("◐", LEVELS["partial"]),
        "possible": ("◇", LEVELS["possible"]),
        HELD: ("■", "Already held"),
        "none-seen": ("○", LEVELS["none-seen"]),
        "inconclusive": ("?", LEVELS["inconclusive"]),
        "not-tested": ("–", LEVELS["not-tested"]),
        "failed": ("✕", LEVELS["failed"]),
        "not-applicable": ("·", LEVELS["not-applicable"]),
        "not-requested": ("∅", LEVELS["not-requested"]),
    }
)
"""Levels from the gravest to the least informative, each with a mark of its own and with its words."""
_CLASSES = "Partial: classes"
"""The words for a partial leak of what classes look like."""
_UNSETTLED = ("inconclusive", "not-tested", "failed")
_SAME_GROUND = (
    "dataset",
    "partition",
    "splits",
    "clients",
    "model",
    "client_models",
    "public_dataset",
    "profile",
    "victims",
    "queries",
    "transport",
)
"""Fields of the spec in which runs must agree so that only the protocol explains a difference."""


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """A run to be compared.

    Attributes:
        name: its unique name in the comparison.
        result: its result.
        report: relative link to its own report, or None if there is none.
        seconds: its duration, if known; the mean if there are repeats.
        repeats: results of runs that differ from it only in their seeds.
    """

    name: str
    result: Result
    report: str | None = None
    seconds: float | None = None
    repeats: tuple[Result, ...] = ()

    @property
    def results(self) -> tuple[Result, ...]:
        """Return the results of all its seeds."""
        return self.result, *self.repeats

    @property
    def auditor_only(self) -> bool:
        """Return whether a result is for the auditor alone."""
        return any(result.auditor_only for result in self.results)


@dataclass(frozen=True, kw_only=True)
class ReceivedKind:
    """Messages of one kind that one party received or overheard."""

    kind: str
    count: int
    bytes: int
    private: bool
    defenses: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PartyView:
    """View of one adversary in a run; for a role with many parties, of the one that saw most private bytes.

    Attributes:
        position: its column: a role, a coalition, or "a client".
        party: the adversary's name.
        kinds: messages that it received or overheard.
        asks: oracles that it may query.
        known: false if the result has no record of its view.
    """

    position: str
    party: str
    kinds: tuple[ReceivedKind, ...]
    asks: tuple[str, ...] = ()
    known: bool = True

    @property
    def bytes(self) -> int:
        """Return the bytes of all messages."""
        return sum(k.bytes for k in self.kinds)

    @property
    def private(self) -> tuple[ReceivedKind, ...]:
        """Return the kinds that raw data may have reached."""
        kinds = []
        for kind in self.kinds:
            if kind.private:
                kinds.append(kind)
        return tuple(kinds)


@dataclass(frozen=True, kw_only=True)
class GoalOutcome:
    """Result of the attacks of one goal on a run: the gravest finding, and how many attacks support it.

    Attributes:
        goal: the attacks' goal.
        finding: the gravest finding; None if the result has no cell of this goal.
        tried: cells in which an attack ran.
        conclusive: those of them that gave an answer.
        cells: all cells of this goal.
        holders: adversaries that have the victims' models in view: nothing is left to copy.
        agreeing: number of seeds with this level.
    """

    goal: str
    finding: Finding | None
    tried: int
    conclusive: int
    cells: int
    holders: tuple[str, ...] = ()
    agreeing: int = 1

    @property
    def level(self) -> str | None:
        """Return the level to show: `held` if an adversary has the model, and no leak to another is graver."""
        if self.finding is None:
            return None
        if self.holders and self.finding.level not in ("leak", "partial", "possible"):
            return HELD
        return self.finding.level

    @property
    def words(self) -> str:
        """Return the level in words, with what of it is in part."""
        if self.level is None:
            return "Not audited"
        if self.level == "not-tested" and self.conclusive:
            return "Tested in part"
        if self.level == "partial" and self.finding is not None and self.finding.of_classes:
            return _CLASSES
        return SHOWN[self.level][1]

    @property
    def adversary(self) -> str:
        """Return the worst adversary: the first that holds the model, else that of the finding."""
        if self.level == HELD:
            return self.holders[0]
        return "" if self.finding is None else self.finding.cell.adversary


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One run's row.

    Attributes:
        entry: the run.
        utility: its final utility; of several seeds, the first one's.
        bytes: by role of the sender; of several seeds, the first one's.
        seen: the views; of several seeds, the first one's.
        outcomes: by goal.
        leakage: the largest AUC that a membership attack reached; of several seeds, the first one's.
        ledger: by adversary the entry with the largest ε over the seeds.
        spreads: figures over several seeds, by the name of a sweep's measure; empty for one seed.
    """

    entry: ComparedRun
    utility: LineUtility
    bytes: tuple[tuple[str, int], ...]
    seen: tuple[PartyView, ...]
    outcomes: tuple[GoalOutcome, ...]
    leakage: StrongestFigure | None = None
    ledger: tuple[LedgerEntry, ...] = ()
    spreads: Mapping[str, Spread] = dataclass_field(default_factory=dict)

    @property
    def seeds(self) -> int:
        """Return the number of seeds."""
        return len(self.entry.results)

    @property
    def total(self) -> int:
        """Return the bytes on the wire from all roles."""
        return sum(n for _, n in self.bytes)

    @property
    def size(self) -> float:
        """Return the bytes from all roles; of several seeds, the mean."""
        return self.spreads["bytes"].mean if self.spreads else self.total

    @property
    def learnt(self) -> Reach | None:
        """Return the utility with its interval: over seeds if there are several, else over test records."""
        server, best = self.utility.server, self.utility.best
        if self.spreads:
            return _over_seeds(self.spreads, "utility")
        if server is not None and server.value is not None:
            return Reach(value=server.value, low=server.low, high=server.high)
        return None if best is None else Reach(value=best)

    @property
    def leaked(self) -> Reach | None:
        """Return the largest membership AUC with its interval: over seeds if there are several, else its own."""
        if self.spreads:
            return _over_seeds(self.spreads, "membership_auc")
        figure = None if self.leakage is None else self.leakage.figure
        if figure is None or figure.value is None:
            return None
        return Reach(value=figure.value, low=figure.low, high=figure.high)

    @property
    def bounded(self) -> tuple[LedgerEntry, ...]:
        """Return the entries whose finite ε rests on noise, and that no attack contradicts."""
        fallen = set[str]()
        for result in self.entry.results:
            fallen |= result.contradicted_views
        entries = []
        for entry in self.ledger:
            if entry.rests_on_noise and entry.adversary not in fallen:
                entries.append(entry)
        return tuple(entries)

    @property
    def unbounded(self) -> tuple[str, ...]:
        """Return the adversaries for whose views no ε can be claimed: attacks contradict it, or it is infinite."""
        bounded = {e.adversary for e in self.bounded}
        adversaries = []
        for entry in self.ledger:
            if (entry.epsilon is None or entry.rests_on_noise) and entry.adversary not in bounded:
                adversaries.append(entry.adversary)
        return tuple(adversaries)


def _over_seeds(spreads: Mapping[str, Spread], measure: str) -> Reach | None:
    spread = spreads.get(measure)
    if spread is None:
        return None
    return Reach(value=spread.mean, low=spread.low, high=spread.high)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Comparison of runs.

    Attributes:
        rows: one a run, in the given order.
        references: reference lines, each with the name of the run that trained them.
        positions: the columns of the views.
        differences: differences of the runs other than the protocol; empty if there are none.
        headlines: one conclusion for each goal.
        measure: the measure of utility.
    """

    rows: tuple[ComparisonRow, ...]
    references: tuple[tuple[str, LineUtility], ...]
    positions: tuple[str, ...]
    differences: tuple[str, ...]
    headlines: tuple[str, ...]
    measure: str

    @property
    def goals(self) -> tuple[str, ...]:
        """Return the goals of any run, in the order of the rules."""
        of_rows = set[str]()
        for row in self.rows:
            for outcome in row.outcomes:
                of_rows.add(outcome.goal)
        goals = []
        for goal in RULES:
            if goal in of_rows:
                goals.append(goal)
        return tuple(goals)

    @property
    def untried(self) -> tuple[str, ...]:
        """Return the goals for which no attack was tried on any run, nor is a model held."""
        answered = set[str]()
        for row in self.rows:
            for outcome in row.outcomes:
                if outcome.tried or outcome.holders:
                    answered.add(outcome.goal)
        goals = []
        for goal in self.goals:
            if goal not in answered:
                goals.append(goal)
        return tuple(goals)


def compare(entries: Sequence[ComparedRun]) -> Comparison:
    """Return the comparison of some runs; pure."""
    rows = tuple(map(_compared, entries))
    positions = set[str]()
    for row in rows:
        positions.update(view.position for view in row.seen)
    references: list[tuple[str, LineUtility]] = []
    for entry in entries:
        final = entry.result.utility.final
        for line in reference_lines(entry.result):
            references.append((entry.name, utility(final, line)))
    results = [entry.result for entry in entries]
    return Comparison(
        rows=rows,
        references=tuple(references),
        positions=tuple(sorted(positions, key=_place)),
        differences=tuple(_differences(results)),
        headlines=tuple(_headlines(rows)),
        measure=joined(dict.fromkeys(map(measure_of, results)), "or"),
    )


def _compared(entry: ComparedRun) -> ComparisonRow:
    """Return a run's row; of several seeds the gravest outcomes and the largest ε count."""
    result = entry.result
    bytes_by_role: dict[str, int] = {}
    for row in result.wire:
        bytes_by_role[row.sender_role] = bytes_by_role.get(row.sender_role, 0) + row.bytes
    order = [*SHOWN, None]
    outcomes = []
    for same in grouped(chain.from_iterable(map(_outcomes, entry.results)), lambda o: o.goal).values():
        levels = [outcome.level for outcome in same]
        worst = min(same, key=lambda outcome: order.index(outcome.level))
        outcomes.append(replace(worst, agreeing=levels.count(worst.level)))
    ledger = []
    entries = chain.from_iterable(one.ledger or () for one in entry.results)
    for costs in grouped(entries, lambda cost: cost.adversary).values():
        largest = max(costs, key=lambda cost: math.inf if cost.epsilon is None else cost.epsilon)
        if len(costs) == len(entry.results):  # an adversary that a ledger lacks is left out
            ledger.append(largest)
    return ComparisonRow(
        entry=entry,
        utility=utility(result.utility.final, result.run.protocol),
        bytes=tuple(bytes_by_role.items()),
        seen=tuple(_all_seen(result)),
        outcomes=tuple(outcomes),
        leakage=strongest_figure(result, "membership", "auc"),
        ledger=tuple(ledger),
        spreads=spreads_of(entry.results) if entry.repeats else {},
    )


# -- who saw what ---------------------------------------------------------------------------------------------


def _all_seen(result: Result) -> Iterator[PartyView]:
    """Yield a view for each role, for the eavesdropper, and for every audited coalition."""
    exposures: dict[str, list[Exposure]] = {}
    for row in result.exposure:
        rows = exposures.setdefault(row.party, [])
        if row.direction != "sent":
            rows.append(row)
    # A party that receives nothing has no row. This is known, since the whole transcript was searched.
    for name in (*result.run.roles, "world", *(cell.adversary for cell in result.cells)):
        if name != "client":
            exposures.setdefault(name, [])
    all_views = []
    for party, rows in exposures.items():
        position = party
        if role(party) == "client" and "+" not in party:
            position = "a client"
        members = {*party.split("+"), *map(role, party.split("+"))}
        asks = []
        for oracle in result.oracles:
            coalitions = [coalition.split("+") for coalition in oracle.available_to]
            if any(map(members.issuperset, coalitions)):
                asks.append(oracle.name)
        view = PartyView(position=position, party=party, kinds=_kinds(rows), asks=tuple(asks))
        all_views.append(view)
    views = grouped(all_views, lambda view: view.position)
    for same in views.values():
        yield max(same, key=lambda view: sum(kind.bytes for kind in view.private))
    if "eavesdropper" not in views:
        yield PartyView(position="eavesdropper", party="eavesdropper", kinds=(), known=False)


def _place(position: str) -> tuple[int, str]:
    order = ["server", "aggregator", "a client", "eavesdropper", "world"]
    if position not in order:
        order.append(position)
    return order.index(position), position


def _kinds(rows: Iterable[Exposure]) -> tuple[ReceivedKind, ...]:
    """Return the messages by kind, private kinds first; a defence counts only if every such message has it."""
    received = []
    for kind, same in grouped(rows, lambda row: row.kind).items():
        reached = [row for row in same if row.private]
        first, *others = reached or same
        shields = set(first.defenses).intersection(*(row.defenses for row in others))
        received.append(
            ReceivedKind(
                kind=kind,
                count=sum(row.count for row in same),
                bytes=sum(row.bytes for row in same),
                private=bool(reached),
                defenses=tuple(sorted(shields)),
            )
        )
    return tuple(sorted(received, key=lambda k: (not k.private, -k.bytes, k.kind)))


# -- what attacks made of it ----------------------------------------------------------------------------------


def _outcomes(result: Result) -> Iterator[GoalOutcome]:
    """Yield what attacks of each goal found; without a leak, "not tested" if an adversary's messages were not read."""
    all_findings = findings_of(result)
    all_standings = standings_of(result, all_findings)
    by_goal = grouped(all_findings, lambda finding: finding.cell.goal)
    for goal in RULES:
        findings = by_goal.get(goal, [])
        if not findings:
            continue
        tried = [f for f in findings if not f.untried]
        top = strongest(tried or findings)
        if top is not None and top.level == "none-seen":
            for standing in all_standings:
                if (standing.goal, standing.level) == (goal, "not-tested"):
                    why = f"{clip(standing.adversary, 60)}: {standing.untested}"
                    top = replace(top, level="not-tested", because=why)
                    break
        holders: dict[str, None] = {}
        for finding in findings:
            if holds_model(finding.cell):
                holders[finding.cell.adversary] = None
        yield GoalOutcome(
            goal=goal,
            finding=top,
            tried=len(tried),
            conclusive=sum(f.level in SETTLED for f in tried),
            cells=len(findings),
            holders=tuple(holders),
        )


def _headlines(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    """Yield one conclusion for each goal, leaks first; goals that were not tried come last and are never left out."""
    goals: dict[str, None] = {}
    for row in rows:
        for outcome in row.outcomes:
            goals[outcome.goal] = None
    for goal in goals:
        by_level: dict[str, list[str]] = {}
        for row in rows:
            level = "not-requested"
            for outcome in row.outcomes:
                if outcome.goal == goal:
                    level = outcome.level or level
                    if RULES[goal].shown and outcome.words == _CLASSES:
                        level = "shown"
            by_level.setdefault(level, []).append(clip(row.entry.name, 40))
        runs = {level: joined(names) for level, names in by_level.items()}
        able = f"an adversary {RULES[goal].likely or RULES[goal].leaked}"
        parts = []
        if "leak" in runs and "partial" in runs:
            parts.append(f"{able} in {runs['leak']}, and in part in {runs['partial']}")
        elif "leak" in runs:
            parts.append(f"{able} in {runs['leak']}")
        elif "partial" in runs:
            parts.append(f"{able} in part in {runs['partial']}")
        if "shown" in runs:
            parts.append(f"an adversary {RULES[goal].shown} in {runs['shown']}")
        if HELD in runs:
            parts.append(f"an adversary holds the clients' models in {runs[HELD]}")
        if "possible" in runs:
            parts.append(f"a leak is possible, but not significant after correction, in {runs['possible']}")
        if "none-seen" in runs:
            parts.append(f"no leak was measured in {runs['none-seen']}")
        unsettled = list(chain.from_iterable(by_level.get(level, ()) for level in _UNSETTLED))
        if unsettled:
            parts.append(f"nothing can be concluded about {joined(unsettled)}")
        if "not-applicable" in runs:
            unfit = runs["not-applicable"]
            parts.append(f"no attack here applies to {unfit}, which says nothing about them")
        if "not-requested" in runs:
            parts.append(f"no attack was asked for in {runs['not-requested']}")
        yield f"{goal.replace('-', ' ').capitalize()}: {'; '.join(parts)}."


# -- whether they can be compared -----------------------------------------------------------------------------


def _differences(results: Sequence[Result]) -> Iterator[str]:
    """Yield the names of the runs' differences other than the protocol."""
    for result in results:
        if result.unfinished is not None:
            yield f"attacks: {result.unfinished.words}"
    recorded = sum(r.run.origin == "recording" for r in results)
    if recorded:
        yield f"where they ran: {recorded} of {len(results)} are recordings of systems that fdaudit did not run"
    for field in _SAME_GROUND:
        values = {repr(r.run.spec.get(field)) for r in results}
        if len(values) > 1:
            yield f"`{field}` of the spec"
    commitments, versions, devices = set[str](), set[str](), set[str]()
    for result in results:
        commitments.add(result.run.seed_commitment)
        versions.add(repr(sorted(result.run.versions.items())))
        devices.add(result.run.device)
    if len(commitments) > 1:
        yield "the seed, or the salt of its commitment: which records each client holds may differ"
    if len(versions) > 1:
        yield "the versions of the software"
    if len(devices) > 1:
        yield "the device"

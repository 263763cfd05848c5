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
from types import MappingProxyType

from fdaudit.result import Exposure, LedgerEntry, Result
from fdaudit.transcript.messages import role

from .goals import RULES
from .goals.model_extraction import holds_model
from .inheritance import Standing
from .judgement import findings_of, standings_of
from .run_figures import LineUtility, StrongestFigure, measure_of, strongest_figure, utility
from .sweep_rows import Spread, spreads_of
from .text import clip, joined
from .verdict import LEVELS, SETTLED, Finding, strongest

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
        return tuple(k for k in self.kinds if k.private)


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
        """Return the level in words; a partial leak of what classes look like says so."""
        if self.level is None:
            return "Not audited"
        if self.level == "partial" and self.finding is not None and self.finding.of_classes:
            return "Partial: classes"
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
    def bounded(self) -> tuple[LedgerEntry, ...]:
        """Return the entries whose finite ε rests on noise, and that no attack contradicts."""
        fallen = frozenset[str]().union(*(r.contradicted_views for r in self.entry.results))
        return tuple(e for e in self.ledger if e.rests_on_noise and e.adversary not in fallen)

    @property
    def unbounded(self) -> tuple[str, ...]:
        """Return the adversaries for whose views no ε can be claimed: attacks contradict it, or it is infinite."""
        bounded = {e.adversary for e in self.bounded}
        reached = (e for e in self.ledger if e.epsilon is None or e.rests_on_noise)
        return tuple(e.adversary for e in reached if e.adversary not in bounded)


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
        goals = {o.goal for row in self.rows for o in row.outcomes}
        return tuple(goal for goal in RULES if goal in goals)

    @property
    def untried(self) -> tuple[str, ...]:
        """Return the goals for which no attack was tried on any run, nor is a model held."""
        outcomes = [o for row in self.rows for o in row.outcomes]
        return tuple(g for g in self.goals if not any(o.tried or o.holders for o in outcomes if o.goal == g))


def compare(entries: Sequence[ComparedRun]) -> Comparison:
    """Return the comparison of some runs; pure."""
    rows = tuple(map(_compared, entries))
    positions = dict.fromkeys(s.position for row in rows for s in row.seen)
    references: list[tuple[str, LineUtility]] = []
    for entry in entries:
        final = entry.result.utility.final
        lines = dict.fromkeys(f.line for f in final if f.line != entry.result.run.protocol)
        references += [(entry.name, utility(final, line)) for line in lines]
    return Comparison(
        rows=rows,
        references=tuple(references),
        positions=tuple(sorted(positions, key=_place)),
        differences=tuple(_differences([e.result for e in entries])),
        headlines=tuple(_headlines(rows)),
        measure=joined(dict.fromkeys(measure_of(e.result) for e in entries), "or"),
    )


def _compared(entry: ComparedRun) -> ComparisonRow:
    result = entry.result
    each_outcome: dict[str, list[GoalOutcome]] = {}
    for one in entry.results:
        for outcome in _outcomes(one):
            each_outcome.setdefault(outcome.goal, []).append(outcome)
    bytes_by_role: dict[str, int] = {}
    for row in result.wire:
        bytes_by_role[row.sender_role] = bytes_by_role.get(row.sender_role, 0) + row.bytes
    return ComparisonRow(
        entry=entry,
        utility=utility(result.utility.final, result.run.protocol),
        bytes=tuple(bytes_by_role.items()),
        seen=tuple(_all_seen(result)),
        outcomes=tuple(map(_gravest, each_outcome.values())),
        leakage=strongest_figure(result, "membership", "auc"),
        ledger=tuple(_largest_epsilons(entry.results)),
        spreads=spreads_of(entry.results) if entry.repeats else {},
    )


def _largest_epsilons(results: Sequence[Result]) -> Iterator[LedgerEntry]:
    """Yield for each adversary the entry with the largest ε; an adversary that a ledger lacks is left out."""
    by_adversary: dict[str, list[LedgerEntry]] = {}
    for result in results:
        for entry in result.ledger or ():
            by_adversary.setdefault(entry.adversary, []).append(entry)
    for entries in by_adversary.values():
        if len(entries) == len(results):
            yield max(entries, key=lambda e: math.inf if e.epsilon is None else e.epsilon)


# -- who saw what ---------------------------------------------------------------------------------------------


def _all_seen(result: Result) -> Iterator[PartyView]:
    """Yield a view for each role, for the eavesdropper, and for every audited coalition."""
    exposures: dict[str, list[Exposure]] = {}
    for row in result.exposure:
        rows = exposures.setdefault(row.party, [])
        if row.direction != "sent":
            rows.append(row)
    # A party that receives nothing has no row. This is known, since the whole transcript was searched.
    roles = [role for role in result.run.roles if role != "client"]
    for party in (*roles, "world", *(cell.adversary for cell in result.cells)):
        exposures.setdefault(party, [])
    views: dict[str, list[PartyView]] = {}
    for party, rows in exposures.items():
        view = PartyView(
            position=_position(party), party=party, kinds=_kinds(rows), asks=_asks(result, party)
        )
        views.setdefault(view.position, []).append(view)
    for same in views.values():
        yield max(same, key=lambda s: sum(k.bytes for k in s.private))
    if "eavesdropper" not in views:
        yield PartyView(position="eavesdropper", party="eavesdropper", kinds=(), known=False)


def _asks(result: Result, party: str) -> tuple[str, ...]:
    members = {*party.split("+"), *map(role, party.split("+"))}
    names = []
    for oracle in result.oracles:
        coalitions = [set(a.split("+")) for a in oracle.available_to]
        if any(coalition <= members for coalition in coalitions):
            names.append(oracle.name)
    return tuple(names)


def _position(party: str) -> str:
    if role(party) == "client" and "+" not in party:
        return "a client"
    return party


def _place(position: str) -> tuple[int, str]:
    order = ("server", "aggregator", "a client", "eavesdropper", "world")
    place = order.index(position) if position in order else len(order)
    return place, position


def _kinds(rows: Iterable[Exposure]) -> tuple[ReceivedKind, ...]:
    """Return the messages by kind, private kinds first; a defence counts only if every such message has it."""
    kinds: dict[str, list[Exposure]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row)
    received = []
    for kind, same in kinds.items():
        reached = [r for r in same if r.private]
        shields = [set(r.defenses) for r in reached or same]
        received.append(
            ReceivedKind(
                kind=kind,
                count=sum(r.count for r in same),
                bytes=sum(r.bytes for r in same),
                private=bool(reached),
                defenses=tuple(sorted(set.intersection(*shields))),
            )
        )
    return tuple(sorted(received, key=lambda k: (not k.private, -k.bytes, k.kind)))


# -- what attacks made of it ----------------------------------------------------------------------------------


def _goals(findings: Iterable[Finding]) -> tuple[str, ...]:
    goals = {f.cell.goal for f in findings}
    return tuple(goal for goal in RULES if goal in goals)


def _outcomes(result: Result) -> Iterator[GoalOutcome]:
    """Yield the outcome of each goal of one run."""
    findings = findings_of(result)
    all_standings = standings_of(result, findings)
    for goal in _goals(findings):
        yield _outcome(goal, findings, all_standings)


def _gravest(outcomes: Sequence[GoalOutcome]) -> GoalOutcome:
    """Return the gravest of the outcomes of several seeds, and how many have its level."""
    order = list(SHOWN)
    worst = min(outcomes, key=lambda o: len(order) if o.level is None else order.index(o.level))
    return replace(worst, agreeing=sum(o.level == worst.level for o in outcomes))


def _outcome(goal: str, findings: Iterable[Finding], held: Sequence[Standing]) -> GoalOutcome:
    """Return what attacks with a goal found; without a leak, "not tested" if an adversary's messages were not read."""
    cells = [f for f in findings if f.cell.goal == goal]
    tried = [f for f in cells if not f.untried]
    settled = [f for f in tried if f.level in SETTLED]
    top = strongest(tried or cells)
    untested = next((s for s in held if (s.goal, s.level) == (goal, "not-tested")), None)
    if top is not None and top.level == "none-seen" and untested is not None:
        top = replace(top, level="not-tested", because=f"{clip(untested.adversary, 60)}: {untested.untested}")
    return GoalOutcome(
        goal=goal,
        finding=top,
        tried=len(tried),
        conclusive=len(settled),
        cells=len(cells),
        holders=tuple(dict.fromkeys(f.cell.adversary for f in cells if holds_model(f.cell))),
    )


def _headlines(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    """Yield one conclusion for each goal, leaks first; goals that were not tried come last and are never left out."""
    for goal in dict.fromkeys(o.goal for row in rows for o in row.outcomes):
        by_level: dict[str, list[str]] = {}
        for row in rows:
            outcome = next((o for o in row.outcomes if o.goal == goal), None)
            finding = outcome.finding if outcome is not None else None
            level = (outcome.level if outcome is not None else None) or "not-requested"
            if finding is not None and level == "partial" and RULES[goal].shown and finding.of_classes:
                level = "shown"
            by_level.setdefault(level, []).append(clip(row.entry.name, 40))
        open_ = [
            *by_level.get("inconclusive", []),
            *by_level.get("not-tested", []),
            *by_level.get("failed", []),
        ]
        parts = []
        leaks = [("", by_level.get("leak", [])), ("in part ", by_level.get("partial", []))]
        where = [f"{extent}in {joined(names)}" for extent, names in leaks if names]
        if where:
            able = RULES[goal].likely or RULES[goal].leaked
            parts.append(f"an adversary {able} {', and '.join(where)}")
        if by_level.get("shown"):
            parts.append(f"an adversary {RULES[goal].shown} in {joined(by_level['shown'])}")
        if by_level.get(HELD):
            parts.append(f"an adversary holds the clients' models in {joined(by_level[HELD])}")
        if by_level.get("possible"):
            parts.append(
                f"a leak is possible, but not significant after correction, in {joined(by_level['possible'])}"
            )
        if by_level.get("none-seen"):
            parts.append(f"no leak was measured in {joined(by_level['none-seen'])}")
        if open_:
            parts.append(f"nothing can be concluded about {joined(open_)}")
        if by_level.get("not-applicable"):
            unfit = joined(by_level["not-applicable"])
            parts.append(f"no attack here applies to {unfit}, which says nothing about them")
        if by_level.get("not-requested"):
            parts.append(f"no attack was asked for in {joined(by_level['not-requested'])}")
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
    if len({r.run.seed_commitment for r in results}) > 1:
        yield "the seed, or the salt of its commitment: which records each client holds may differ"
    if len({repr(sorted(r.run.versions.items())) for r in results}) > 1:
        yield "the versions of the software"
    if len({r.run.device for r in results}) > 1:
        yield "the device"

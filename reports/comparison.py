"""Comparison of several runs: their utility, their traffic, what each adversary saw, and the attacks' results.

Everything is read from the runs' `result.json`; nothing is measured here.

Guarantees:
  * the comparison says so if runs differ in more than their protocol;
  * a goal that no attack was tried for is never shown as free of leaks;
  * the same results give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from fdaudit.result import Exposure, FinalUtility, Result
from fdaudit.transcript.messages import role
from fdaudit.types import Figure

from .findings import shows_classes
from .goals import RULES
from .inheritance import Standing, standings
from .text import MEASURES, clip, joined
from .verdict import SETTLED, Finding, judge_all, strongest

__all__ = [
    "Compared",
    "Comparison",
    "Entry",
    "Outcome",
    "Received",
    "Seen",
    "Utility",
    "compare",
    "measure_of",
    "utility",
]

_UNTRIED = ("not-applicable", "not-requested")
_MEASURES = ("accuracy", "mean_auc", "dice")
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
class Entry:
    """A run to be compared.

    Attributes:
        name: its unique name in the comparison.
        result: its result.
        report: relative link to its own report, or None if there is none.
        seconds: its duration, if known.
    """

    name: str
    result: Result
    report: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Utility:
    """Final test accuracy, mAUC or Dice of one line: the server's model, the clients' mean and the worst client.

    Attributes:
        line: the protocol or reference line.
        server: the server's model; None if it has none.
        mean: mean over clients with their own model, a fraction; None if there is none.
        worst: the worst of these clients.
        worst_party: that client's name.
        clients: number of clients with their own model.
    """

    line: str
    server: Figure | None
    mean: float | None
    worst: Figure | None
    worst_party: str
    clients: int

    @property
    def best(self) -> float | None:
        """Return the value that represents the line in a drawing: the server's model, else the clients' mean."""
        return self.server.value if self.server is not None else self.mean


@dataclass(frozen=True, kw_only=True)
class Received:
    """Messages of one kind that one party received or overheard."""

    kind: str
    count: int
    bytes: int
    private: bool
    defenses: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Seen:
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
    kinds: tuple[Received, ...]
    asks: tuple[str, ...] = ()
    known: bool = True

    @property
    def bytes(self) -> int:
        """Return the bytes of all messages."""
        return sum(k.bytes for k in self.kinds)

    @property
    def private(self) -> tuple[Received, ...]:
        """Return the kinds that raw data may have reached."""
        return tuple(k for k in self.kinds if k.private)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of the attacks of one goal on a run: the gravest finding, and how many attacks support it.

    Attributes:
        goal: the attacks' goal.
        finding: the gravest finding; None if the result has no cell of this goal.
        tried: cells in which an attack ran.
        conclusive: those of them that gave an answer.
        cells: all cells of this goal.
    """

    goal: str
    finding: Finding | None
    tried: int
    conclusive: int
    cells: int


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One run's row."""

    entry: Entry
    utility: Utility
    bytes: tuple[tuple[str, int], ...]
    seen: tuple[Seen, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def total(self) -> int:
        """Return the bytes on the wire from all roles."""
        return sum(n for _, n in self.bytes)


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

    rows: tuple[Compared, ...]
    references: tuple[tuple[str, Utility], ...]
    positions: tuple[str, ...]
    differences: tuple[str, ...]
    headlines: tuple[str, ...]
    measure: str


def compare(entries: Sequence[Entry]) -> Comparison:
    """Return the comparison of some runs; pure."""
    rows = tuple(_compared(entry) for entry in entries)
    positions = dict.fromkeys(s.position for row in rows for s in row.seen)
    return Comparison(
        rows=rows,
        references=tuple(
            (entry.name, utility(entry.result.utility.final, line))
            for entry in entries
            for line in dict.fromkeys(f.line for f in entry.result.utility.final)
            if line != entry.result.run.protocol
        ),
        positions=tuple(sorted(positions, key=_place)),
        differences=tuple(_differences([e.result for e in entries])),
        headlines=tuple(_headlines(rows)),
        measure=joined(dict.fromkeys(measure_of(e.result) for e in entries), "or"),
    )


def _compared(entry: Entry) -> Compared:
    result = entry.result
    sent: dict[str, int] = {}
    for row in result.wire:
        sent[row.sender_role] = sent.get(row.sender_role, 0) + row.bytes
    findings = judge_all(result)
    held = standings(result, findings)
    return Compared(
        entry=entry,
        utility=utility(result.utility.final, result.run.protocol),
        bytes=tuple(sent.items()),
        seen=tuple(_all_seen(result)),
        outcomes=tuple(_outcome(goal, findings, held) for goal in _goals(findings)),
    )


# -- what was learnt ------------------------------------------------------------------------------------------


def measure_of(result: Result) -> str:
    """Return the measure of a run's utility."""
    return MEASURES[result.run.task]


def utility(final: Iterable[FinalUtility], line: str) -> Utility:
    """Return the final utility of one line, from all final figures of a run."""
    held = {f.party: f.figure for f in final if f.line == line and f.figure.name in _MEASURES}
    clients = {p: f for p, f in held.items() if role(p) == "client" and f.value is not None}
    worst = min(clients, key=lambda p: clients[p].value or 0.0, default="")
    values = [f.value or 0.0 for f in clients.values()]
    return Utility(
        line=line,
        server=held.get("server"),
        mean=sum(values) / len(values) if values else None,
        worst=clients.get(worst),
        worst_party=worst,
        clients=len(clients),
    )


# -- who saw what ---------------------------------------------------------------------------------------------


def _all_seen(result: Result) -> Iterator[Seen]:
    """Yield a view for each role, for the eavesdropper, and for every audited coalition."""
    seen: dict[str, list[Exposure]] = {}
    for row in result.exposure:
        rows = seen.setdefault(row.party, [])
        if row.direction != "sent":
            rows.append(row)
    # A party that receives nothing has no row. This is known, since the whole transcript was searched.
    for party in (*(r for r in result.run.roles if r != "client"), "world", *_audited(result)):
        seen.setdefault(party, [])
    views: dict[str, list[Seen]] = {}
    for party, rows in seen.items():
        made = Seen(position=_position(party), party=party, kinds=_kinds(rows), asks=_asks(result, party))
        views.setdefault(made.position, []).append(made)
    for same in views.values():
        yield max(same, key=lambda s: sum(k.bytes for k in s.private))
    if "eavesdropper" not in views:
        yield Seen(position="eavesdropper", party="eavesdropper", kinds=(), known=False)


def _asks(result: Result, party: str) -> tuple[str, ...]:
    members = {name for member in party.split("+") for name in (member, role(member))}
    return tuple(o.name for o in result.oracles if any(set(a.split("+")) <= members for a in o.available_to))


def _audited(result: Result) -> Iterator[str]:
    yield from dict.fromkeys(c.adversary for c in result.cells)


def _position(party: str) -> str:
    return party if "+" in party or role(party) != "client" else "a client"


def _place(position: str) -> tuple[int, str]:
    order = ("server", "aggregator", "a client", "eavesdropper", "world")
    return (order.index(position) if position in order else len(order), position)


def _kinds(rows: Iterable[Exposure]) -> tuple[Received, ...]:
    """Return the messages by kind, private kinds first; a defence counts only if every such message has it."""
    kinds: dict[str, list[Exposure]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row)
    made = []
    for kind, same in kinds.items():
        reached = [r for r in same if r.private]
        shields = [set(r.defenses) for r in reached or same]
        made.append(
            Received(
                kind=kind,
                count=sum(r.count for r in same),
                bytes=sum(r.bytes for r in same),
                private=bool(reached),
                defenses=tuple(sorted(set.intersection(*shields))),
            )
        )
    return tuple(sorted(made, key=lambda k: (not k.private, -k.bytes, k.kind)))


# -- what attacks made of it ----------------------------------------------------------------------------------


def _goals(findings: Iterable[Finding]) -> tuple[str, ...]:
    found = {f.cell.goal for f in findings}
    return tuple(goal for goal in RULES if goal in found)


def _outcome(goal: str, findings: Iterable[Finding], held: Sequence[Standing]) -> Outcome:
    """Return what attacks with a goal found; without a leak, "not tested" if an adversary's messages were not read."""
    cells = [f for f in findings if f.cell.goal == goal]
    tried = [f for f in cells if f.level not in _UNTRIED]
    settled = [f for f in tried if f.level in SETTLED]
    top = strongest(tried or cells)
    left = next((s for s in held if (s.goal, s.level) == (goal, "not-tested")), None)
    if top is not None and top.level == "none-seen" and left is not None:
        top = replace(top, level="not-tested", because=f"{clip(left.adversary, 60)}: {left.unread}")
    return Outcome(
        goal=goal,
        finding=top,
        tried=len(tried),
        conclusive=len(settled),
        cells=len(cells),
    )


def _headlines(rows: Sequence[Compared]) -> Iterator[str]:
    """Yield one conclusion for each goal, leaks first; goals that were not tried come last and are never left out."""
    for goal in dict.fromkeys(o.goal for row in rows for o in row.outcomes):
        by_level: dict[str, list[str]] = {}
        for row in rows:
            outcome = next((o for o in row.outcomes if o.goal == goal), None)
            finding = None if outcome is None else outcome.finding
            level: str = "not-requested" if finding is None else finding.level
            if finding is not None and level == "partial" and RULES[goal].shown and shows_classes(finding):
                level = "shown"
            by_level.setdefault(level, []).append(clip(row.entry.name, 40))
        untried = [name for level in _UNTRIED for name in by_level.get(level, [])]
        open_ = [n for level in ("inconclusive", "not-tested", "failed") for n in by_level.get(level, [])]
        parts = []
        found = [("", by_level.get("leak", [])), ("in part ", by_level.get("partial", []))]
        where = [f"{extent}in {joined(names)}" for extent, names in found if names]
        if where:
            parts.append(f"an adversary {RULES[goal].leaked} {', and '.join(where)}")
        if by_level.get("shown"):
            parts.append(f"an adversary {RULES[goal].shown} in {joined(by_level['shown'])}")
        if by_level.get("possible"):
            parts.append(
                f"a leak is possible, but not significant after correction, in {joined(by_level['possible'])}"
            )
        if by_level.get("none-seen"):
            parts.append(f"no leak was measured in {joined(by_level['none-seen'])}")
        if open_:
            parts.append(f"nothing can be concluded about {joined(open_)}")
        if untried:
            parts.append(f"no attack here applies to {joined(untried)}, which says nothing about them")
        yield f"{goal.replace('-', ' ').capitalize()}: {'; '.join(parts)}."


# -- whether they can be compared -----------------------------------------------------------------------------


def _differences(results: Sequence[Result]) -> Iterator[str]:
    """Yield the names of the runs' differences other than the protocol."""
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

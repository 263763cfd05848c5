"""The ledger: the ε of an adversary's view for the worst-affected client, or why none can be claimed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, InitVar, dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any

from fdaudit.accounting.accounts import Accounts, dearest, worst_gdp, worst_zcdp
from fdaudit.accounting.charges import Charges
from fdaudit.accounting.charging import EpsilonEntry, sampling
from fdaudit.accounting.departures import chosen, departed
from fdaudit.accounting.draws import mechanisms
from fdaudit.accounting.graph import Leak, MessageGraph
from fdaudit.adversary.view import EAVESDROPPER, members_of
from fdaudit.errors import SpecError
from fdaudit.events import (
    CorrelatedGaussian,
    DrawnGaussian,
    Gaussian,
    Laplace,
    Mechanism,
    Relation,
    SampledGaussian,
    Unit,
)
from fdaudit.result import AgainstActive, Contribution, LedgerEntry
from fdaudit.spec.privacy import PrivacySpec
from fdaudit.storage.tables import html_table
from fdaudit.transcript.messages import DEVIATION, Message, role

__all__ = ["Books", "Groups", "Ledger", "OracleAnswers", "may_ask"]

_SAME = 1 + 1e-9
"""Factor by which two figures of one claim may differ by rounding."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The cost of a view.

    Attributes:
        view: the adversary.
        epsilon: at `delta`, of the worst-affected client; infinite if none can be claimed.
        delta: δ.
        unit: what changes between neighbours: one record of a client, or all of it.
        relation: how it changes.
        victim: the worst client, or empty when every client is a member of the adversary.
        cause: why ε is infinite; empty otherwise.
        message: `seq` of the first message that makes ε infinite.
        kind: its kind.
        accountant: the rule that gave ε, with its version.
        contributions: by kind of message.
        sampling: the sampling that the figure assumes, and the actual sampling.
        assumptions: assumptions of the figure.
        warnings: reasons why the figure says less than it seems to.
        gdp: μ of μ-GDP for every client; only if all charges are plain Gaussians, since μ is then exact.
        zcdp: ρ of ρ-zCDP for every client; only if all charges are Gaussians or discrete Gaussians.
        against: what is left of ε if parties depart from the protocol, as `Books.against` finds.
    """

    view: str
    epsilon: float
    delta: float
    unit: Unit
    relation: Relation
    victim: str = ""
    cause: str = ""
    message: int | None = None
    kind: str = ""
    accountant: str = ""
    contributions: tuple[Contribution, ...] = ()
    sampling: str = ""
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    gdp: float | None = None
    zcdp: float | None = None
    against: tuple[AgainstActive, ...] = ()

    @property
    def finite(self) -> bool:
        """Return whether a finite ε can be claimed."""
        return math.isfinite(self.epsilon)

    @property
    def entry(self) -> LedgerEntry:
        """Return the ledger as a result holds it: an infinite ε becomes None."""
        own: dict[str, Any] = {}
        for member in fields(Ledger):
            own[member.name] = getattr(self, member.name)
        own["adversary"] = own.pop("view")
        if not self.finite:
            own["epsilon"] = None
        return LedgerEntry(**own)

    def left(self, departs: str, number: int, worst: Ledger) -> AgainstActive:
        """Return what is left of the claim.

        Args:
            departs: the role of the parties that depart.
            number: how many of them.
            worst: the ledger of the same view if they depart.
        """
        epsilon = max(worst.epsilon, self.epsilon)
        return AgainstActive(
            departs=departs,
            number=number,
            holds=worst.finite and epsilon <= self.epsilon * _SAME,
            epsilon=epsilon if worst.finite else None,
            why=worst.cause,
        )

    def _repr_html_(self) -> str:
        """Return the claim and its terms as a table for a notebook."""
        terms = ("epsilon", "delta", "unit", "relation", "victim", "cause", "sampling")
        rows: list[list[object]] = [[name, getattr(self, name)] for name in terms]
        rows += [["assumes", line] for line in self.assumptions]
        rows += [["warning", line] for line in self.warnings]
        return html_table(("term", "value"), rows, f"ε of the view of {self.view}")


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The groups of the clients' records that a ledger of the unit `group` protects.

    Attributes:
        largest: the most records that a client trains on of one group.
        apart: why a group's records are not all one client's, or an empty text.
    """

    largest: int
    apart: str = ""


@dataclass(frozen=True, kw_only=True)
class OracleAnswers:
    """All answers of one model that an adversary may get; the ledger charges permitted questions, asked or not.

    Attributes:
        message: an `oracle_answer` that follows the transcript, numbered on from its last message.
        asked_by: roles that may ask.
        heard_by: roles that receive the answers.
        queries: how many samples may be asked.
    """

    message: Message
    asked_by: frozenset[str]
    heard_by: frozenset[str]
    queries: int

    def open_to(self, members: Collection[str], transport: str) -> bool:
        """Return whether an adversary with these members can ask and receives the answers."""
        return may_ask(members, self.asked_by, self.heard_by, transport)


def may_ask(
    members: Collection[str], asked_by: Collection[str], heard_by: Collection[str], transport: str
) -> bool:
    """Return whether a member may ask, and a member receives the answers or overhears them."""
    roles = set(map(role, members))
    overhears = EAVESDROPPER in members and transport == "plain"
    return bool(roles & set(asked_by)) and (overhears or bool(roles & set(heard_by)))


@dataclass(eq=False, repr=False)
class Books:
    """A transcript prepared for the ledger of any view.

    Of parties with a deviation on record only what `departed` leaves is counted, whatever else they sent.

    Attributes:
        messages: the whole transcript, in order.
        parties: every party.
        transport: `plain` or `encrypted`: what an eavesdropper sees.
        choices: the data on which each choice was made.
        reveals: by (kind, sender role), the raw data in such a message, in words.
        records: number of records of the smallest client; δ is compared with it.
        oracles: the oracles of the run's models.
        fixed_sizes: (kind, sender role) of the messages whose size does not depend on private data, as the protocol
            and its defences declare. All other sizes are charged like the message itself.
        assumptions: assumptions that the protocol's settings make.
        pooled: the party that held every client's records before the first message, or "".
        groups: the groups of the records; None if they are unknown.
        notes: further warnings, about the data.
        views: the adversaries whose ledgers are shown.
    """

    messages: InitVar[Iterable[Message]]
    parties: Sequence[str]
    _: KW_ONLY
    transport: str = "plain"
    choices: PrivacySpec = field(default_factory=PrivacySpec)
    reveals: Mapping[tuple[str, str], str] = field(default_factory=dict)
    records: int | None = None
    oracles: Sequence[OracleAnswers] = ()
    fixed_sizes: Collection[tuple[str, str]] = ()
    assumptions: Sequence[str] = ()
    pooled: str = ""
    groups: Groups | None = None
    notes: Sequence[str] = ()
    views: tuple[str, ...] = ()

    def __post_init__(self, messages: Iterable[Message]) -> None:
        recorded = tuple(messages)
        deviating = list[str]()
        for m in recorded:
            if DEVIATION in m.fields:
                deviating.append(m.sender)
        self._departed = frozenset(deviating)
        self._choosing = frozenset[str]()
        self._recorded = tuple(departed(recorded, self._departed))
        self._graph = MessageGraph((*self._recorded, *(o.message for o in self.oracles)))

    @cached_property
    def relation(self) -> Relation:
        """Return the relation of this run's events: add-or-remove if some event is stated for that relation only."""
        for event in self._mechanisms:
            if (event.unit, event.relation) == ("record", "add-or-remove"):
                return "add-or-remove"
        return "replace-one"

    @cached_property
    def _mechanisms(self) -> list[Mechanism]:
        """All mechanisms of the run's events."""
        return list(chain.from_iterable(map(mechanisms, self._graph.messages)))

    def ledger(
        self,
        view: str,
        *,
        delta: float = 1e-5,
        unit: Unit = "record",
        relation: Relation | None = None,
        pld: bool = True,
    ) -> Ledger:
        """Return the cost of a view.

        Args:
            view: an adversary, as `Run.view` takes it.
            delta: δ in (0, 1).
            unit: one record of a client, or all of its data.
            relation: add-or-remove or replace-one; default: the relation of the run's events.
            pld: whether privacy-loss distributions may be convolved, which is tighter and takes seconds.

        Raises:
            SpecError: no such party, or δ out of range.
        """
        entry = self._entry(view, delta, unit, relation, pld)
        victims = self._victims(view)
        blank = Ledger(
            view=view,
            epsilon=0.0,
            delta=delta,
            unit=unit,
            relation=entry.relation,
            assumptions=self._assumed(entry),
            warnings=self.warnings(delta, unit),
        )
        if not victims:
            return replace(blank, accountant="no client is left to protect")
        if cause := self._beyond_messages(entry, unit):
            return replace(blank, epsilon=math.inf, cause=cause, victim=victims[0])
        ways, leaks = _ways_and_leaks(entry, victims)
        if leaks:
            victim, leak = next(iter(leaks.items()))
            return replace(blank, epsilon=math.inf, victim=victim, **self._cause(leak, entry))
        if cause := chosen(self._recorded, self._choosing, victims):
            return replace(blank, epsilon=math.inf, cause=cause, victim=victims[0])
        bills = {victim: entry.cheapest(victim, of_victim) for victim, of_victim in ways.items()}
        victim, bill = entry.worst(bills)
        return replace(
            blank,
            epsilon=bill.epsilon.value,
            accountant=bill.epsilon.accountant,
            victim=victim,
            contributions=bill.contributions(self._graph, delta, pld),
            sampling=sampling(bill.costs, self._graph, entry),
            warnings=(*blank.warnings, *self._uncounted(bill.costs, entry)),
            gdp=worst_gdp((b.charges,) for b in bills.values()),
            zcdp=worst_zcdp((b.charges,) for b in bills.values()),
        )

    def against(self, ledger: Ledger, *, pld: bool = True) -> tuple[AgainstActive, ...]:
        """Return what is left of a ledger's ε if parties depart from the protocol: nothing if it rests on no noise.

        Every role but the clients' departs by itself, with all its parties. Of clients, all others than the worst one
        depart, and all others than each of the most expensive ones after it. If that is too much, one departs; if one
        leaves nothing, no more need to.

        Args:
            ledger: the ledger of a view.
            pld: as for `ledger`.
        """
        if not ledger.finite or not ledger.contributions:
            return ()
        rows = list[AgainstActive]()
        for name, who in self.asking.items():
            rows.append(self._against(ledger, name, [who], pld))
        clients = self.clients(ledger.view)
        if len(clients) < 2:
            return tuple(rows)
        accounts = self.accounts(ledger.view, unit=ledger.unit, relation=ledger.relation)
        others = list[list[str]]()
        for victim in dearest(accounts, ledger.victim, ledger.delta):
            others.append([client for client in clients if client != victim])
        every = self._against(ledger, "client", others, pld)
        if every.holds or len(clients) == 2:
            return (*rows, every)
        one = self._against(ledger, "client", [others[0][:1]], pld)
        if one.epsilon is None:
            return (*rows, one)
        return (*rows, one, every)

    def _against(
        self, ledger: Ledger, name: str, groups: Sequence[Sequence[str]], pld: bool
    ) -> AgainstActive:
        """Return what is left of ε at worst if the parties of one of these groups depart."""
        ledgers = list[Ledger]()
        for group in groups:
            books = self.if_departed(group)
            ledgers.append(
                books.ledger(
                    ledger.view, delta=ledger.delta, unit=ledger.unit, relation=ledger.relation, pld=pld
                )
            )
        worst = max(ledgers, key=lambda one: one.epsilon)
        return ledger.left(name, len(groups[0]), worst)

    def if_departed(self, parties: Sequence[str]) -> Books:
        """Return the books as they are if these parties depart from the protocol."""
        books = copy(self)
        answers = [o.message for o in self.oracles]
        books._graph = MessageGraph(tuple(departed((*self._recorded, *answers), parties)))
        books._departed = self._departed.union(parties)
        books._choosing = frozenset(parties)
        return books

    @property
    def asking(self) -> dict[str, tuple[str, ...]]:
        """Return the parties by role, without clients and the world, of the roles that hold something."""
        by_role: dict[str, list[str]] = {}
        for party in self.parties:
            by_role.setdefault(role(party), []).append(party)
        asking: dict[str, tuple[str, ...]] = {}
        for party in self.parties:
            name = role(party)
            if name not in ("client", "world") and self._graph.held_by(party):
                asking[name] = tuple(by_role[name])
        return asking

    def clients(self, view: str) -> tuple[str, ...]:
        """Return the clients that are no members of an adversary."""
        members = members_of(view, self.parties)
        clients = list[str]()
        for party in self.parties:
            if role(party) == "client" and party not in members:
                clients.append(party)
        return tuple(clients)

    def accounts(self, view: str, *, unit: Unit = "record", relation: Relation | None = None) -> Accounts:
        """Return the charges of each client, before a δ is chosen.

        Args:
            view: an adversary, as `Run.view` takes it.
            unit: one record of a client, or all of its data.
            relation: add-or-remove or replace-one; default: the relation of the run's events.

        Raises:
            SpecError: no such party.
        """
        entry = self._entry(view, 0.5, unit, relation, pld=False)  # ways of charging are the same at every δ
        victims = self._victims(view)
        charges, causes = dict[str, tuple[Charges, ...]](), dict[str, str]()
        if cause := self._beyond_messages(entry, unit):
            causes = dict.fromkeys(victims, cause)
        else:
            ways, leaks = _ways_and_leaks(entry, victims)
            charges = {victim: entry.charges(victim, of_victim) for victim, of_victim in ways.items()}
            causes = {victim: self._cause(leak, entry)["cause"] for victim, leak in leaks.items()}
            if cause := chosen(self._recorded, self._choosing, victims):
                charges = {}
                for victim in victims:
                    causes.setdefault(victim, cause)
        return Accounts(
            view=view,
            unit=unit,
            relation=entry.relation,
            charges=charges,
            causes=causes,
            assumptions=self._assumed(entry),
        )

    def _entry(
        self, view: str, delta: float, unit: Unit, relation: Relation | None, pld: bool
    ) -> EpsilonEntry:
        if not 0 < delta < 1:
            raise SpecError("delta", delta, "is no probability of failure", "Give a δ between 0 and 1.")
        if unit == "group" and self.groups is None:
            remedy = "Give the dataset groups: a column `group`, `train_groups`, pictures or persons."
            raise SpecError("unit", unit, "needs to know which records belong together", remedy)
        members = members_of(view, self.parties)
        seqs = list[int]()
        for m in self._recorded:
            overheard = EAVESDROPPER in members and any(r != m.sender for r in m.receivers)
            fixed = (m.kind, role(m.sender)) in self.fixed_sizes and m.sender not in self._departed
            telling = self.transport == "plain" or not fixed
            if any(p in members for p in m.parties()) or (overheard and telling):
                seqs.append(m.seq)
        for asking in (members, self._departed):  # who departs may hand on what it is answered
            for oracle in self.oracles:
                if oracle.open_to(asking, self.transport):
                    seqs.append(oracle.message.seq)
        seen = list(dict.fromkeys(seqs))
        return EpsilonEntry(
            graph=self._graph,
            members=members,
            seen=seen,
            delta=delta,
            unit="record" if unit == "group" else unit,
            group=self.groups.largest if unit == "group" and self.groups else 1,
            relation=relation or self.relation,
            tuning=self.choices.tuning,
            clients=sum(role(p) == "client" for p in self.parties),
            pld=pld,
        )

    def _victims(self, view: str) -> list[str]:
        return [client for client in self.clients(view) if client not in self._departed]

    def _beyond_messages(self, entry: EpsilonEntry, unit: Unit) -> str:
        """Return a reason outside the messages why no ε can be claimed, or an empty text."""
        if unit == "group" and self.groups is not None and self.groups.apart:
            return self.groups.apart
        if self.pooled in entry.members:
            return f"every client's records were pooled at {self.pooled} before the first message"
        if not entry.seen:
            return ""
        return self.choices.unaccounted()

    def _cause(self, leak: Leak, entry: EpsilonEntry) -> dict[str, Any]:
        m = leak.message
        cause = f"{m.kind} of {m.sender} in round {m.round} (message {m.seq}): {leak.reason}"
        if revealed := self.reveals.get((m.kind, role(m.sender))):
            cause += f"; {revealed}"
        if m.seq not in entry.seen:
            cause += ", which reaches the view through what was computed from it"
        return {"cause": cause, "message": m.seq, "kind": m.kind}

    def warnings(self, delta: float, unit: Unit) -> tuple[str, ...]:
        """Return the reasons why a figure at this δ says less than it seems to."""
        sentences = list(self.notes)
        if unit == "record" and self.records and delta >= 1 / self.records:
            least = f"{self.records} records, the fewest of a client"
            sentences.append(
                f"delta = {delta:g} is not below 1/n for {least}: it permits to publish one of them."
            )
        if unit == "record" and self.groups is not None and self.groups.largest > 1:
            sentences.append(
                f"Up to {self.groups.largest} records of a client are of one group (a picture, a person). "
                "A bound for one record does not hold for them together: ask for the unit group."
            )
        return tuple(sentences)

    @staticmethod
    def _uncounted(charged: Collection[int], entry: EpsilonEntry) -> tuple[str, ...]:
        """Return why a draw of clients that this view does not see is not counted, if it is not."""
        if entry.members != ("world",):
            return ()
        messages = [entry.graph.messages[seq] for seq in charged]
        parts = list(chain.from_iterable(map(mechanisms, messages)))
        has_draws = any(isinstance(part, Gaussian) and part.drawn_from > 1 for part in parts)
        if has_draws and not entry.counts_draws:
            return (f"The draw of one client a step is not counted: {entry.draws.problem}.",)
        if any(isinstance(part, DrawnGaussian) for part in parts) and entry.unfit_sums:
            return (f"The draw of clients is not counted: {entry.unfit_sums}.",)
        sampled = [part for part in parts if isinstance(part, SampledGaussian)]
        coins = any(part.unit == "client" and part.sample_rate < 1 for part in sampled)
        if coins and entry.remembering:
            return (f"The coins of clients are not counted: {entry.remembering}.",)
        return ()

    def _assumed(self, entry: EpsilonEntry) -> tuple[str, ...]:
        """Return the assumptions of every figure of this run."""
        tuning = self.choices.tuning
        fixed = "every setting were fixed without private data."
        if tuning is not None:
            fixed = "every other setting were fixed without private data."
        elif self.choices.tuned_on == "public":
            fixed = "every setting were fixed without private data (tuned on public data)."
        sentences = [
            "Records of one client do not depend on another's.",
            f"Who takes part, the schedule and {fixed}",
            "Noise and coins come from a secret that nobody else holds.",
        ]
        noise = Gaussian | Laplace | SampledGaussian | DrawnGaussian | CorrelatedGaussian
        if any(isinstance(event, noise) for event in self._mechanisms):
            sentences.append(
                "Noise is of real numbers: what the low bits of floating-point noise tell is not counted."
            )
        if tuning is not None:
            runs = f"{tuning.runs:g} runs ({tuning.number})"
            sentences.append(
                f"The setting was chosen from {runs}, none of which costs more than this one, by what each released."
            )
        if entry.group > 1:
            sentences.append(f"No group has more than {entry.group} records, as was known beforehand.")
        if entry.relation == "replace-one" and any(m.kind == "sample_count" for m in self._graph.messages):
            sentences.append("Replacing a record leaves a client's number of records as it is.")
        if EAVESDROPPER in entry.members and self.transport == "encrypted":
            kinds = sorted({kind for kind, _ in self.fixed_sizes})
            if kinds:
                sentences.append(
                    f"The size of {', '.join(kinds)} is fixed by public settings and tells nothing."
                )
        queries = [o.queries for o in self.oracles if o.open_to(entry.members, self.transport)]
        if queries:
            sentences.append(f"The adversary asks each model at most {max(queries):,} samples (`queries`).")
        return (*sentences, *self.assumptions)


def _ways_and_leaks(
    entry: EpsilonEntry, victims: Sequence[str]
) -> tuple[dict[str, list[frozenset[int]]], dict[str, Leak]]:
    """Return each victim's ways of charging, and the leaks of the others, those by the earliest messages first."""
    ways, leaks = dict[str, list[frozenset[int]]](), dict[str, Leak]()
    for victim in victims:
        way = entry.ways(victim)
        if isinstance(way, Leak):
            leaks[victim] = way
        else:
            ways[victim] = way
    return ways, dict(sorted(leaks.items(), key=lambda item: item[1].message.seq))

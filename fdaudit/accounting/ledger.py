"""The ledger: what ε an adversary's view costs the client that it costs most, or why none can be claimed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from fdaudit.accounting.charging import Contribution, Entry, mechanisms, sampling
from fdaudit.accounting.graph import Leak, MessageGraph
from fdaudit.errors import SpecError
from fdaudit.events import Gaussian, Laplace, Relation, SampledGaussian, Unit
from fdaudit.messages import Message, role
from fdaudit.privacy import PrivacySpec
from fdaudit.view import EAVESDROPPER, members_of

__all__ = ["Books", "Ledger"]


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """What a view costs.

    Attributes:
        view: the adversary.
        epsilon: at `delta`, of the client that it is largest for; infinite when none can be claimed.
        delta: δ.
        unit: what changes between neighbours: one record of a client, or all of it.
        relation: how it changes.
        victim: the worst client, or empty when every client is a member of the adversary.
        cause: why ε is infinite; empty otherwise.
        message: `seq` of the first message that makes it so.
        kind: its kind.
        accountant: the rule that gave ε, with its version.
        contributions: by kind of message.
        sampling: sampling that the figure assumes, and what was done.
        assumptions: what the figure rests on.
        warnings: what makes the figure say less than it seems to.
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

    @property
    def finite(self) -> bool:
        """Whether anything can be claimed."""
        return math.isfinite(self.epsilon)

    def to_json(self) -> dict[str, Any]:
        """Plain data; an infinite ε is null."""
        value = asdict(self)
        value["adversary"] = value.pop("view")
        value["epsilon"] = self.epsilon if self.finite else None
        return value


class Books:
    """A transcript made ready for ledgers of any view.

    Args:
        messages: the whole transcript, in order.
        parties: every party.
        transport: what an eavesdropper sees of it.
        choices: what was chosen on which data.
        reveals: by (kind, sender role), what of such a message is raw data, in words.
        records: how many records the client has that has fewest; δ is held against it.
    """

    def __init__(
        self,
        messages: Iterable[Message],
        parties: Sequence[str],
        *,
        transport: str = "plain",
        choices: PrivacySpec | None = None,
        reveals: Mapping[tuple[str, str], str] | None = None,
        records: int | None = None,
    ) -> None:
        self._graph = MessageGraph(tuple(messages))
        self._parties, self._transport = tuple(parties), transport
        self._choices, self._reveals = choices or PrivacySpec(), dict(reveals or {})
        self._records = records

    @cached_property
    def relation(self) -> Relation:
        """The relation that this run's events suit: add-or-remove where one is stated for it alone."""
        events = [part for m in self._graph.messages for part in mechanisms(m)]
        removal = any(e.unit == "record" and e.relation == "add-or-remove" for e in events)
        return "add-or-remove" if removal else "replace-one"

    def ledger(
        self,
        view: str,
        *,
        delta: float = 1e-5,
        unit: Unit = "record",
        relation: Relation | None = None,
        pld: bool = True,
    ) -> Ledger:
        """What a view costs.

        Args:
            view: an adversary, as `Run.view` takes it.
            delta: δ in (0, 1).
            unit: one record of a client, or all that a client holds.
            relation: add-or-remove or replace-one; left out, the one that the run's events suit.
            pld: whether privacy-loss distributions may be convolved, which is tighter and takes seconds.

        Raises:
            SpecError: no such party, or δ out of range.
        """
        if not 0 < delta < 1:
            raise SpecError("delta", delta, "is no probability of failure", "Give a δ between 0 and 1.")
        members = members_of(view, self._parties)
        entry = Entry(
            graph=self._graph,
            members=members,
            seen=self._seen(members),
            delta=delta,
            unit=unit,
            relation=relation or self.relation,
            pld=pld,
        )
        victims = [p for p in self._parties if role(p) == "client" and p not in members]
        blank = Ledger(
            view=view,
            epsilon=0.0,
            delta=delta,
            unit=unit,
            relation=entry.relation,
            assumptions=self._assumed(entry),
            warnings=self._warned(delta, unit),
        )
        if not victims:
            return _with(blank, accountant="no client is left to protect")
        if (cause := self._choices.unaccounted()) and entry.seen:
            return _with(blank, epsilon=math.inf, cause=cause, victim=victims[0])
        found = {victim: entry.ways(victim) for victim in victims}
        leaks = {v: w for v, w in found.items() if isinstance(w, Leak)}
        if leaks:
            victim, leak = min(leaks.items(), key=lambda item: item[1].message.seq)
            return _with(blank, epsilon=math.inf, victim=victim, **self._cause(leak, entry))
        bills = {v: entry.cheapest(v, w) for v, w in found.items() if not isinstance(w, Leak)}
        victim, bill = entry.worst(bills)
        return _with(
            blank,
            epsilon=bill.epsilon.value,
            accountant=bill.epsilon.accountant,
            victim=victim,
            contributions=bill.contributions(self._graph, delta, pld),
            sampling=sampling(bill.charged, self._graph, entry),
        )

    def _seen(self, members: Collection[str]) -> list[int]:
        """What reaches a view, by `seq`; of an encrypted message its size, where that says anything."""
        seen = []
        sizes = defaultdict[tuple[str, str], set[int]](set)
        for m in self._graph.messages:
            sizes[m.kind, role(m.sender)].add(m.bytes_on_wire)
        for m in self._graph.messages:
            overheard = EAVESDROPPER in members and any(r != m.sender for r in m.receivers)
            telling = self._transport == "plain" or len(sizes[m.kind, role(m.sender)]) > 1
            if any(p in members for p in m.parties()) or (overheard and telling):
                seen.append(m.seq)
        return seen

    def _cause(self, leak: Leak, entry: Entry) -> dict[str, Any]:
        m = leak.message
        reason = leak.reason
        if told := self._reveals.get((m.kind, role(m.sender))):
            reason = f"{reason}; {told}"
        how = "" if m.seq in entry.seen else ", which reaches the view through what was computed from it"
        return {
            "cause": f"{m.kind} of {m.sender} in round {m.round} (message {m.seq}): {reason}{how}",
            "message": m.seq,
            "kind": m.kind,
        }

    def _warned(self, delta: float, unit: Unit) -> tuple[str, ...]:
        if unit == "record" and self._records and delta >= 1 / self._records:
            least = f"{self._records} records, the fewest of a client"
            return (f"delta = {delta:g} is not below 1/n for {least}: it permits to publish one of them.",)
        return ()

    def _assumed(self, entry: Entry) -> tuple[str, ...]:
        """What every figure of this run rests on."""
        found = [
            "Records of one client do not depend on another's.",
            "Who takes part, the schedule and every setting were fixed without private data"
            + (" (tuned on public data)." if self._choices.tuned_on == "public" else "."),
            "Noise and coins come from a secret that nobody else holds.",
        ]
        events = [part for m in self._graph.messages for part in mechanisms(m)]
        if any(isinstance(e, Gaussian | Laplace | SampledGaussian) for e in events):
            found.append(
                "Noise is of real numbers: what the low bits of floating-point noise tell is not counted."
            )
        if entry.relation == "replace-one" and any(m.kind == "sample_count" for m in self._graph.messages):
            found.append("Replacing a record leaves a client's number of records as it is.")
        if EAVESDROPPER in entry.members and self._transport == "encrypted":
            found.append("Messages of one kind that all have one size tell nothing by their size.")
        return tuple(found)


def _with(ledger: Ledger, **changes: Any) -> Ledger:
    from dataclasses import replace

    return replace(ledger, **changes)

"""The budget: a privacy filter for one adversary, applied while the run proceeds.

Each event is charged to every client whose data reach its covered inputs without another guarantee in between. This
charges the guarantee nearest to the data, which is always valid. One pass over the messages, in the order they are
sent, keeps every client's sum. The ledger of the adversary's view never charges more than this sum.

Guarantees:
  * costs are Rényi divergences at one order. The first charged message fixes the order, from the parameters of its
    event; nothing that depends on data was sent before it. Later parameters may depend on earlier releases: a filter
    at a fixed order allows that (Feldman & Zrnic 2021, Theorem 4.3);
  * with `fixed`, costs are the ledger's own ε of everything charged so far. Then every event's parameters, and who
    sends when, must follow from the spec and from coins that hold no data. The message at which the run stops is then
    fixed before the run, and ordinary composition holds for all messages before it;
  * no message is recorded that would exceed the budget;
  * with `departing` parties, costs are those of what still counts if they depart from the protocol (`departures`).

A filter over several orders needs a share of δ for each order if parameters depend on earlier releases. That costs
more than it gains.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fdaudit.accounting.charges import Charge, converted, parts_of
from fdaudit.accounting.costs import ORDERS, curve, epsilon
from fdaudit.accounting.departures import DepartureRule, asks, unasked
from fdaudit.adversary.view import EAVESDROPPER, members_of
from fdaudit.errors import SpecError
from fdaudit.events import Event, EventUnit, NoGuarantee, Relation, Release
from fdaudit.transcript.messages import ALL, DATA, Message, role

__all__ = ["BudgetMeter", "BudgetMeters", "departing_groups"]

_AHEAD = (1.3, 1.05)
"""Factors by which a trial exceeds the need, so that few loss distributions are convolved."""


class _ByOrder:
    """A budget in Rényi divergence at one order: the best order for the first charges."""

    def __init__(self, epsilon: float, delta: float) -> None:
        # ε = ρ + log((α-1)/α) - (log δ + log α) / (α-1): Canonne, Kamath & Steinke 2020, Proposition 12.
        self._allowed = epsilon - np.log1p(-1 / ORDERS) + np.log(delta * ORDERS) / (ORDERS - 1)
        self._at: int | None = None

    def fits(self, charges: Counter[Charge]) -> bool:
        """Return whether the charges stay within the budget."""
        if not charges:
            return True
        if self._at is None:
            first = np.sum([n * curve(part) for part, n in charges.items()], axis=0)
            self._at = int(np.argmin(first / np.maximum(self._allowed, 1e-300)))
        costs = list[float]()
        for part, n in charges.items():
            costs.append(n * float(curve(part)[self._at]))
        return math.fsum(costs) <= float(self._allowed[self._at])


class _ByLedger:
    """A budget in the ledger's own ε."""

    def __init__(self, epsilon: float, delta: float) -> None:
        self._epsilon, self._delta = epsilon, delta
        self._fitting: list[Counter[Charge]] = []

    def fits(self, charges: Counter[Charge]) -> bool:
        """Return whether the charges stay within the budget; charges that cost no more than a fitting set also fit."""
        if any(charges <= fitting for fitting in self._fitting):
            return True
        if epsilon(charges, self._delta, pld=False).value <= self._epsilon:
            return True
        for factor in (*_AHEAD, 1.0):
            trial = Counter[Charge]()
            for part, n in charges.items():
                trial[part] = math.ceil(n * factor)
            if epsilon(trial, self._delta, coarse=factor > 1).value <= self._epsilon:
                self._fitting = [fitting for fitting in self._fitting if not fitting <= trial]
                self._fitting.append(trial)
                return True
        return False


class BudgetMeter:
    """The running cost of one adversary's view to each client.

    Args:
        adversary: the adversary whose view is metered.
        epsilon: the budget.
        delta: δ.
        unit: one record of a client, or all of its data.
        relation: how the unit changes between neighbours.
        parties: every party.
        fixed: whether every event's parameters follow from the spec alone, independent of all releases.
        departing: parties that may depart from the protocol; the budget is then kept for the other clients.

    Attributes:
        adversary: the same.
        epsilon: the same.
        departing: the same.
    """

    def __init__(
        self,
        adversary: str,
        epsilon: float,
        delta: float,
        unit: EventUnit,
        relation: Relation,
        parties: Sequence[str],
        *,
        fixed: bool = False,
        departing: Collection[str] = (),
    ) -> None:
        self.adversary, self.epsilon, self.departing = adversary, epsilon, tuple(departing)
        self._members = members_of(adversary, parties)
        self._unit, self._relation = unit, relation
        away = {*self._members, *departing}
        clients = list[str]()
        for party in parties:
            if role(party) == "client" and party not in away:
                clients.append(party)
        self._clients = frozenset(clients)
        self._departure = DepartureRule(departing)
        self._recorded: list[Message] = []
        self._asks, self._unasked = False, ""
        rule = _ByLedger if fixed else _ByOrder
        self._rule = rule(epsilon, delta)
        self._spent = defaultdict[str, Counter[Charge]](Counter)
        self._round = defaultdict[str, Counter[Charge]](Counter)
        self._dearest, self._now = defaultdict[str, Counter[Charge]](Counter), 0
        self._bare: list[frozenset[str]] = []
        self._senders: list[str] = []
        self._asked = set[str]()
        self._holds = defaultdict[str, dict[str, frozenset[str]]](dict)

    def expose(self, models: Mapping[str, Event | None], trained: bool) -> None:
        """Reserve the cost of oracle answers from other parties' models; call before the first message.

        Args:
            models: by party, the event that covers all answers of its model.
            trained: whether clients train their models under a guarantee, which is charged when it is recorded.

        Raises:
            SpecError: answers carry a client's data without a guarantee, or cost more than the budget.
        """
        for party, event in models.items():
            stated: Release | NoGuarantee = NoGuarantee(reason="none")
            # Noise on answers does not hide a model that parties who depart made fail.
            if event is not None and not self.departing:
                stated = self._stated(event)
            if not isinstance(stated, NoGuarantee):
                for client in self._clients:  # the model may have been trained on any of them
                    self._spent[client] += Counter[Charge](parts_of(stated))
            elif party in self._clients and not trained:
                problem = f"{self.adversary} may ask the model of {party}, which has no guarantee"
                remedy = "Defend its training, or set oracles to false."
                raise self._refusal(f"cannot be kept{self._condition}: {problem}", remedy)
            else:
                self._asked.add(party)
        if not all(self._rule.fits(charges) for charges in self._spent.values()):
            problem = f"is passed by the answers that {self.adversary} may ask for{self._condition}"
            raise self._refusal(problem, "Raise it, or lower queries.")

    def admit(self, message: Message) -> None:
        """Count a message that is about to be recorded.

        Raises:
            SpecError: it would take the view past its budget; it must not be sent.
        """
        counted = self._counted(message)
        bare, charged = self._flow(counted)
        overheard = EAVESDROPPER in self._members and any(r != counted.sender for r in counted.receivers)
        # A party's model may reveal what it received.
        may_be_asked = not self._asked.isdisjoint(counted.receivers)
        seen = overheard or may_be_asked or any(p in self._members for p in counted.parties())
        if bare and seen:
            problem = f"{counted.kind} of {counted.sender} carries data of {min(bare)} without a guarantee"
            remedy = "Defend or withhold it."
            if self.departing and isinstance(counted.event, NoGuarantee):
                problem += f", since {counted.event.reason}"
                remedy = "Train by DP-SGD, or change against."
            raise self._refusal(f"cannot be kept{self._condition}: {problem}", remedy)
        for client, cost in charged.items():
            if not self._rule.fits(self._spent[client] + cost):
                problem = f"is passed in round {counted.round} by {counted.kind} of {counted.sender}"
                raise self._refusal(f"{problem}{self._condition}", "Raise it, or add noise.")
        self._note(counted, bare, charged)

    def read(self, message: Message) -> None:
        """Count a message that is already recorded."""
        counted = self._counted(message)
        bare, charged = self._flow(counted)
        for client, cost in charged.items():
            # The first one fixes the order, as in the original run.
            self._rule.fits(self._spent[client] + cost)
        self._note(counted, bare, charged)

    def allows_another(self) -> bool:
        """Return whether another round fits that costs each client no more than its most expensive round so far.

        Raises:
            SpecError: parties that may depart chose who answered in the round, so that their choice could cost more.
        """
        self._close_round()
        return all(self._rule.fits(self._spent[k] + dear) for k, dear in self._dearest.items())

    @property
    def _condition(self) -> str:
        """Return who departs, as the end of a clause; empty if no one may."""
        if not self.departing:
            return ""
        names = list[str]()
        for name in dict.fromkeys(map(role, self.departing)):
            names.append("other clients" if name == "client" else f"the {name}")
        return f" if {' and '.join(names)} may depart from the protocol"

    def _refusal(self, problem: str, remedy: str) -> SpecError:
        return SpecError("privacy.budget.epsilon", self.epsilon, problem, remedy)

    def _counted(self, message: Message) -> Message:
        """Return what counts of the next message."""
        if message.round != self._now:
            self._close_round()
            self._now = message.round
        if not self.departing:
            return message
        numbered = replace(message, seq=len(self._senders))
        self._recorded.append(numbered)
        return self._departure.after(numbered)

    def _close_round(self) -> None:
        clients = sorted(self._clients)
        self._asks = self._asks or asks(self._recorded, self.departing, clients)
        self._unasked = self._unasked or unasked(self._recorded, clients)
        self._recorded.clear()
        if self._asks and self._unasked:
            problem = f"cannot be kept{self._condition}: {self._unasked}"
            raise self._refusal(problem, "Have every client take part.")
        for client, cost in self._round.items():
            self._dearest[client] |= cost
        self._round.clear()

    def _flow(self, message: Message) -> tuple[frozenset[str], dict[str, Counter[Charge]]]:
        """Return the clients whose data pass a message without a guarantee, and the charges to the others in it."""
        own = frozenset({message.sender}) & self._clients
        arriving: dict[str, frozenset[str]] = {}
        data = frozenset[str]()
        if message.inputs == ALL:
            data = own
            arriving = dict(self._holds[message.sender])
        else:
            for source in message.inputs:
                if source == DATA:
                    data = own
                else:
                    sender = self._senders[int(source)]
                    arriving[sender] = arriving.get(sender, frozenset()) | self._bare[int(source)]
        everything = data.union(*arriving.values())
        event = message.event
        if event is None or isinstance(event, NoGuarantee):
            # Replacing a record does not change a record count.
            counts = message.kind == "sample_count" and message.inputs == (DATA,)
            if counts and (self._unit, self._relation) == ("record", "replace-one"):
                return frozenset(), {}
            return everything, {}
        stated = self._stated(event)
        if isinstance(stated, NoGuarantee):
            return everything, {}
        through = data
        if "data" in stated.covers:
            through = frozenset[str]()
        if "messages" not in stated.covers:
            for sender, clients in arriving.items():
                if "each-client" in stated.covers:
                    clients = clients - {sender}
                through |= clients
        charged = {client: Counter[Charge](parts_of(stated)) for client in sorted(everything - through)}
        return through, charged

    def _stated(self, event: Event) -> Release | NoGuarantee:
        """Return the event in the budget's unit and relation."""
        if isinstance(event, NoGuarantee):
            return event
        return converted(event, self._unit, self._relation)

    def _note(self, message: Message, bare: frozenset[str], charged: dict[str, Counter[Charge]]) -> None:
        for client, cost in charged.items():
            self._rule.fits(cost)  # also for messages read from a record, the first charge fixes the order
            self._spent[client] += cost
            self._round[client] += cost
        self._bare.append(bare)
        self._senders.append(message.sender)
        if bare:
            for party in set(message.parties()):
                senders = self._holds[party]
                senders[message.sender] = senders.get(message.sender, frozenset()) | bare


class BudgetMeters:
    """The meters of one budget: as the protocol has it, and for each case of parties that depart.

    Args:
        meters: the meters; a message is recorded only if each admits it.
    """

    def __init__(self, meters: Sequence[BudgetMeter]) -> None:
        self._meters = tuple(meters)

    def admit(self, message: Message) -> None:
        """Count a message that is about to be recorded; raises as `BudgetMeter.admit`."""
        for meter in self._meters:
            meter.admit(message)

    def read(self, message: Message) -> None:
        """Count a message that is already recorded."""
        for meter in self._meters:
            meter.read(message)

    def allows_another(self) -> bool:
        """Return whether another round fits every meter; raises as `BudgetMeter.allows_another`."""
        fits = True
        for meter in self._meters:  # each closes its round
            fits = meter.allows_another() and fits
        return fits


def departing_groups(
    against: Sequence[str], adversary: str, parties: Sequence[str]
) -> Iterator[tuple[str, ...]]:
    """Yield the parties that may depart together: all of one role, of clients all but one.

    Args:
        against: roles, of `server`, `aggregator` and `client`.
        adversary: the adversary whose members among the clients do not depart, as in the ledger.
        parties: every party.

    Raises:
        SpecError: no party has a role.
    """
    members = members_of(adversary, parties)
    for name in against:
        able = list[str]()
        for party in parties:
            if role(party) == name and (name != "client" or party not in members):
                able.append(party)
        if not able or (name == "client" and len(able) < 2):
            problem = "has nobody in this run who could depart"
            raise SpecError("privacy.budget.against", name, problem, "Remove it.")
        if name != "client":
            yield tuple(able)
            continue
        for victim in able:
            yield tuple(party for party in able if party != victim)

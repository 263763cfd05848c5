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
  * no message is recorded that would exceed the budget.

A filter over several orders needs a share of δ for each order if parameters depend on earlier releases. That costs
more than it gains.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from fdaudit.accounting.charges import Charge, converted, parts_of
from fdaudit.accounting.costs import ORDERS, curve, epsilon
from fdaudit.adversary.view import EAVESDROPPER, members_of
from fdaudit.errors import SpecError
from fdaudit.events import Event, EventUnit, NoGuarantee, Relation, Release
from fdaudit.transcript.messages import ALL, DATA, Message, role

__all__ = ["BudgetMeter"]

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
        cost = math.fsum(n * float(curve(part)[self._at]) for part, n in charges.items())
        return cost <= float(self._allowed[self._at])


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
        for more in (*_AHEAD, 1.0):
            tried = Counter({part: math.ceil(n * more) for part, n in charges.items()})
            if epsilon(tried, self._delta, coarse=more > 1).value <= self._epsilon:
                self._fitting = [fitting for fitting in self._fitting if not fitting <= tried] + [tried]
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
    ) -> None:
        self.adversary, self.epsilon = adversary, epsilon
        self._members = members_of(adversary, parties)
        self._unit, self._relation = unit, relation
        self._clients = frozenset(p for p in parties if role(p) == "client" and p not in self._members)
        self._rule = (_ByLedger if fixed else _ByOrder)(epsilon, delta)
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
            stated = NoGuarantee(reason="none") if event is None else self._stated(event)
            if not isinstance(stated, NoGuarantee):
                for client in self._clients:  # the model may have been trained on any of them
                    self._spent[client] += Counter[Charge](parts_of(stated))
            elif party in self._clients and not trained:
                problem = (
                    f"cannot be kept: {self.adversary} may ask the model of {party}, which has no guarantee"
                )
                remedy = "Defend its training or its answers, or set oracles to false."
                raise SpecError("privacy.budget.epsilon", self.epsilon, problem, remedy)
            else:
                self._asked.add(party)
        if not all(self._rule.fits(charges) for charges in self._spent.values()):
            problem = f"is passed by the answers that {self.adversary} may ask for"
            raise SpecError("privacy.budget.epsilon", self.epsilon, problem, "Raise it, or lower queries.")

    def admit(self, message: Message) -> None:
        """Count a message that is about to be recorded.

        Raises:
            SpecError: it would take the view past its budget; it must not be sent.
        """
        bare, charged = self._flow(message)
        if bare and self._sees(message):
            who = min(bare)
            problem = f"cannot be kept: {message.kind} of {message.sender} carries data of {who} without a guarantee"
            raise SpecError("privacy.budget.epsilon", self.epsilon, problem, "Defend or withhold it.")
        for client, cost in charged.items():
            if not self._rule.fits(self._spent[client] + cost):
                problem = f"is passed in round {message.round} by {message.kind} of {message.sender}"
                raise SpecError("privacy.budget.epsilon", self.epsilon, problem, "Raise it, or add noise.")
        self._note(message, bare, charged)

    def read(self, message: Message) -> None:
        """Count a message that is already recorded."""
        bare, charged = self._flow(message)
        for client, cost in charged.items():
            self._rule.fits(
                self._spent[client] + cost
            )  # the first one fixes the order, as in the original run
        self._note(message, bare, charged)

    def allows_another(self) -> bool:
        """Return whether another round fits that costs each client no more than its most expensive round so far."""
        self._close_round()
        return all(self._rule.fits(self._spent[k] + dear) for k, dear in self._dearest.items())

    def _close_round(self) -> None:
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
            return self._unchanged(message, everything), {}
        stated = self._stated(event)
        if isinstance(stated, NoGuarantee):
            return everything, {}
        through = frozenset[str]() if "data" in stated.covers else data
        if "messages" not in stated.covers:
            for sender, whose in arriving.items():
                apart = {sender} if "each-client" in stated.covers else set()
                through |= whose - apart
        return through, {client: Counter[Charge](parts_of(stated)) for client in sorted(everything - through)}

    def _stated(self, event: Event) -> Release | NoGuarantee:
        """Return the event in the budget's unit and relation."""
        if isinstance(event, NoGuarantee):
            return event
        return converted(event, self._unit, self._relation)

    def _unchanged(self, message: Message, everything: frozenset[str]) -> frozenset[str]:
        """Return the clients whose data the message exposes; replacing a record does not change a record count."""
        counted = message.kind == "sample_count" and message.inputs == (DATA,)
        still = (self._unit, self._relation) == ("record", "replace-one")
        if counted and still:
            return frozenset()
        return everything

    def _sees(self, message: Message) -> bool:
        overheard = EAVESDROPPER in self._members and any(r != message.sender for r in message.receivers)
        # A party's model may reveal what it received.
        may_be_asked = not self._asked.isdisjoint(message.receivers)
        return overheard or may_be_asked or any(p in self._members for p in message.parties())

    def _note(self, message: Message, bare: frozenset[str], charged: dict[str, Counter[Charge]]) -> None:
        if message.round != self._now:
            self._close_round()
            self._now = message.round
        for client, cost in charged.items():
            self._rule.fits(cost)  # also for messages read from a record, the first charge fixes the order
            self._spent[client] += cost
            self._round[client] += cost
        self._bare.append(bare)
        self._senders.append(message.sender)
        if bare:
            for party in {message.sender, *message.receivers}:
                senders = self._holds[party]
                senders[message.sender] = senders.get(message.sender, frozenset()) | bare

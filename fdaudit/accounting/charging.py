"""Charging: the guarantees between one view and each victim, priced for one δ, unit and relation."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Any

import numpy as np

from fdaudit.accounting.charges import Charge, Charges, Drawn, Grouped, Selected, converted, grouped, parts_of
from fdaudit.accounting.costs import ORDERS, Epsilon, curve, epsilon
from fdaudit.accounting.draws import Draws, mechanisms, named, remembering, unfit_sums
from fdaudit.accounting.graph import Guarantees, Leak, MessageGraph, State, Unchanged
from fdaudit.events import DrawnGaussian, EventUnit, Gaussian, NoGuarantee, Relation, Release, SampledGaussian
from fdaudit.result import Contribution
from fdaudit.spec.privacy import TuningSpec
from fdaudit.transcript.messages import DATA, SUM, Message, role

__all__ = ["Bill", "EpsilonEntry", "sampling"]

_TRIED = (1.5, 2, 4, 8, 16, 64, 1024)
"""Orders at which the cheapest way of charging is searched."""


@dataclass(frozen=True, kw_only=True)
class Bill:
    """The charges of one victim, and their ε.

    Attributes:
        costs: by `seq` of each charged message, its mechanisms.
        charges: all mechanisms, with how often each is charged.
        epsilon: their ε.
    """

    costs: Mapping[int, tuple[Charge, ...]]
    charges: Charges
    epsilon: Epsilon

    def contributions(self, graph: MessageGraph, delta: float, pld: bool) -> tuple[Contribution, ...]:
        """Return the charges by kind of message and mechanism, in order of first use."""
        by_kind = defaultdict[tuple[str, str, str], Counter[Charge]](Counter)
        for seq, parts in sorted(self.costs.items()):
            message = graph.messages[seq]
            for part in parts:
                mechanism = part.event if isinstance(part, Grouped) else part
                key = (message.kind, role(message.sender), type(mechanism).__name__)
                by_kind[key][part] += 1
        contributions = []
        for (kind, sender, name), tally in by_kind.items():
            count = 0
            for part, n in tally.items():
                if not isinstance(part, Drawn | Selected):
                    count += n * part.count
            contribution = Contribution(
                kind=kind,
                sender=sender,
                mechanism=name,
                charges=count,
                epsilon=epsilon(tally, delta, pld=pld).value,
            )
            contributions.append(contribution)
        return tuple(contributions)


@dataclass(frozen=True, kw_only=True)
class EpsilonEntry:
    """A computation of ε for one view, one δ, one unit and one relation.

    Attributes:
        graph: the messages and their inputs.
        members: the adversary's parties.
        seen: the messages of the view, by `seq`.
        delta: δ.
        unit: what changes between neighbours; for groups `record`.
        relation: how it changes.
        clients: number of clients.
        group: number of records that change together.
        tuning: from how many runs the setting was chosen; None if not by results on private data.
        pld: whether privacy-loss distributions may be convolved.
    """

    graph: MessageGraph
    members: tuple[str, ...]
    seen: list[int]
    delta: float
    unit: EventUnit
    relation: Relation
    clients: int = 0
    group: int = 1
    tuning: TuningSpec | None = None
    pld: bool = True

    def ways(self, victim: str) -> list[frozenset[int]] | Leak:
        """Return the valid ways of charging for this victim, or the leak that makes charging impossible."""
        worth = self.guarantees(victim)

        def costs(gates: Collection[int]) -> list[dict[int, float]]:
            """Return, by order, the cost of each message that may be charged."""
            curves: dict[int, Any] = {}
            for seq in gates:
                divergences = [np.zeros(len(ORDERS)), *map(curve, self._parts(seq, worth[seq]))]
                curves[seq] = np.sum(divergences, axis=0)
            by_order = []
            for order in _TRIED:
                index = int(np.argmin(np.abs(ORDERS - order)))
                by_message = dict[int, float]()
                for seq, values in curves.items():
                    by_message[seq] = float(values[index])
                by_order.append(by_message)
            return by_order

        return self.graph.cheapest(self.seen, victim, worth, costs)

    def guarantees(self, victim: str) -> Guarantees:
        """Return the guarantee of each event against this adversary, in this ledger's unit and relation.

        Exact sums whose summands carry Gaussian noise have one too: the honest senders' noise adds up. A view may know
        nothing but the sum of the victim's message and others'. It then learns the victim's message through the noise
        of all summands. The noise of a message counts only under three conditions: the sender is no member of the
        adversary, the view does not hold the message itself, and the view holds nothing else computed from it. The last
        condition matters because the difference of two sums with a common summand hides less than each sum. Noise must
        enter the sum as it was drawn: if another defence (rounding, say) acts on the message as well, the message keeps
        its own guarantee and adds no noise to the sum's.

        A victim's own noise may count in several sums. Let s be its own noise, and x and y the noise of others in two
        sums. The view learns at most 1 / (s + xy / (x + y)) (squared signal over noise). The charge is never less: it
        is 1 / (s + x) + 1 / (s + y).
        """
        if not self._sum_messages:
            return self._common
        guarantees = dict(self._common)
        for m in self._sum_messages:
            senders, shares = list[str](), dict[str, tuple[int, Gaussian]]()
            for part in named(m, self.graph.messages):
                event = self._common.get(part.seq)
                if isinstance(event, Unchanged):  # such counts may decide the summands' weights
                    continue
                senders.append(part.sender)
                alone = len(self.graph.messages[part.seq].defenses) <= 1  # the noise enters as it was drawn
                if alone and isinstance(event, Gaussian) and event.count == 1:
                    shares[part.sender] = (part.seq, event)
            if victim not in shares or len(set(senders)) != len(senders):
                continue
            _, own = shares.pop(victim)
            variances = [own.scale**2]
            for sender, (seq, gaussian) in shares.items():
                # Noise counts that this view knows only as part of one sum.
                is_known = sender in self.members or seq in self.seen
                if not is_known and self.graph.is_hidden_in(seq, m.seq, self._uses):
                    variances.append(gaussian.scale**2)
            guarantees[m.seq] = Gaussian(
                sensitivity=own.sensitivity,
                scale=math.sqrt(math.fsum(variances)),
                unit=self.unit,
                relation=self.relation,
                covers=("each-client",),
            )
        return guarantees

    @cached_property
    def _common(self) -> Guarantees:
        guarantees = dict[int, Release | Unchanged | NoGuarantee]()
        keeps_counts = (self.unit, self.relation) == ("record", "replace-one")
        for m in self.graph.messages:
            if m.kind == "sample_count" and m.inputs == (DATA,) and m.event is None and keeps_counts:
                guarantees[m.seq] = Unchanged(covers=("data",))
            elif isinstance(m.event, NoGuarantee):
                guarantees[m.seq] = m.event
            elif m.event is not None:
                guarantees[m.seq] = self._stated(m.event)
        return guarantees

    def _stated(self, event: Release) -> Release | NoGuarantee:
        """Return an event in this ledger's unit and relation, or the reason why that is impossible."""
        release = converted(event, self.unit, self.relation)
        if isinstance(release, NoGuarantee) or event.unit != "record":
            return release
        for part in parts_of(release):
            cost = grouped(part, self.group)
            if isinstance(cost, NoGuarantee):
                return cost
        return release

    def _parts(self, seq: int, event: Release | Unchanged | NoGuarantee) -> tuple[Charge, ...]:
        """Return what a charged message costs, mechanism by mechanism; a group costs what its records do together.

        A bound for any change of a client's data holds for a group of its records as it is.
        """
        if isinstance(event, Unchanged | NoGuarantee):
            return ()
        message = self.graph.messages[seq]
        sources = [message]
        if message.event is None:  # a sum, whose noise is its summands'
            sources = named(message, self.graph.messages)
        units = {part.unit for source in sources for part in mechanisms(source)}
        size = self.group if "record" in units else 1
        costs = list[Charge]()
        for part in parts_of(event):
            cost = grouped(part, size)
            if not isinstance(cost, NoGuarantee):
                costs.append(cost)
        return tuple(costs)

    @cached_property
    def _sum_messages(self) -> tuple[Message, ...]:
        sums = list[Message]()
        for m in self.graph.messages:
            if m.fields.get(SUM) is True and m.event is None:
                sums.append(m)
        return tuple(sums)

    @cached_property
    def _uses(self) -> Mapping[int, frozenset[State]]:
        return self.graph.uses(self.seen)

    def charges(self, victim: str, ways: Sequence[frozenset[int]]) -> tuple[Charges, ...]:
        """Return the mechanisms that each way charges; every entry by itself bounds the view's cost to the victim."""
        return tuple(charges for _, charges in self._bills(victim, ways))

    def _bills(self, victim: str, ways: Sequence[frozenset[int]]) -> list[tuple[frozenset[int], Charges]]:
        """Return the charges of each way, with the way; a way may be charged by more than one count."""
        worth = self.guarantees(victim)
        bills = list[tuple[frozenset[int], Charges]]()
        for way in ways:
            for charges in self._charges(way, worth):
                bills.append((way, self._tuned(charges)))
        return bills

    def _tuned(self, charges: Charges) -> Charges:
        """Return one run's charges with the price of choosing it among others by their results."""
        if self.tuning is None or not charges:
            return charges
        if self.tuning.number == "fixed":
            return {charge: int(self.tuning.runs) * n for charge, n in charges.items()}
        return {Selected(charges=tuple(charges.items()), mean=self.tuning.runs): 1}  # type: ignore[arg-type]

    def cheapest(self, victim: str, ways: Sequence[frozenset[int]]) -> Bill:
        """Return the cheapest way, priced by Rényi curves; this upper bound is lowered by `worst`."""
        worth = self.guarantees(victim)
        bills = self._bills(victim, ways)
        priced = [epsilon(charges, self.delta, pld=False) for _, charges in bills]
        others = chain.from_iterable(charges for _, charges in bills[1:])
        if self.pld and any(isinstance(charge, Drawn | SampledGaussian) for charge in others):
            # Rényi curves overestimate a drawn client by far, so they cannot decide which count is smaller.
            priced = [epsilon(charges, self.delta, coarse=True) for _, charges in bills]
        at = min(range(len(bills)), key=lambda i: priced[i].value)
        way, charges = bills[at]
        costs = {seq: self._parts(seq, worth[seq]) for seq in way}
        return Bill(costs=costs, charges=charges, epsilon=priced[at])

    def worst(self, bills: Mapping[str, Bill]) -> tuple[str, Bill]:
        """Return the victim whose bill is largest at full precision, and that bill.

        Bills are lowered in steps: Rényi curves, losses on a coarse grid, losses on the fine grid. Each step lowers the
        largest bill. Once the largest bill has passed its last step, no other can exceed it.
        """
        names = list(bills)
        queue = [(-bills[name].epsilon.value, i, 0) for i, name in enumerate(names)]
        heapify(queue)
        steps: tuple[Callable[[Charges], Epsilon], ...] = ()
        if self.pld:
            steps = (
                lambda charges: epsilon(charges, self.delta, coarse=True),
                lambda charges: epsilon(charges, self.delta),
            )
        while True:
            negative, i, step = heappop(queue)
            bill = bills[names[i]]
            if step == len(steps):
                if steps:
                    bill = replace(bill, epsilon=steps[-1](bill.charges))
                return names[i], bill
            lowered = steps[step](bill.charges).value
            heappush(queue, (max(negative, -lowered), i, step + 1))

    def _charges(self, way: Collection[int], worth: Guarantees) -> list[Counter[Charge]]:
        """Return the mechanisms of one way; add a second count if the view cannot tell which clients were drawn."""
        plain, hidden = Counter[Charge](), Counter[Charge]()
        draws = Counter[Gaussian]()
        has_coins = False
        for seq in way:
            release, message = worth[seq], self.graph.messages[seq]
            parts = self._parts(seq, release)
            plain.update(parts)
            event = message.event
            # A random draw needs a bound of the distance between any two clients.
            of_clients = isinstance(event, Gaussian) and (event.unit, event.relation) == (
                "client",
                "replace-one",
            )
            if isinstance(release, Gaussian) and release.drawn_from > 1 and of_clients:
                draws[release] += 1
            elif self.hides_coins(message):
                has_coins = True
            else:
                hidden.update(parts)
        counts_draws = bool(draws) and self.counts_draws
        if not counts_draws and not has_coins:
            return [plain]
        if counts_draws:
            for gaussian in draws:
                steps = self.draws.steps[gaussian.drawn_from]
                hidden[Drawn(gaussian=gaussian, clients=gaussian.drawn_from, steps=steps)] += 1
        else:
            hidden.update(draws)
        if has_coins:  # a client may have been drawn in every round, so every round counts
            for message in self.graph.messages:
                charge = self._by_coins(message)
                if charge is not None:
                    hidden[charge] += 1
        return [plain, hidden]

    def hides_coins(self, message: Message) -> bool:
        """Return whether this view cannot tell which clients took part in a noisy sum."""
        return self._by_coins(message) is not None

    def _by_coins(self, message: Message) -> Charge | None:
        """Return the cost of a sum over clients that took part by secret chance; None if the view saw the chance.

        Only the outermost view cannot tell who took part: everyone else sees who sends, or who is sent to. With coins
        the sum has its noise whoever takes part, so a silent client shows nothing. With a draw of a fixed size every
        drawn client must have answered.
        """
        event = message.event
        if self.members != ("world",) or not isinstance(event, SampledGaussian | DrawnGaussian):
            return None
        if isinstance(event, DrawnGaussian):
            if self.unfit_sums:
                return None
            release = converted(event, self.unit, self.relation)
            if not isinstance(release, Gaussian):
                return None
            once = replace(release, count=1)
            return Drawn(gaussian=once, clients=event.clients, drawn=event.drawn, steps=release.count)
        if event.unit != "client" or event.sample_rate == 1 or self.remembering:
            return None
        stated = any(str(d.get("sampling", "")).startswith("Poisson") for d in message.defenses)
        inside = message.kind == "release" and not message.receivers and role(message.sender) != "client"
        coins = converted(event, self.unit, self.relation, coins=True)
        if stated and inside and isinstance(coins, SampledGaussian):
            return coins
        return None

    @cached_property
    def remembering(self) -> str:
        """Return which answer in a noisy sum may depend on who took part earlier, or an empty text."""
        return remembering(self.graph.messages)

    @cached_property
    def unfit_sums(self) -> str:
        """Return why noisy sums do not hide which clients were drawn, or an empty text."""
        return unfit_sums(self.graph.messages, self.clients)

    @cached_property
    def draws(self) -> Draws:
        """Return the draws of clients on record."""
        return Draws.of(self.graph.messages, self.clients)

    @property
    def counts_draws(self) -> bool:
        """Return whether this view cannot tell who was drawn: it sees no request, and no silence gave a draw away."""
        return self.members == ("world",) and not self.draws.problem


def sampling(charged: Collection[int], graph: MessageGraph, entry: EpsilonEntry) -> str:
    """Return a sentence on the sampling that the charges assume and the sampling that was done."""
    assumed, actual = set[str](), set[str]()
    for seq in charged:
        message = graph.messages[seq]
        stated = {str(described["sampling"]) for described in message.defenses if "sampling" in described}
        for part in mechanisms(message):
            if isinstance(part, SampledGaussian) and (part.unit == "record" or entry.hides_coins(message)):
                assumed.add(f"Poisson at rate {part.sample_rate:g}")
                actual |= stated
            elif isinstance(part, DrawnGaussian) and entry.hides_coins(message):
                assumed.add(f"{part.drawn} of {part.clients} clients a step, without replacement")
                actual |= stated
            elif isinstance(part, Gaussian) and part.drawn_from > 1 and entry.counts_draws:
                assumed.add(f"one of {part.drawn_from} clients a step")
                actual.add("one client a step, drawn without data")
    if not assumed:
        return ""
    done = ", ".join(sorted(actual)) or "not on record"
    return f"assumed: {', '.join(sorted(assumed))}; done: {done}"

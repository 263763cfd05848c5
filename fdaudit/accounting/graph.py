"""The graph of a transcript's `inputs`, and the cheapest way to charge the guarantees between a view and data.

A node is a message, a party's state after a number of messages, or a client's raw data. Paths lead from every message
of a view upstream. A message with a guarantee may be charged: then nothing passes the inputs that its event covers. A
way of charging is valid if no path from the view reaches the victim's data. The view is then a function of charged
releases, of others' data and of independent randomness: adaptive composition. Costs add up, so the cheapest valid way
is a minimum cut, in which a message is a gate in front of its covered inputs.

Guarantees:
  * `cheapest` returns a valid way of charging for all costs;
  * its cost is minimal up to the rounding of costs to whole numbers, and exactly minimal if each charge is forced.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from fdaudit.errors import IntegrityError
from fdaudit.events import NoGuarantee, Release
from fdaudit.transcript.messages import ALL, DATA, Message

__all__ = ["Guarantees", "Leak", "MessageGraph", "State", "Unchanged"]


class State(NamedTuple):
    """A node of the graph.

    Attributes:
        what: a message, a client's raw data, or what a party held at some time.
        party: whose data or messages; empty for a message.
        number: `seq` of a message; how many messages the party held; 0 for data.
        only_from: the one sender whose messages count among those held; empty if all count.
        all_but: the one sender whose messages do not count among those held.
    """

    what: Literal["message", "data", "held"]
    party: str
    number: int
    only_from: str = ""
    all_but: str = ""


@dataclass(frozen=True)
class Unchanged:
    """A message that does not change with one unit of the victim's data; its covered inputs cost nothing."""

    covers: tuple[str, ...]


Guarantees = Mapping[int, Release | Unchanged | NoGuarantee]
"""By `seq`, the guarantee of a message's event in the ledger's unit and relation."""


@dataclass(frozen=True, kw_only=True)
class Leak:
    """The reason why no ε can be claimed: `message` lets the victim's data through and reaches the view."""

    message: Message
    reason: str


class MessageGraph:
    """The computation graph of one transcript: the inputs of every message and state.

    Args:
        messages: all messages, in order of `seq`, from 0 on.

    Raises:
        IntegrityError: a message names inputs that do not come before it, or one is missing.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = tuple(messages)
        self._held: dict[str, list[int]] = {}
        self._before: list[int] = []
        self._marks: dict[str, list[int]] = {}
        self._inputs: dict[State, tuple[State, ...]] = {}
        self._last_region: _Region | None = None
        for seq, message in enumerate(self.messages):
            later = list[int]()
            for i in message.inputs:
                if isinstance(i, int) and not 0 <= i < seq:
                    later.append(i)
            if message.seq != seq or later:
                raise IntegrityError(
                    [f"message {message.seq} at place {seq}: inputs {later} do not come before it"]
                )
            history = self._held.setdefault(message.sender, [])
            self._before.append(len(history))
            marks = self._marks.setdefault(message.sender, [])
            if message.inputs == ALL and len(history) > (marks[-1] if marks else 0):
                marks.append(len(history))  # later messages continue from here
            for party in set(message.parties()):
                self._held.setdefault(party, []).append(message.seq)

    def held_by(self, party: str) -> Sequence[int]:
        """Return the `seq` of the messages that a party sent or received."""
        return self._held.get(party, ())

    def inputs(self, state: State) -> tuple[State, ...]:
        """Return the nodes from which a node was computed."""
        if state not in self._inputs:  # cached: needed for every victim of every view
            self._inputs[state] = tuple(self._find_inputs(state))
        return self._inputs[state]

    def _find_inputs(self, state: State) -> Iterator[State]:
        if state.what == "held":
            marks = self._marks[state.party]
            at = bisect_left(marks, state.number)
            before = marks[at - 1] if at else 0
            for seq in self._held[state.party][before : state.number]:
                sender = self.messages[seq].sender
                if sender != state.all_but and state.only_from in ("", sender):
                    yield _message(seq)
            if before:
                yield state._replace(number=before)
        elif state.what == "message":
            message = self.messages[state.number]
            if message.inputs == ALL:
                yield State("held", message.sender, self._before[state.number])
                yield State("data", message.sender, 0)
                return
            for source in message.inputs:
                if source == DATA:
                    yield State("data", message.sender, 0)
                else:
                    yield _message(int(source))

    def uses(self, seen: Collection[int]) -> Mapping[int, frozenset[State]]:
        """Return, by `seq`, the nodes upstream of a view that were computed from a message directly."""
        nodes: dict[int, set[State]] = {}
        visited, pending = set[State](), list(map(_message, seen))
        while pending:
            state = pending.pop()
            if state in visited:
                continue
            visited.add(state)
            for below in self.inputs(state):
                pending.append(below)
                if below.what == "message":
                    nodes.setdefault(below.number, set()).add(state)
        return {seq: frozenset(states) for seq, states in nodes.items()}

    def is_hidden_in(self, part: int, whole: int, uses: Mapping[int, frozenset[State]]) -> bool:
        """Return whether a view learns one message only through another, given what `uses` returned."""
        return uses.get(part) == frozenset({_message(whole)})

    def split(
        self, state: State, covers: Collection[str], victim: str
    ) -> tuple[Sequence[State], Sequence[State]]:
        """Return a node's inputs in two groups: those that an event covers for this victim, and the others."""
        if not covers:
            return (), self.inputs(state)
        covered, bare = list[State](), list[State]()
        for below in self.inputs(state):
            if below.what == "held" and "messages" not in covers and "each-client" in covers:
                covered.append(below._replace(only_from=victim, all_but=""))
                bare.append(below._replace(only_from="", all_but=victim))
                continue
            if below.what == "data":
                is_covered = "data" in covers
            elif "messages" in covers:
                is_covered = True
            else:
                is_covered = "each-client" in covers and self.messages[below.number].sender == victim
            if is_covered:
                covered.append(below)
            else:
                bare.append(below)
        return covered, bare

    def cheapest(
        self,
        seen: Collection[int],
        victim: str,
        guarantees: Guarantees,
        cost: Callable[[Collection[int]], Sequence[Mapping[int, float]]],
    ) -> list[frozenset[int]] | Leak:
        """Return one or more valid ways to charge for the victim's data that reach `seen`, or the leak.

        Args:
            seen: the messages of a view, by `seq`.
            victim: a client.
            guarantees: by `seq`, the guarantee of every message with an event.
            cost: maps the messages that may be charged to one or more costs of each; each cost yields one way.
        """
        cut = _Cut(self._region(seen, victim, guarantees), victim)
        if cut.leak is not None:
            return cut.leak
        if cut.forced:
            return [cut.last]
        ways = {cut.last, cut.first, *(cut.least(costs) for costs in cost(cut.gates))}
        return sorted(ways, key=sorted)

    def _region(self, seen: Collection[int], victim: str, guarantees: Guarantees) -> _Region:
        """Return the region upstream of a view; cached for all victims, unless an event covers clients separately."""
        region = self._last_region
        if region is not None and region.seen is seen and region.guarantees is guarantees:
            return region
        region = _Region(self, seen, victim, guarantees)
        self._last_region = region
        if any("each-client" in _covers(event) for event in guarantees.values()):
            self._last_region = None
        return region


class _Region:
    """The part of the graph upstream of a view, and the coverage of its inputs.

    Attributes:
        graph: the graph.
        seen: the messages of the view, by `seq`.
        guarantees: by `seq`, the guarantee of each event.
        sources: the same messages as nodes.
        covered: the covered inputs of every node upstream of the view.
        bare: the uncovered inputs of the same nodes.
        opened: the nodes that the view reaches without passing an event.
    """

    def __init__(
        self, graph: MessageGraph, seen: Collection[int], victim: str, guarantees: Guarantees
    ) -> None:
        self.graph, self.seen, self.guarantees = graph, seen, guarantees
        self.sources = list(map(_message, sorted(seen)))
        self.covered: dict[State, Sequence[State]] = {}
        self.bare: dict[State, Sequence[State]] = {}
        pending = list(self.sources)
        while pending:
            state = pending.pop()
            if state in self.bare:
                continue
            event = guarantees.get(_seq(state))
            covered, bare = graph.split(state, _covers(event), victim)
            self.covered[state], self.bare[state] = covered, bare
            pending += [*covered, *bare]
        self.opened = _reached(self.sources, self.bare)

    @cached_property
    def bare_users(self) -> Mapping[State, Sequence[State]]:
        """Map each node to the nodes that have it among their uncovered inputs."""
        return _reversed(self.bare)

    @cached_property
    def covered_users(self) -> Mapping[State, Sequence[State]]:
        """Map each node to the nodes that have it among their covered inputs."""
        return _reversed(self.covered)

    @cached_property
    def users(self) -> Mapping[State, Sequence[State]]:
        """Map each node to the nodes that have it among their inputs."""
        inputs: dict[State, Sequence[State]] = {}
        for state, covered in self.covered.items():
            inputs[state] = [*covered, *self.bare[state]]
        return _reversed(inputs)

    @cached_property
    def leaks(self) -> Mapping[State, int]:
        """Map each data node to the first message that lets it through and reaches the view without a guarantee."""
        first: dict[State, int] = {}
        for state in self.opened:
            if state.what != "message":
                continue
            for below in self.bare[state]:
                if below.what == "data":
                    first[below] = min(first.get(below, state.number), state.number)
        return first


class _Cut:
    """The part of the graph between a view and a victim's data.

    Attributes:
        leak: a path that passes no covered input, or None.
        last: the gates nearest to the data: the first that the data meet on their way to the view.
        forced: whether `last` is cheapest for all costs. This holds if the view reaches each of these gates without
            passing another: then each gate has a path to the data that nothing else stops.
    """

    def __init__(self, region: _Region, victim: str) -> None:
        self._region = region
        self._sink = State("data", victim, 0)
        self.leak: Leak | None = None
        seq = region.leaks.get(self._sink)
        if seq is not None:
            event = region.guarantees.get(seq)
            reason = "computed from raw data, without a guarantee"
            if isinstance(event, NoGuarantee):
                reason = event.reason
            self.leak = Leak(message=region.graph.messages[seq], reason=reason)
            return
        free = _reached([self._sink], region.bare_users)
        last = self._covered_users(free)
        self.last = frozenset(map(_seq, last))
        self.forced = all(state in region.opened for state in last)

    @cached_property
    def gates(self) -> list[int]:
        """Return the `seq` of every message whose charge stops something."""
        return sorted(set(map(_seq, self._gates)))

    @cached_property
    def first(self) -> frozenset[int]:
        """Return the gates that the view meets first on its way to the data."""
        seqs = list[int]()
        for state in self._gates:
            if state in self._region.opened:
                seqs.append(_seq(state))
        return frozenset(seqs)

    @cached_property
    def _reaching(self) -> set[State]:
        """Return every node that the data may reach."""
        return _reached([self._sink], self._region.users)

    @cached_property
    def _gates(self) -> set[State]:
        return self._covered_users(self._reaching)

    def _covered_users(self, states: Iterable[State]) -> set[State]:
        """Return the nodes that have one of these among their covered inputs."""
        users = self._region.covered_users
        return set[State]().union(*(users.get(state, ()) for state in states))

    def least(self, costs: Mapping[int, float]) -> frozenset[int]:
        """Return the gates of a minimum cut; costs are scaled to whole numbers."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        states = [state for state in self._region.bare if state in self._reaching]
        number = {state: n for n, state in enumerate(states)}
        # Splitting each gate into two nodes turns its cost into the capacity of the edge between them.
        gates, finite = dict[State, int](), list[float]()
        for state in states:
            if state in self._gates:
                gates[state] = len(states) + len(gates)
                if np.isfinite(costs[_seq(state)]):
                    finite.append(costs[_seq(state)])
        source = len(states) + len(gates)
        # The gates' sum stays below the capacity of edges that cannot be cut.
        scale = 2**28 / max(sum(finite), 1e-300)
        edges = dict[tuple[int, int], int]()
        ends: list[tuple[int, Sequence[State]]] = [(source, self._region.sources)]
        for state in states:
            ends.append((number[state], self._region.bare[state]))
            if state in gates:
                price = costs[_seq(state)]
                whole = 2**29
                if np.isfinite(price):
                    whole = max(int(price * scale), 1)
                edges[(number[state], gates[state])] = whole
                ends.append((gates[state], self._region.covered[state]))
        for start, inputs in ends:
            for below in inputs:
                if below in number:
                    edges[(start, number[below])] = 2**30
        rows, columns = np.array(list(edges)).T
        capacities = np.array(list(edges.values()), dtype=np.int32)
        capacity = csr_array((capacities, (rows, columns)), shape=(source + 1, source + 1))
        flow = maximum_flow(capacity, source, number[self._sink]).flow
        residual = (capacity - flow).tocsr()
        residual.eliminate_zeros()  # a search follows every stored edge
        reached = set(breadth_first_order(residual, source, return_predecessors=False).tolist())
        # An edge is cut if its source is reached and its target is not.
        return frozenset(_seq(s) for s, gate in gates.items() if number[s] in reached and gate not in reached)


def _covers(event: Release | Unchanged | NoGuarantee | None) -> tuple[str, ...]:
    if event is None or isinstance(event, NoGuarantee):
        return ()
    return event.covers


def _message(seq: int) -> State:
    return State("message", "", seq)


def _seq(state: State) -> int:
    """Return the number of a message's node; -1 for any other node."""
    return state.number if state.what == "message" else -1


def _reversed(edges: Mapping[State, Sequence[State]]) -> dict[State, list[State]]:
    sources: dict[State, list[State]] = {}
    for state, others in edges.items():
        for other in others:
            sources.setdefault(other, []).append(state)
    return sources


def _reached(start: Sequence[State], edges: Mapping[State, Sequence[State]]) -> set[State]:
    """Return all nodes reachable from the start, the start included."""
    reached, pending = set[State](), list(start)
    while pending:
        state = pending.pop()
        if state not in reached:
            reached.add(state)
            pending += edges.get(state, ())
    return reached

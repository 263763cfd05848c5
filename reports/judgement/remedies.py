"""Remedies for findings: by goal, and by the way on which the data reached the adversary.

Guarantees:
  * a remedy speaks only of messages that the adversary received and that the attack can start from;
  * nothing in the table was tested in the run: it names what the literature and fdaudit's own defences offer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from fdaudit.kinds import KINDS, WAYS
from fdaudit.result import Remedy, Result
from fdaudit.transcript.messages import role

from ..goals import RULES
from ..text import clip, joined
from .verdict import Finding

__all__ = ["CHECK", "ENCRYPT", "REMEDIES", "Carried", "carried", "remedy", "way", "without_epsilon"]


@dataclass(frozen=True, kw_only=True)
class Carried:
    """The kinds of messages that brought data to an adversary, and the ways they belong to; `oracle` is a way too."""

    kinds: tuple[str, ...]
    ways: tuple[str, ...]


_OF_RECORDS = frozenset(["membership", "reconstruction", "row-reconstruction", "text-reconstruction"])
"""Goals about single records."""

_DECLINED = ("accept-set", "label-declined")
"""Attacks that read which samples a client answered, whatever kind of message says so."""

_FROM_RECORDS = frozenset([("discriminator_scores", "fediod")])
"""Kinds that a protocol computes from records with a network that `dp-sgd` does not train, and the protocol's name."""

_TAKES_PART = "model to clients"
"""The way of a model to those who take part and must receive it."""

_FROM_SERVER = {"updates": "model", "answers": "ensemble", "declined": "ensemble", "prototypes": "ensemble"}
"""The way of the same kinds if the server sends them: the sum or the choice of all clients."""

REMEDIES: Mapping[tuple[str, str], Remedy] = MappingProxyType(
    {(goal, way): remedy for goal, rule in RULES.items() for way, remedy in rule.remedies.items()}
)
"""By goal and way."""

ENCRYPT = Remedy(
    do="Encrypt the transport: this stops listening in, not what receivers and the world can do.",
    why="Then an eavesdropper sees sizes and times. Receivers of the messages see as much as before.",
    tries=("encrypted",),
)


CHECK = Remedy(
    do="Train with `dp-sgd` at a stated ε before anything is sent, and have clients check the model they get.",
    why="The adversary departs from the protocol. A check stops the forms it knows; noise on records bounds all.",
    tries=("record-noise",),
)
"""Against a party that crafts what clients train."""


def way(kind: str, sender: str) -> str:
    """Return the way that messages of a kind from a sender belong to; `other` for kinds without one."""
    name = "other"
    if kind in KINDS:
        name = KINDS[kind].way or "other"
    if role(sender) == "client":
        return name
    return _FROM_SERVER.get(name, name)


def carried(result: Result, finding: Finding) -> Carried:
    """Return what brought the data of a finding to its adversary.

    These are the messages with private data that the adversary received and that the attack can start from, with those
    that it reads as well. All such messages count if it starts from none of them: guesses from outside do not say, and
    a server attacks the model that it fitted to what it received.
    """
    members, needs = finding.cell.adversary.split("+"), finding.cell.needs
    received = _received(result, members, needs)
    if received.ways:
        received = _received(result, members, (*needs, *finding.cell.reads))
    if finding.cell.attack in _DECLINED:
        return Carried(kinds=received.kinds, ways=("declined",))
    if received.ways:
        return received
    may_ask = any(set(oracle.available_to) & set(members) for oracle in result.oracles)
    if may_ask and any(need.startswith("oracle") for need in needs):
        return Carried(kinds=(), ways=("oracle",))
    return _received(result, members, ())


def _received(result: Result, members: Sequence[str], needs: Sequence[str]) -> Carried:
    """Return what members received of these kinds that depends on private data; of all kinds, if none are named."""
    kinds, ways = dict[str, None](), dict[str, None]()
    for row in result.exposure:
        fits = not needs or row.kind in needs
        if row.party in members and row.direction != "sent" and row.private and fits:
            kinds[row.kind] = None
            for sender in row.senders:
                if sender not in members:
                    ways[way(row.kind, sender)] = None
    return Carried(kinds=tuple(kinds), ways=tuple(ways))


def remedy(result: Result, finding: Finding) -> Remedy:
    """Return the remedy for a finding: for the first way of `WAYS` that the table knows for its goal.

    An eavesdropper's remedy is encryption: what the message's receiver can do has a finding of its own. A party that
    departs from the protocol is not stopped by a sum or by withheld answers.
    """
    goal, members = finding.cell.goal, finding.cell.adversary.split("+")
    if "eavesdropper" in members:
        return ENCRYPT
    departs = any(d.party in members for d in result.run.departures if d.messages)
    if departs and goal in _OF_RECORDS:
        return CHECK
    if goal not in RULES:
        return Remedy(do="Find out what this adversary needs to receive.", why="Its goal has no rule here.")
    source = carried(result, finding)
    ways = list[str]()
    for route in dict.fromkeys((*WAYS, "model", "oracle")):
        if route in source.ways and (goal, route) in REMEDIES:
            ways.append(route)
    must_receive = set(map(role, members)) == {"client"}
    if ways == ["model"] and must_receive and (goal, _TAKES_PART) in REMEDIES:
        ways = [_TAKES_PART]
    chosen, behind = RULES[goal].general, list(source.kinds)
    if ways:
        chosen = REMEDIES[goal, ways[0]]
        of_way = list[str]()
        for kind in source.kinds:
            if ways[0] in _ways(kind):
                of_way.append(kind)
        behind = of_way or behind
    names = joined(f"`{clip(kind, 60)}`" for kind in behind) or "its messages"
    do, why = chosen.do.replace("{kinds}", names), chosen.why.replace("{kinds}", names)
    if "a stated ε" in chosen.do:
        uncovered = [f"`{kind}`" for kind in without_epsilon(result)]
        if len(uncovered) == 1:
            do += f" Withhold {uncovered[0]} too: no ε covers it."
        elif uncovered:
            do += f" Withhold {joined(uncovered)} too: no ε covers them."
        declines = any(cell.attack in _DECLINED for cell in result.tests)
        if declines and "Answer every" not in chosen.do:
            do += " Answer every public sample too: no ε covers which are declined."
    return chosen.model_copy(update={"do": do, "why": why})


def without_epsilon(result: Result) -> list[str]:
    """Return the kinds that a party received without a defence, and that an ε of `dp-sgd` does not cover."""
    bare = set[str]()
    for row in result.exposure:
        if row.private and row.direction != "sent" and not row.defenses:
            bare.add(row.kind)
    of_records = {kind for kind, protocol in _FROM_RECORDS if protocol == result.run.protocol}
    uncovered = list[str]()
    for kind, entry in KINDS.items():
        if kind in bare and (entry.direct or kind in of_records):
            uncovered.append(kind)
    return uncovered


def _ways(kind: str) -> tuple[str, ...]:
    """Return the ways that messages of a kind can take, from clients and from the server."""
    way = KINDS[kind].way if kind in KINDS else None
    if way is None:
        return ()
    return way, _FROM_SERVER.get(way, "")

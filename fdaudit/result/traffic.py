"""Traffic in a result: bytes on the wire, the messages that each adversary saw, and views that contain others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Literal

from fdaudit.result.part import Audience, Part
from fdaudit.transcript.messages import ALL, DATA, Message, role

__all__ = ["Exposure", "OracleRow", "ViewRow", "WireRow", "derived_from_data", "exposed_rows", "told_anew"]

Direction = Literal["received", "sent", "overheard"]


class Exposure(Part):
    """Messages of one kind that one party saw or sent, with the other receivers and the defences."""

    _audience: ClassVar[Audience] = "public"

    party: str
    kind: str
    direction: Direction
    count: int
    bytes: int
    senders: tuple[str, ...] = ()
    recorded: str
    """`full`, `digest`, or `partial` if both occur."""
    defenses: tuple[str, ...] = ()
    private: bool = True
    """Whether the messages depend on raw data of any party; if left out, they do."""
    unread: str = ""
    """Why no attack reads some of these messages; empty if attacks do."""
    derived: bool = False
    """Whether they are computed from other messages of the party's view alone, and tell nothing new."""


class ViewRow(Part):
    """An adversary, and the others whose whole view it has."""

    _audience: ClassVar[Audience] = "public"

    adversary: str
    contains: tuple[str, ...] = ()


class WireRow(Part):
    """Traffic of one kind from one role."""

    _audience: ClassVar[Audience] = "public"

    kind: str
    sender_role: str
    messages: int
    bytes: int


class OracleRow(Part):
    """An oracle that the protocol gives to some parties."""

    _audience: ClassVar[Audience] = "public"

    name: str
    available_to: tuple[str, ...]
    answers: str


def derived_from_data(messages: Iterable[Message]) -> frozenset[int]:
    """Return the `seq` of every message that some client's raw data may have reached, by its `inputs`.

    A message without declared inputs counts as reached if its sender is a client or holds such a message.
    """
    reached: set[int] = set()
    holders: set[str] = set()
    for m in messages:
        if m.inputs == ALL:
            private = role(m.sender) == "client" or m.sender in holders
        else:
            private = any(i == DATA or i in reached for i in m.inputs)
        if private:
            reached.add(m.seq)
            holders.update(m.receivers)
    return frozenset(reached)


def told_anew(log: Sequence[Message], view: Iterable[int], private: frozenset[int]) -> frozenset[int]:
    """Return the `seq` of a view's private messages that are computed from more than the view's other messages.

    The mean of answers tells nothing new to those who see every answer. A message is new if raw data reached it
    directly or through a private message that is not in the view.

    Args:
        log: all messages of a run, in order.
        view: `seq` of the messages that an adversary saw.
        private: `seq` of the messages that raw data may have reached.
    """
    in_view, by_party, news = frozenset(view), dict[str, set[int]](), set[int]()
    for m in log:
        if m.seq in in_view & private:
            data = DATA in m.inputs or (m.inputs == ALL and role(m.sender) == "client")
            sources: Iterable[str | int] = m.inputs
            if m.inputs == ALL:
                sources = by_party.get(m.sender, set())
            if data or private.intersection(sources) - in_view:
                news.add(m.seq)
        for party in {m.sender, *m.receivers}:
            by_party.setdefault(party, set()).add(m.seq)
    return frozenset(news)


def exposed_rows(
    messages: Sequence[Message],
    party: str,
    private: frozenset[int],
    misfit: Callable[[Message], str] = lambda _: "",
    anew: frozenset[int] | None = None,
) -> tuple[Exposure, ...]:
    """Return the messages that one adversary saw: counts, bytes and record kept, by kind, direction and sender role.

    Args:
        messages: those of the adversary's view.
        party: the adversary's name.
        private: `seq` of the messages that raw data may have reached.
        misfit: returns why no attack reads a message, or an empty text.
        anew: `seq` of those that are computed from more than the view's other messages; None for all.
    """
    members = frozenset(party.split("+"))
    groups: dict[tuple[str, Direction, str], list[Message]] = {}
    for message in messages:
        direction: Direction = "overheard"
        if message.sender in members:
            direction = "sent"
        elif members & set(message.receivers):
            direction = "received"
        key = (message.kind, direction, role(message.sender))
        groups.setdefault(key, []).append(message)
    rows = []
    for (kind, direction, sender), group in sorted(groups.items()):
        defenses = set[str]()
        for message in group:
            for defense in message.defenses:
                defenses.add(str(defense.get("name")))
        reasons = map(misfit, group)
        rows.append(
            Exposure(
                party=party,
                kind=kind,
                direction=direction,
                count=len(group),
                bytes=sum(message.bytes_on_wire for message in group),
                senders=(sender,),
                recorded=_recorded(group),
                defenses=tuple(sorted(defenses)),
                private=any(message.seq in private for message in group),
                unread=next(filter(None, reasons), ""),
                derived=anew is not None and not any(message.seq in anew for message in group),
            )
        )
    return tuple(rows)


def _recorded(messages: Sequence[Message]) -> str:
    """Return whether payloads are on record: `full`, `digest`, or `partial` for some of them."""
    digests = sum(message.payload is None for message in messages)
    if digests == 0:
        return "full"
    return "digest" if digests == len(messages) else "partial"

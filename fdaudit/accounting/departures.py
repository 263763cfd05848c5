"""A record as it could be if parties departed from the protocol: what a claim may then still rest on.

A departing party may send anything that it holds, in every message on record. So each of its messages depends on all
that it held, and no noise, sum or draw of its own counts.

Guarantees:
  * a message of an honest party keeps its event and its inputs, unless the event trusts a departing party;
  * noise on a client's message does not count if a departing party's messages reached the client before: they can make
    its training fail, which depends on its records, and noise on a message does not hide that the message is missing.
    A training under noise of its own (DP-SGD) fails only by its noisy result.

Honest parties answer as often as on record. Where that was another party's choice, `chosen` says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from fdaudit.accounting.draws import mechanisms
from fdaudit.events import Event, NoGuarantee
from fdaudit.transcript.messages import ALL, DRAWN, SUM, Message, role

__all__ = ["DepartureRule", "asks", "chosen", "departed", "unasked"]


class DepartureRule:
    """Turns messages, given one by one in order, into what still counts if parties depart from the protocol.

    Args:
        parties: those that depart.
    """

    def __init__(self, parties: Collection[str]) -> None:
        self.parties = frozenset(parties)
        self._roles = frozenset(map(role, self.parties))
        # Messages that what they send may have changed, and parties that hold one.
        self._reached = set[int | str]()

    def after(self, message: Message) -> Message:
        """Return the next message with what still counts of it."""
        if message.sender in self.parties:
            changed = True
            fields = dict(message.fields)
            fields.pop(DRAWN, None)
            fields.pop(SUM, None)
            counted = replace(message, inputs=ALL, event=None, fields=fields)
        else:
            inputs = (message.sender,) if message.inputs == ALL else message.inputs
            changed = not self._reached.isdisjoint(inputs)
            event, counted = self._event(message, changed), message
            if event is not message.event:
                counted = replace(message, event=event)
        if changed:
            self._reached |= {message.seq, *message.receivers}
        return counted

    def _event(self, message: Message, changed: bool) -> Event | None:
        """Return the event of an honest party's message, or why it does not count."""
        event = message.event
        if event is None or isinstance(event, NoGuarantee):
            return event
        trusted = [who for who in event.trusts if who in self._roles]
        if trusted:
            return NoGuarantee(
                reason=f"its noise is enough only if {' and '.join(trusted)} follow the protocol"
            )
        if changed and message.kind != "release" and role(message.sender) == "client":
            return NoGuarantee(
                reason="what it is sent can make its training fail, and its noise does not hide a missing answer"
            )
        return event


def departed(messages: Iterable[Message], parties: Collection[str]) -> Iterator[Message]:
    """Yield a record's messages with what still counts if these parties depart from the protocol.

    Args:
        messages: the whole record, in order.
        parties: those that depart.
    """
    return map(DepartureRule(parties).after, messages)


def chosen(messages: Sequence[Message], parties: Collection[str], clients: Sequence[str]) -> str:
    """Return which client answered less often than others at the choice of these parties, in words; or an empty text.

    Args:
        messages: the whole record.
        parties: those that depart; clients are asked by other parties only.
        clients: the clients to protect.
    """
    if not asks(messages, parties, clients):
        return ""
    return unasked(messages, clients)


def asks(messages: Sequence[Message], parties: Collection[str], clients: Sequence[str]) -> bool:
    """Return whether a party that departs and is no client sends a client something; arguments as for `chosen`."""
    asking = [p for p in parties if role(p) != "client"]
    return any(m.sender in asking and set(m.receivers) & set(clients) for m in messages)


def unasked(messages: Sequence[Message], clients: Sequence[str]) -> str:
    """Return which client answered less often than others and was not silent, in words; or an empty text.

    Args:
        messages: those of one round or more.
        clients: the clients to protect.
    """
    silent = set[tuple[str, int]]()
    answers = defaultdict[tuple[int, int, str], set[str]](set)
    for m in messages:
        if m.kind == "silence":
            silent.add((m.sender, m.round))
        if role(m.sender) == "client" and mechanisms(m):
            answers[m.round, m.step, m.kind].add(m.sender)
    for (round, step, kind), senders in answers.items():
        for client in clients:
            if client not in senders and (client, round) not in silent:
                where = f"round {round}, step {step}"
                return f"{client} was not asked for {kind} in {where}, and could be asked every time"
    return ""

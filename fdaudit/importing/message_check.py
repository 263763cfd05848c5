"""Checks of a record's messages against their kinds: the tensors of each kind, and fixed sizes."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fdaudit.adversary.top_answers import strange_classes
from fdaudit.errors import SpecError
from fdaudit.kinds import KINDS
from fdaudit.storage.files import decode
from fdaudit.transcript.encoding import readable, shapes_of
from fdaudit.transcript.messages import Message, role
from fdaudit.transcript.payloads import read_payload

if TYPE_CHECKING:
    from fdaudit.spec.card import Card

__all__ = ["refuse_other_tensors", "refuse_strange_classes", "refuse_varied_sizes"]


def refuse_other_tensors(classes: int, messages: Sequence[Message]) -> None:
    """Refuse a message whose tensors are not those of its kind.

    Args:
        classes: number of classes that the card states.
        messages: the record's messages.

    Raises:
        SpecError: a message has other tensors.
    """
    for message in messages:
        kind = KINDS.get(message.kind)
        if kind is None:
            continue
        # The ledger trusts exact kinds. Other kinds may show that the card's number of classes is wrong.
        sizes = {"C": classes} if kind.exact else {}
        if kind.misfit(shapes_of(message.tensors), sizes):
            tensors = []
            for name, info in list(message.tensors.items())[:3]:
                tensors.append(f"{name[:40]} {tuple(info.shape)}")
            listed = ", ".join(tensors) or "no tensors"
            problem = f"does not fit message {message.seq} of {message.sender}, which holds {listed}"
            remedy = f"{kind.name} is: {kind.text}. Record others under a name of your own: vendor/name."
            raise SpecError("record.kind", message.kind, problem, remedy)


def refuse_strange_classes(classes: int, transcript: Path, messages: Sequence[Message]) -> None:
    """Refuse an answer about a sample's most likely classes that names a class twice, or one that does not exist.

    Args:
        classes: number of classes that the card states.
        transcript: the record's messages on disk.
        messages: the same, with the tensors of their kinds.

    Raises:
        SpecError: such an answer, or one with more classes a sample than there are.
    """
    for message in messages:
        kind = KINDS.get(message.kind)
        if kind is None or not kind.read_as or message.payload is None:
            continue
        answers = readable(decode(read_payload(transcript, message)))["classes"]
        if answers.shape[1] > classes:
            count = answers.shape[1]
            problem = f"cannot be true: message {message.seq}, {message.kind}, names {count} classes a sample"
            raise SpecError("card.classes", classes, problem, "Correct it.")
        if answers.is_floating_point() and not bool(answers.isfinite().all()):
            continue  # such a message is left out by its number
        if strange := strange_classes(answers, classes):
            problem = f"has strange classes in message {message.seq} of {message.sender}: {strange}"
            remedy = (
                "Record for each sample the numbers of k different classes, or correct `classes` in the card."
            )
            raise SpecError("record.kind", message.kind, problem, remedy)


def refuse_varied_sizes(card: Card, fixed: Collection[tuple[str, str]], messages: Sequence[Message]) -> None:
    """Refuse a fixed size if one sender's messages of that kind have several sizes.

    An encrypted transport hides a message from an eavesdropper only if its size tells nothing.

    Args:
        card: the system's card.
        fixed: (kind, sender role) of the messages whose size counts as fixed.
        messages: the record's messages.

    Raises:
        SpecError: sizes differ.
    """
    stated = set[tuple[str, str]]()
    for facts in card.messages:
        if facts.fixed_size:
            stated.add((facts.kind, facts.sender))
    due: set[tuple[str, str]] = set(stated)
    if card.transport == "encrypted":
        due.update(fixed)
    first_of: dict[tuple[str, ...], Message] = {}
    for message in messages:
        if (message.kind, role(message.sender)) not in due:
            continue
        key: tuple[str, ...] = (message.kind, message.sender)
        if card.client_models:  # a server's messages to different clients differ as their networks do
            key += message.receivers
        first = first_of.setdefault(key, message)
        if _size(first) != _size(message):
            numbers = f"{_size(first)[1]} and {_size(message)[1]} numbers"
            problem = f"is not of fixed size: messages {first.seq} and {message.seq} of {message.sender} hold {numbers}"
            remedy = "Pad the messages, record them under a name of your own, or state `transport: plain`."
            if (message.kind, role(message.sender)) in stated:
                remedy = "Remove fixed_size."
            raise SpecError("card.messages", message.kind, problem, remedy)


def _size(message: Message) -> tuple[int, int]:
    """Return the stated bytes, and the numbers that the tensors hold."""
    numbers = 0
    for info in message.tensors.values():
        numbers += math.prod(info.shape)
    return message.bytes_on_wire, numbers

"""Sums of uploads of which an adversary knows all terms but one: attacks read them as that client's upload.

Guarantees:
  * only a message marked as an exact sum that says whose terms are in it is read so;
  * what is subtracted are messages in the view: all that members sent;
  * a sum of one client's term alone is read as its upload, and one with two terms that are not in view never is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fdaudit.transcript.messages import SUM

if TYPE_CHECKING:
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

__all__ = ["with_single_terms"]


def with_single_terms(view: View) -> View:
    """Return the view as attacks read it: a sum less the terms in view is the upload of the one client left.

    Its message gets that client as sender and the weight that is left. It has the defences that act on the other
    clients' terms, then those on the sum.
    """
    known_terms: dict[int, tuple[Message, ...]] = {}
    messages = []
    for message in view.messages:
        single = _single(view, message)
        if single is not None:
            message, known_terms[message.seq] = single
        messages.append(message)
    if not known_terms:
        return view
    return replace(view, messages=tuple(messages), known_terms=known_terms)


def _single(view: View, message: Message) -> tuple[Message, tuple[Message, ...]] | None:
    """Return a sum as its one unknown term, and its other terms; None if it is no such sum."""
    clients, total = message.fields.get("clients"), message.fields.get("weight")
    if message.fields.get(SUM) is not True or not isinstance(clients, list) or message.payload is None:
        return None
    terms: dict[str, Message] = {}
    for term in view.select(kind=message.kind, round=message.round):
        if term.sender in clients and message.sender in term.receivers and term.seq < message.seq:
            terms[term.sender] = term
    unknown = [client for client in clients if client not in terms]
    weights = [m.fields.get("weight") for m in terms.values()]
    if len(unknown) != 1 or not all(isinstance(weight, float) for weight in (total, *weights)):
        return None
    if any(m.payload is None or m.form != message.form for m in terms.values()):
        return None
    fields = {"weight": total - sum(weights)}  # type: ignore[operator, arg-type]
    applied = next((term.defenses for term in terms.values()), ())
    single = replace(message, sender=unknown[0], fields=fields, defenses=(*applied, *message.defenses))
    return single, tuple(terms.values())

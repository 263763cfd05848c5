"""Checks of a record's messages against their kinds: the tensors of each kind, and fixed sizes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from fdaudit.errors import SpecError
from fdaudit.transcript.messages import Message, role
from fdaudit.types import KINDS

if TYPE_CHECKING:
    from fdaudit.spec.card import Card

__all__ = ["refuse_other_tensors", "refuse_varied_sizes"]

_ALONE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"class_counts": ("counts",), "logit_range": ("max_abs",), "sample_count": ("n",), "silence": ()}
)
"""Kinds with these tensors and no others. The ledger trusts such a kind: a count that does not change costs nothing."""
_NEEDED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "discriminator_scores": ("values",),
        "ensemble_labels": ("values",),
        "generated_samples": ("samples",),
        "hard_labels": ("values",),
        "logits": ("values",),
        "private_labels": ("values",),
        "proxy_indices": ("index",),
        "sample_gradients": ("values",),
        "soft_labels": ("values",),
        "vote_counts": ("counts",),
    }
)
"""Kinds that attacks read by these names; answers without `index` are about the first samples, in order."""
_TABLES: Mapping[str, str] = MappingProxyType(
    {"logits": "values", "soft_labels": "values", "vote_counts": "counts"}
)
"""Kinds with a table (n, C), by its tensor."""
_ONE = ("logit_range", "sample_count")
"""Kinds of one number."""


def refuse_other_tensors(classes: int, messages: Sequence[Message]) -> None:
    """Refuse a message whose tensors are not those of its kind.

    Args:
        classes: number of classes that the card states.
        messages: the record's messages.

    Raises:
        SpecError: a message has other tensors.
    """
    for message in messages:
        names = {name.partition(":")[0] for name in message.tensors}  # a quantised tensor is stored as three
        alone, needed = _ALONE.get(message.kind), _NEEDED.get(message.kind, ())
        wrong = not names >= set(needed) if alone is None else names != set(alone)
        sizes = [math.prod(info.shape) for info in message.tensors.values()]
        wrong |= message.kind in _ONE and sizes != [1]
        wrong |= message.kind in _NEEDED and not _rows_fit(message)
        wrong |= message.kind == "class_counts" and sizes != [classes]
        if wrong:
            shown = ", ".join(f"{n[:40]} {tuple(t.shape)}" for n, t in list(message.tensors.items())[:3])
            problem = (
                f"does not fit message {message.seq} of {message.sender}, which holds {shown or 'no tensors'}"
            )
            remedy = f"{message.kind} is: {KINDS[message.kind]}. Record others under a name of your own: vendor/name."
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
    stated = {(m.kind, m.sender) for m in card.messages if m.fixed_size}
    wanted = {*stated, *(fixed if card.transport == "encrypted" else ())}
    own = bool(
        card.client_models
    )  # then a server's messages to different clients differ as their networks do
    seen: dict[tuple[str, ...], Message] = {}
    for message in messages:
        if (message.kind, role(message.sender)) not in wanted:
            continue
        key = (message.kind, message.sender, *(message.receivers if own else ()))
        first = seen.setdefault(key, message)
        if _size(first) != _size(message):
            numbers = f"{_size(first)[1]} and {_size(message)[1]} numbers"
            problem = f"is not of fixed size: messages {first.seq} and {message.seq} of {message.sender} hold {numbers}"
            remedy = (
                "Remove fixed_size."
                if (message.kind, role(message.sender)) in stated
                else "Pad the messages, record them under a name of your own, or state `transport: plain`."
            )
            raise SpecError("card.messages", message.kind, problem, remedy)


def _rows_fit(message: Message) -> bool:
    """Return whether a table has rows and columns, and `index`, where there is one, a number for each row."""
    rows = message.tensors.get(_TABLES.get(message.kind, "values"))
    index = message.tensors.get("index")
    if rows is None:  # quantised, or other tensors than these
        return True
    if message.kind in _TABLES and len(rows.shape) != 2:
        return False
    return index is None or tuple(index.shape) == tuple(rows.shape[:1])


def _size(message: Message) -> tuple[int, int]:
    """Return the stated bytes, and the numbers that the tensors hold."""
    return message.bytes_on_wire, sum(math.prod(info.shape) for info in message.tensors.values())

"""Message sizes: find the messages and privacy events that public settings determine, independent of private data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fdaudit.kinds import KINDS

if TYPE_CHECKING:
    from fdaudit.planning.case import Case

__all__ = ["fixed_events", "fixed_sizes"]


def fixed_sizes(case: Case) -> frozenset[tuple[str, str]]:
    """Return the (kind, sender role) of the messages whose size reveals nothing.

    The kind fixes the size, or the protocol's card declares the index public, which fixes the number of rows. Every
    defence of the message must also keep its size fixed. This is not read from a record: equal sizes in one run do not
    show that other data would give the same sizes. If a defence turns clients' answers into messages of another kind,
    messages that are computed from them may omit rows.
    """
    is_fixed: dict[tuple[str, str], bool] = {("silence", role): True for role in case.protocol.card.roles}
    recast = False
    for (_, sender), acting in case.defenses.items():
        if sender == "client" and any(defense.card.makes is not None for defense in acting):
            recast = True
    for declared in case.declared_messages:
        # What a defence makes of another message has a declaration of its own.
        if "made_of" in declared:
            continue
        kind, sender = str(declared["kind"]), str(declared["from"])
        has_public_index = declared.get("index") == "public" and not (recast and sender != "client")
        fixed = _fixed(kind) or has_public_index
        for defense in case.defenses.get((kind, sender), ()):
            fixed &= defense.card.fixed_size
            kind = defense.card.makes or kind
        is_fixed[kind, sender] = is_fixed.get((kind, sender), True) and fixed
    messages = []
    for key, fixed in is_fixed.items():
        if fixed:
            messages.append(key)
    return frozenset(messages)


def fixed_events(case: Case) -> bool:
    """Return whether the spec alone determines the parameters of every privacy event.

    An event depends on its defence's settings and on the number of values in a message. Settings fix that number if the
    kind or a public index does. A server or an aggregator that averages may report how large one client's share is. The
    sensitivity of noise on its message then depends on what clients sent.
    """
    defended = {key for key, acting in case.defenses.items() if acting}
    if any(sender != "client" and kind != "vote_counts" for kind, sender in defended):
        return False
    declared = []
    for message in case.declared_messages:
        if (message["kind"], message["from"]) in defended:
            declared.append(message)
    return all(_fixed(m["kind"]) or m.get("index") == "public" for m in declared)


def _fixed(kind: str) -> bool:
    """Return whether a kind is known to have a fixed size; kinds of a protocol's own are not."""
    return kind in KINDS and KINDS[kind].fixed_size

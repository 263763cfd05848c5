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
    found: dict[tuple[str, str], bool] = {("silence", role): True for role in case.protocol.card.roles}
    recast = any(
        d.card.makes is not None for (_, who), all_ in case.defenses.items() if who == "client" for d in all_
    )
    for declared in case.declared_messages:
        if (
            "made_of" in declared
        ):  # what a defence makes of another message, which has a declaration of its own
            continue
        kind, sender = str(declared["kind"]), str(declared["from"])
        promised = declared.get("index") == "public" and not (recast and sender != "client")
        fixed = _fixed(kind) or promised
        for defense in case.defenses.get((kind, sender), ()):
            fixed &= defense.card.fixed_size
            kind = defense.card.makes or kind
        found[kind, sender] = found.get((kind, sender), True) and fixed
    return frozenset(key for key, fixed in found.items() if fixed)


def fixed_events(case: Case) -> bool:
    """Return whether the spec alone determines the parameters of every privacy event.

    An event depends on its defence's settings and on the number of values in a message. Settings fix that number if the
    kind or a public index does. A server or an aggregator that averages may report how large one client's share is. The
    sensitivity of noise on its message then depends on what clients sent.
    """
    treated = {(kind, sender) for kind, sender in case.defenses if case.defenses[kind, sender]}
    averaged = any(sender != "client" and kind != "vote_counts" for kind, sender in treated)
    listed = [m for m in case.declared_messages if (m["kind"], m["from"]) in treated]
    return not averaged and all(_fixed(m["kind"]) or m.get("index") == "public" for m in listed)


def _fixed(kind: str) -> bool:
    """Return whether a kind is known to have a fixed size; kinds of a protocol's own are not."""
    return kind in KINDS and KINDS[kind].fixed_size

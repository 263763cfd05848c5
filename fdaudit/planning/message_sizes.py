"""Message sizes: what of a run's messages public settings fix, whatever the private data are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fdaudit.types import FIXED_SIZE

if TYPE_CHECKING:
    from fdaudit.planning.plan import Plan

__all__ = ["fixed_events", "fixed_sizes"]


def fixed_sizes(plan: Plan) -> frozenset[tuple[str, str]]:
    """Return the (kind, sender role) of the messages whose size tells nothing.

    The kind fixes the size, or the protocol's card declares the index, and so the number of rows, public. Every defence
    that treats the message must keep its size fixed as well. Nothing is read off a record: that all messages
    of one run have one size does not show that they would with other data. Where a defence makes clients' answers
    messages of another kind, what others make of them may leave rows out.
    """
    found: dict[tuple[str, str], bool] = {("silence", role): True for role in plan.protocol.roles}
    recast = any(
        hasattr(d, "makes") for (_, who), all_ in plan.defenses.items() if who == "client" for d in all_
    )
    for declared in plan.declared_messages:
        if (
            "made_of" in declared
        ):  # what a defence makes of another message, which has a declaration of its own
            continue
        kind, sender = str(declared["kind"]), str(declared["from"])
        promised = declared.get("index") == "public" and not (recast and sender != "client")
        fixed = kind in FIXED_SIZE or promised
        for defense in plan.defenses.get((kind, sender), ()):
            fixed &= getattr(defense, "fixed_size", False)
            kind = getattr(defense, "makes", kind)
        found[kind, sender] = found.get((kind, sender), True) and fixed
    return frozenset(key for key, fixed in found.items() if fixed)


def fixed_events(plan: Plan) -> bool:
    """Return whether the parameters of every privacy event follow from the spec, whatever messages say.

    An event depends on the settings of its defence and on how many values a message has, which settings fix where the
    kind or a public index does. A server or an aggregator that averages may say how large one client's share is: the
    sensitivity of noise on its message then follows from what clients sent.
    """
    treated = {(kind, sender) for kind, sender in plan.defenses if plan.defenses[kind, sender]}
    averaged = any(sender != "client" and kind != "vote_counts" for kind, sender in treated)
    listed = [m for m in plan.declared_messages if (m["kind"], m["from"]) in treated]
    return not averaged and all(m["kind"] in FIXED_SIZE or m.get("index") == "public" for m in listed)

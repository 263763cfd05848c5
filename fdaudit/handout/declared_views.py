"""Decide by declarations alone which messages and oracles a view may have, before any run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fdaudit.adversary.view import EAVESDROPPER
from fdaudit.handout.oracle_access import accesses
from fdaudit.transcript.messages import role

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case

__all__ = ["declared_kinds", "may_apply"]


def may_apply(plan: Case, attack: AttackPlan, members: Sequence[str]) -> bool:
    """Return whether a view may hold what an attack needs, by declarations alone.

    An attack needs one of the kinds of messages on its card, or an oracle.

    Args:
        plan: the federation.
        attack: the attack with its card.
        members: the adversary's parties.
    """
    needs = set(attack.card.get("needs", ()))
    asks = attack.card.get("oracle") is not None or any(need.startswith("oracle") for need in needs)
    if not needs or (asks and any(a.open_to(members, plan.spec.transport) for a in accesses(plan))):
        return True
    return bool(needs & declared_kinds(plan, members))


def declared_kinds(plan: Case, members: Sequence[str]) -> frozenset[str]:
    """Return the kinds of messages that the settings let a view hold, before and after each defence.

    Args:
        plan: the federation.
        members: the adversary's parties.
    """
    roles = {role(party) for party in members}
    overhears = EAVESDROPPER in members and plan.spec.transport == "plain"
    found = set[str]()
    for declared in plan.declared_messages:
        sender = str(declared["from"])
        if overhears or roles & {sender, *str(declared["to"]).split(", ")}:
            kind = str(declared["kind"])
            made = (getattr(d, "makes", kind) for d in plan.defenses.get((kind, sender), ()))
            found |= {kind, *made}
    return frozenset(found)

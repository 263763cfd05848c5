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


def may_apply(case: Case, attack: AttackPlan, members: Sequence[str]) -> bool:
    """Return whether a view may hold what an attack needs, by declarations alone.

    An attack needs one of the kinds of messages on its card, or an oracle.

    Args:
        case: the federation.
        attack: the attack with its card.
        members: the adversary's parties.
    """
    needs = set(attack.card.needs)
    asks = attack.card.oracle is not None or any(need.startswith("oracle") for need in needs)
    if not needs or (asks and any(a.open_to(members, case.spec.transport) for a in accesses(case))):
        return True
    return bool(needs & declared_kinds(case, members))


def declared_kinds(case: Case, members: Sequence[str]) -> frozenset[str]:
    """Return the kinds of messages that the settings let a view hold, before and after each defence.

    Args:
        case: the federation.
        members: the adversary's parties.
    """
    roles = {role(party) for party in members}
    overhears = EAVESDROPPER in members and case.spec.transport == "plain"
    kinds = set[str]()
    for declared in case.declared_messages:
        sender, kind = str(declared["from"]), str(declared["kind"])
        if overhears or roles & {sender, *str(declared["to"]).split(", ")}:
            kinds.add(kind)
            for defense in case.defenses.get((kind, sender), ()):
                kinds.add(defense.card.makes or kind)
    return frozenset(kinds)

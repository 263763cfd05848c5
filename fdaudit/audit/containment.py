"""Find which views contain which others. A larger view can learn everything that a smaller one can.

Guarantee:
  * a view contains another only if it has every message of the other, its records, and access to the same oracles.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from fdaudit.adversary.view import EAVESDROPPER
from fdaudit.handout.oracle_access import Access, published

if TYPE_CHECKING:
    from fdaudit.adversary.forms import Forms
    from fdaudit.adversary.view import View

__all__ = ["contained"]


def contained(
    views: Iterable[View], oracles: Collection[Access], transport: str, forms: Forms | None = None
) -> list[dict[str, Any]]:
    """Return for each adversary the other adversaries whose whole view it has, as JSON objects `adversary`, `contains`.

    Args:
        views: the adversaries' views of one run.
        oracles: the oracles of the run.
        transport: `plain` or `encrypted`.
    """
    held = {view.name: view for view in views}
    seen = {name: {m.seq for m in view.messages} for name, view in held.items()}

    def contains(larger: str, smaller: str) -> bool:
        return (
            larger != smaller
            and seen[smaller] <= seen[larger]
            and held[smaller].own_data.keys() <= held[larger].own_data.keys()
            and (not held[smaller].sizes or EAVESDROPPER in held[larger].members)
            and all(
                _may_answer(held[larger], o, transport, forms)
                for o in oracles
                if _may_ask(held[smaller], o, transport)
            )
        )

    return [{"adversary": a, "contains": [b for b in held if contains(a, b)]} for a in held]


def _may_ask(view: View, oracle: Access, transport: str) -> bool:
    return oracle.open_to(view.members, transport)


def _may_answer(view: View, oracle: Access, transport: str, forms: Forms | None) -> bool:
    """Return whether an adversary may query the oracle, or holds the published model behind it."""
    holds = oracle.kind is None and published(view.messages, forms) is not None
    return holds or _may_ask(view, oracle, transport)

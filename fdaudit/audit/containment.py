"""Find which views contain which others. A larger view can learn everything that a smaller one can.

Guarantee:
  * a view contains another only if it has every message of the other, its records, and access to the same oracles;
  * a client that neither sent nor received anything is left out: thousands would be listed with each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from fdaudit.adversary.view import EAVESDROPPER
from fdaudit.handout.oracle_access import Access, published
from fdaudit.result import ViewRow
from fdaudit.transcript.messages import role

if TYPE_CHECKING:
    from fdaudit.adversary.forms import Forms
    from fdaudit.adversary.view import View

__all__ = ["contained"]


def contained(
    views: Iterable[View], oracles: Collection[Access], transport: str, forms: Forms | None = None
) -> tuple[ViewRow, ...]:
    """Return for each adversary the other adversaries whose whole view it has.

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

    found: dict[str, list[str]] = {name: [] for name in held}
    holders = _holders(held)
    for smaller, view in held.items():
        # Whoever contains it holds its rarest message: few do, and no other pair need be compared.
        parts = _parts(view)
        candidates = min((holders[part] for part in parts), key=len, default=[])
        if not parts and role(smaller) != "client":
            candidates = list(held)
        for larger in candidates:
            if contains(larger, smaller):
                found[larger].append(smaller)
    return tuple(ViewRow(adversary=name, contains=tuple(names)) for name, names in found.items())


def _holders(views: Mapping[str, View]) -> dict[int | str, list[str]]:
    """Return for each message's `seq`, and for each client whose records are held, the adversaries that hold it."""
    found: dict[int | str, list[str]] = {}
    for name, view in views.items():
        for part in _parts(view):
            found.setdefault(part, []).append(name)
    return found


def _parts(view: View) -> list[int | str]:
    """Return the numbers of a view's messages, and the clients whose records it holds."""
    parts: list[int | str] = [message.seq for message in view.messages]
    return [*parts, *view.own_data]


def _may_ask(view: View, oracle: Access, transport: str) -> bool:
    return oracle.open_to(view.members, transport)


def _may_answer(view: View, oracle: Access, transport: str, forms: Forms | None) -> bool:
    """Return whether an adversary may query the oracle, or holds the published model behind it."""
    holds = oracle.kind is None and published(view.messages, forms) is not None
    return holds or _may_ask(view, oracle, transport)

"""Find which views contain which others. A larger view can learn everything that a smaller one can.

Guarantee:
  * a view contains another only if it has every message of the other, its records, and access to the same oracles;
  * a client that neither sent nor received anything is left out: thousands would be listed with each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
        forms: of the run's models; a published message that does not fit them is no released model.
    """
    by_name = {view.name: view for view in views}
    # The numbers of each view's messages, and the clients whose records it holds.
    parts: dict[str, set[int | str]] = {}
    holders: dict[int | str, list[str]] = {}
    for name, view in by_name.items():
        parts[name] = {message.seq for message in view.messages} | view.own_data.keys()
        for part in parts[name]:
            holders.setdefault(part, []).append(name)

    def contains(larger: View, smaller: View) -> bool:
        if larger is smaller or not parts[smaller.name] <= parts[larger.name]:
            return False
        if smaller.sizes and EAVESDROPPER not in larger.members:
            return False
        for oracle in oracles:
            if not oracle.open_to(smaller.members, transport):
                continue
            holds = oracle.kind is None and published(larger.messages, forms) is not None
            if not (holds or oracle.open_to(larger.members, transport)):
                return False
        return True

    contents: dict[str, list[str]] = {name: [] for name in by_name}
    for name, view in by_name.items():
        # Whoever contains it holds its rarest message: few do, and no other pair need be compared.
        candidates = min((holders[part] for part in parts[name]), key=len, default=[])
        if not parts[name] and role(name) != "client":
            candidates = list(by_name)
        for larger in candidates:
            if contains(by_name[larger], view):
                contents[larger].append(name)
    rows = []
    for name, names in contents.items():
        row = ViewRow(adversary=name, contains=tuple(names))
        rows.append(row)
    return tuple(rows)

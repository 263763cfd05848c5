"""The accounts of a view: the mechanisms charged to each client, before they are priced at a δ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fdaudit.accounting.costs import Charges
from fdaudit.events import Relation, Unit

__all__ = ["Accounts"]


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """Charges of every client in one view, for one unit and relation.

    Attributes:
        view: the adversary.
        unit: what changes between neighbours.
        relation: how it changes.
        charges: by client, each valid way of charging it; each way by itself bounds the view.
        causes: by client that cannot be charged, why its ε is infinite; in the order of the record.
        assumptions: assumptions of the charges.
    """

    view: str
    unit: Unit
    relation: Relation
    charges: Mapping[str, tuple[Charges, ...]]
    causes: Mapping[str, str]
    assumptions: tuple[str, ...] = ()

    @property
    def cause(self) -> str:
        """Return why no ε can be claimed for the worst client; an empty text if one can."""
        return next(iter(self.causes.values()), "")

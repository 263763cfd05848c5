"""The accounts of a view: the mechanisms charged to each client, and the guarantees of one number that they have.

Guarantees:
  * μ of Gaussian differential privacy, or ρ of zero-concentrated, is given only if every charge has it in closed form;
  * composition is exact: squares of μ add up, and so do the ρ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

from fdaudit.accounting.charges import Charges, charges_from_json, charges_to_json, signal_to_noise
from fdaudit.accounting.costs import epsilon
from fdaudit.errors import IntegrityError
from fdaudit.events import DiscreteGaussian, Gaussian, Relation, Unit

__all__ = [
    "Accounts",
    "accounts_from_json",
    "accounts_to_json",
    "dearest",
    "gdp",
    "rounded_up",
    "worst_gdp",
    "worst_zcdp",
    "zcdp",
]

_KINDS = 8
"""Most clients of different charges that `dearest` returns."""


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


def dearest(accounts: Accounts, victim: str, delta: float) -> list[str]:
    """Return the victim, and of the clients with other charges the most expensive ones at δ, one of each kind."""
    costs = dict[frozenset[Any], tuple[float, str]]()
    for client in sorted(accounts.charges, key=lambda name: name != victim):
        ways = accounts.charges[client]
        kind = frozenset(frozenset(way.items()) for way in ways)
        if kind not in costs:
            cost = min(epsilon(way, delta, pld=False).value for way in ways)
            costs[kind] = cost, client
    (_, first), *others = costs.values()
    others.sort(key=lambda cost_and_client: -cost_and_client[0])
    return [first, *(client for _, client in others[: _KINDS - 1])]


def accounts_to_json(accounts: Accounts) -> dict[str, Any]:
    """Return accounts as a JSON object."""
    charges = {}
    for client, ways in accounts.charges.items():
        charges[client] = list(map(charges_to_json, ways))
    causes, assumptions = dict(accounts.causes), list(accounts.assumptions)
    return vars(accounts) | {"charges": charges, "causes": causes, "assumptions": assumptions}


def accounts_from_json(value: object) -> Accounts:
    """Return the accounts that `accounts_to_json` wrote.

    Raises:
        IntegrityError: the value has other fields, or impossible ones.
    """
    names = [field.name for field in fields(Accounts)]
    if not isinstance(value, dict) or set(value) != set(names):
        raise IntegrityError([f"accounts do not have the fields {', '.join(names)}"])
    charges, causes, assumptions = value["charges"], value["causes"], value["assumptions"]
    is_stated = value["unit"] in get_args(Unit) and value["relation"] in get_args(Relation)
    are_mappings = isinstance(charges, dict) and isinstance(causes, dict)
    texts = (value["view"], *causes.values(), *assumptions) if are_mappings else ()
    if not is_stated or not texts or not all(isinstance(text, str) for text in texts):
        raise IntegrityError(["accounts state no unit, relation, charges and texts"])
    ways_of = {}
    for client, ways in charges.items():
        if not isinstance(ways, list) or not ways:
            raise IntegrityError(["accounts have a client without a way of charging"])
        ways_of[client] = tuple(map(charges_from_json, ways))
    return Accounts(**value | {"charges": ways_of, "assumptions": tuple(assumptions)})


def gdp(charges: Charges) -> float | None:
    """Return μ of μ-GDP, or None if a charge is not a plain Gaussian release.

    Source: Dong, Roth & Su 2019, Corollary 3.3: μ² = Σ (sensitivity / scale)².
    """
    ratios = list[float]()
    for charge, times in charges.items():
        if not isinstance(charge, Gaussian):
            return None
        ratios.append(signal_to_noise(charge, times))
    return math.hypot(*ratios)


def zcdp(charges: Charges) -> float | None:
    """Return ρ of ρ-zCDP, or None if a charge is neither a Gaussian nor a discrete Gaussian release.

    Source: Bun & Steinke 2016, Proposition 1.6 and Lemma 1.7; Canonne, Kamath & Steinke 2020, Theorem 4.
    """
    terms = list[float]()
    for charge, times in charges.items():
        if not isinstance(charge, Gaussian | DiscreteGaussian):
            return None
        terms.append(times * charge.count * (charge.sensitivity / charge.scale) ** 2 / 2)
    return math.fsum(terms)


def worst_gdp(clients: Iterable[Sequence[Charges]]) -> float | None:
    """Return μ of the worst client by its best way; None if a client has no μ or there is no client."""
    return _worst(clients, gdp)


def worst_zcdp(clients: Iterable[Sequence[Charges]]) -> float | None:
    """Return ρ of the worst client by its best way; None if a client has no ρ or there is no client."""
    return _worst(clients, zcdp)


def _worst(clients: Iterable[Sequence[Charges]], figure: Callable[[Charges], float | None]) -> float | None:
    """Return the maximum over clients of the minimum over their ways of charging, each of which bounds the view."""
    largest: float | None = None
    for ways in clients:
        values = [value for value in map(figure, ways) if value is not None]
        if not values:
            return None
        largest = max(min(values), largest or 0.0)
    return largest


def rounded_up(value: float) -> str:
    """Return a privacy figure in four digits, never rounded down; ∞ if it is infinite."""
    if not 0 < value < math.inf:
        return "0" if value == 0 else "∞"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.4g}"

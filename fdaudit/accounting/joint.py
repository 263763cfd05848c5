"""Joint accounts: the charges of one recipient of several runs that share records.

Guarantees:
  * the charges of all runs that used a record compose; ε are never added;
  * a record that only one run used is charged for that run only;
  * if records of the runs cannot be matched, a record may be with any client of each run.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fdaudit.accounting.accounts import Accounts
from fdaudit.accounting.charges import Charge, Charges
from fdaudit.accounting.costs import epsilon

__all__ = ["Holders", "Joint", "joined"]

Holders = tuple[str | None, ...]
"""The client that holds a record in each run; None if no client does."""

_COMBINATIONS = 256
"""Most combinations of clients that are priced one by one; for more, one bound covers all."""


@dataclass(frozen=True, kw_only=True)
class Joint:
    """The combined accounts of several runs.

    Attributes:
        accounts: charges by name of a combination of clients.
        holders: by the same names, the client of each run.
        shares: by the same names, what each run charges; empty if its client is charged nothing.
    """

    accounts: Accounts
    holders: Mapping[str, Holders]
    shares: Mapping[str, tuple[Charges, ...]]


def joined(
    accounts: Sequence[Accounts],
    names: Sequence[str],
    holders: Collection[Holders] | None,
    delta: float,
) -> Joint:
    """Return the accounts of several runs as one.

    Args:
        accounts: one for each run, for one view, unit and relation.
        names: of the runs, for causes and labels.
        holders: the combinations of clients that hold one record; None if any combination is possible.
        delta: δ at which each client's way of charging is chosen.
    """
    worth = [_cheapest(account, delta) for account in accounts]
    causes = dict[str, str]()
    if holders is None:
        worth, combinations = _combinations(worth)
        for name, account in zip(names, accounts, strict=True):
            causes |= {f"{client} of {name}": f"{name}: {cause}" for client, cause in account.causes.items()}
    else:
        combinations = [clients for clients in holders if _protected(clients, accounts)]
        for clients in combinations:
            for client, name, account in zip(clients, names, accounts, strict=True):
                if client and client in account.causes:
                    causes.setdefault(_label(clients, names), f"{name}: {account.causes[client]}")
    combination_of = dict[str, Holders]()
    shares = dict[str, tuple[Charges, ...]]()
    totals = dict[str, tuple[Charges, ...]]()
    for clients in combinations:
        label = _label(clients, names)
        if label in causes or not any(clients):
            continue
        total = Counter[Charge]()
        parts = list[Charges]()
        for run, client in zip(worth, clients, strict=True):
            parts.append(run[client] if client else {})
            total.update(parts[-1])
        combination_of[label] = clients
        shares[label] = tuple(parts)
        totals[label] = (total,)
    assumptions = itertools.chain.from_iterable(account.assumptions for account in accounts)
    first = accounts[0]
    joint = Accounts(
        view=first.view,
        unit=first.unit,
        relation=first.relation,
        charges=totals,
        causes=causes,
        assumptions=tuple(dict.fromkeys(assumptions)),
    )
    return Joint(accounts=joint, holders=combination_of, shares=shares)


def _cheapest(account: Accounts, delta: float) -> dict[str, Charges]:
    """Return by client the way of charging with the least ε."""
    charges = dict[str, Charges]()
    for client, ways in account.charges.items():
        if len(ways) == 1:
            charges[client] = ways[0]
        else:
            charges[client] = min(ways, key=lambda way: epsilon(way, delta, pld=False).value)
    return charges


def _protected(clients: Holders, accounts: Sequence[Accounts]) -> bool:
    """Return whether no member of the adversary holds the record; a view's accounts leave out its members."""
    for client, account in zip(clients, accounts, strict=True):
        if client is not None and client not in account.charges and client not in account.causes:
            return False
    return True


def _label(clients: Holders, names: Sequence[str]) -> str:
    """Return the client's name if it is the same in every run, else each client with its run."""
    if len(set(clients)) == 1 and clients[0] is not None:
        return clients[0]
    of_runs = list[str]()
    for client, name in zip(clients, names, strict=True):
        if client:
            of_runs.append(f"{client} of {name}")
    return ", ".join(of_runs)


def _combinations(worth: list[dict[str, Charges]]) -> tuple[list[dict[str, Charges]], list[Holders]]:
    """Return the most expensive charges of each run and every combination of them."""
    reduced = list(map(_dearest, worth))
    if math.prod(max(1, len(run)) for run in reduced) > _COMBINATIONS:
        for number, run in enumerate(reduced):
            if len(run) > 1:
                # Every mechanism as often as the client that uses it most bounds every client's charges.
                bound = Counter[Charge]()
                for charges in run.values():
                    bound |= Counter(charges)
                reduced[number] = {"any client": bound}
    clients = [tuple(run) or (None,) for run in reduced]
    return reduced, list(itertools.product(*clients))


def _dearest(run: Mapping[str, Charges]) -> dict[str, Charges]:
    """Return the clients whose charges are not part of another's; of clients with equal charges, the first."""
    clients = dict[str, Charges]()
    for client, charges in run.items():
        if any(_within(charges, other) for other in clients.values()):
            continue
        for name, other in list(clients.items()):
            if _within(other, charges):
                del clients[name]
        clients[client] = charges
    return clients


def _within(part: Charges, whole: Charges) -> bool:
    return all(times <= whole.get(charge, 0) for charge, times in part.items())

"""The privacy profile of a view: ε at many δ, loss distributions, and the trade-off function.

Guarantees:
  * ε at each δ is that of the worst client at this δ;
  * every pair (ε, δ) is sound;
  * the trade-off function bounds the type II error from below for every client and in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdaudit.accounting.accounts import Accounts, gdp, worst_gdp, worst_zcdp
from fdaudit.accounting.charges import Charges, Selected
from fdaudit.accounting.costs import by_library, epsilon
from fdaudit.accounting.losses.composition import ROUNDING, TINY, tail_epsilons
from fdaudit.accounting.losses.distributions import Distribution, Exported, composed, exported
from fdaudit.errors import SpecError
from fdaudit.events import Relation, Unit

__all__ = ["ALPHAS", "DELTAS", "Profile", "profile", "trade_off", "with_delta"]

Values = NDArray[np.float64]

DELTAS: Values = np.array(
    [float(f"{10.0 ** (tenths / 10):.3g}") for tenths in range(-120, -10)]
    + [hundredths / 100 for hundredths in range(10, 100, 2)]
)
"""δ of a profile: ten per decade from 1e-12 to 0.1, then every 0.02."""

ALPHAS: Values = np.unique(
    np.concatenate([[0.0], 10.0 ** np.arange(-8, -2, 0.1).round(1), np.arange(1, 101) / 100])
)
"""Type I errors at which a trade-off function is evaluated."""

_TOO_LOUD = 300.0
"""Above this ε at the largest δ below 0.01 a distribution is too long to compose, and the guarantee is vacuous."""
_LARGEST_POWER = 700.0
"""The largest ε with a finite exponential; e^ε α exceeds 1 there for every relevant α."""
_ROUNDED_DOWN = 1 - 1e-9
"""Factor that lowers a trade-off function by a billionth: floating-point errors are smaller."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Profile:
    """ε of one view at many δ.

    Attributes:
        view: the adversary.
        unit: what changes between neighbours.
        relation: how it changes.
        deltas: (n,) ascending.
        epsilons: (n,) at each δ, of the worst client; infinite if none can be claimed.
        clients: (n,) that client's name; empty if no client is left to protect.
        accountants: (n,) the rule that gave ε.
        cause: why every ε is infinite, or an empty text.
        gdp: μ if μ-GDP holds exactly for every client; None otherwise.
        zcdp: ρ if ρ-zCDP holds exactly for every client; None otherwise.
        distributions: one for each client that may be worst at some δ.
        missing: why there are no distributions, or an empty text.
        exports: the charges of each client that may be worst at some δ, for other accountants.
        assumptions: assumptions of the profile.
    """

    view: str
    unit: Unit
    relation: Relation
    deltas: Values
    epsilons: Values
    clients: tuple[str, ...]
    accountants: tuple[str, ...]
    cause: str = ""
    gdp: float | None = None
    zcdp: float | None = None
    distributions: tuple[Distribution, ...] = ()
    missing: str = ""
    exports: tuple[Exported, ...] = ()
    assumptions: tuple[str, ...] = ()

    def trade_off(self, alphas: Values = ALPHAS) -> Values:
        """Return a lower bound (m,) of the type II error at each type I error (Dong, Roth & Su 2019).

        It holds for every client and in both directions. It is exact if all charges are Gaussians. Otherwise it is the
        largest bound that the profile's pairs (ε, δ) imply, and thus convex and its own inverse.
        """
        if self.gdp is None:
            return trade_off(self.epsilons, self.deltas, alphas)
        from scipy.special import ndtr, ndtri

        # Dong, Roth & Su 2019, equation 6.
        errors: Values = ndtr(-ndtri(alphas) - self.gdp) * _ROUNDED_DOWN
        return errors


def with_delta(delta: float) -> Values:
    """Return `DELTAS` with another δ added.

    Raises:
        SpecError: δ is out of range.
    """
    if not 0 < delta < 1:
        raise SpecError("delta", delta, "is no probability of failure", "Give a δ between 0 and 1.")
    return np.unique(np.append(DELTAS, delta))


def trade_off(epsilons: Values, deltas: Values, alphas: Values) -> Values:
    """Return the largest type II error that pairs (ε, δ) imply at each type I error.

    Args:
        epsilons: (n,) each with its δ.
        deltas: (n,).
        alphas: (m,) type I errors.

    Returns:
        (m,) max over pairs of 0, 1 - δ - e^ε α and e^-ε (1 - δ - α): Wasserman & Zhou 2010, Theorem 2.4, over all
        pairs.
    """
    slope = np.exp(np.minimum(epsilons, _LARGEST_POWER))[:, None]
    rest = 1 - deltas[:, None]
    bounds = np.maximum(rest - slope * alphas, (rest - alphas) / slope)
    usable = np.where(np.isfinite(epsilons)[:, None], bounds, 0.0)
    errors: Values = np.max(usable, axis=0, initial=0.0) * _ROUNDED_DOWN
    return errors


def profile(accounts: Accounts, deltas: Values = DELTAS, *, distributions: bool = True) -> Profile:
    """Return ε of a view at many δ, the worst client at each.

    Args:
        accounts: the charges of each client.
        deltas: (n,) in (0, 1), ascending.
        distributions: whether to compose each client's loss distribution even if its ε does not need it.
    """
    n = len(deltas)
    nobody = "no client is left to protect"
    blank = Profile(
        view=accounts.view,
        unit=accounts.unit,
        relation=accounts.relation,
        assumptions=accounts.assumptions,
        deltas=deltas,
        epsilons=np.zeros(n),
        clients=("",) * n,
        accountants=(nobody,) * n,
        missing=nobody,
    )
    if accounts.cause:
        return replace(
            blank,
            epsilons=np.full(n, np.inf),
            clients=(next(iter(accounts.causes)),) * n,
            accountants=("",) * n,
            cause=accounts.cause,
            missing="no ε can be claimed",
        )
    if not accounts.charges:
        return blank
    priced = _refined(accounts.charges, deltas, distributions)
    table = np.array([p.epsilons for p in priced])
    worst = [priced[i] for i in np.argmax(table, axis=0)]
    # All distributions or none: some of them would claim less than the profile does.
    composed_losses = tuple(p.distribution for p in priced if p.distribution is not None)
    missing = ""
    if len(composed_losses) < len(priced):
        composed_losses = ()
        missing = "the loss distribution of a client would be too long, or a chosen run has none"
    return replace(
        blank,
        epsilons=np.max(table, axis=0),
        clients=tuple(p.client for p in worst),
        accountants=tuple(p.accountants[k] for k, p in enumerate(worst)),
        gdp=worst_gdp(accounts.charges.values()),
        zcdp=worst_zcdp(accounts.charges.values()),
        exports=tuple(exported(p.client, p.charges) for p in priced),
        distributions=composed_losses,
        missing=missing,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Priced:
    """A client or one of its ways of charging, priced: ε at each δ, the rule that gave it, and any distribution."""

    client: str
    epsilons: Values
    accountants: tuple[str, ...]
    distribution: Distribution | None
    charges: Charges


def _refined(
    clients: Mapping[str, tuple[Charges, ...]], deltas: Values, distributions: bool
) -> list[_Priced]:
    """Return every client that may be worst at some δ, at full precision; of clients with equal charges, the first."""
    alike = dict[frozenset[frozenset[Any]], str]()
    for name, ways in clients.items():
        alike.setdefault(frozenset(frozenset(way.items()) for way in ways), name)
    quick = list[_Priced]()
    for name in alike.values():
        quick.append(_least([_by_sums(name, way, deltas) for way in clients[name]]))
    quick.sort(key=lambda priced: -float(np.sum(np.minimum(priced.epsilons, 1e6))))
    refined, best = list[_Priced](), np.full(len(deltas), -1.0)
    for bound in quick:
        if np.any(bound.epsilons > best):
            ways = clients[bound.client]
            priced = _least([_by_all_rules(bound.client, way, deltas, distributions) for way in ways])
            refined.append(priced)
            best = np.maximum(best, priced.epsilons)
    return refined


def _least(ways: Sequence[_Priced]) -> _Priced:
    """Return the least ε over ways at each δ, with the distribution of the way that is least at most δ."""
    table = np.array([way.epsilons for way in ways])
    least = np.argmin(table, axis=0)
    accountants = list[str]()
    for k, i in enumerate(least):
        accountants.append(ways[i].accountants[k])
    often = int(np.argmax(np.bincount(least, minlength=len(ways))))
    return _Priced(
        client=ways[0].client,
        epsilons=np.min(table, axis=0),
        accountants=tuple(accountants),
        distribution=ways[often].distribution,
        charges=ways[often].charges,
    )


def _by_sums(client: str, charges: Charges, deltas: Values) -> _Priced:
    """Return ε by every rule that composes no distribution."""
    bounds = [epsilon(charges, float(delta), pld=False) for delta in deltas]
    return _Priced(
        client=client,
        epsilons=np.array([e.value for e in bounds]),
        accountants=tuple(e.accountant for e in bounds),
        distribution=None,
        charges=charges,
    )


def _by_all_rules(client: str, charges: Charges, deltas: Values, distributions: bool) -> _Priced:
    sums = _by_sums(client, charges, deltas)
    small = max(1, int(np.sum(deltas < 0.01)))
    is_moderate = float(np.min(sums.epsilons[:small])) < _TOO_LOUD
    exact = gdp(charges) is not None
    selected = any(isinstance(charge, Selected) for charge in charges)
    if not charges or not is_moderate or selected or (exact and not distributions):
        return sums
    distribution = composed(client, charges)
    tighter = sums.epsilons
    if not exact:
        tiny = deltas <= TINY
        tighter = distribution.epsilons(np.maximum(deltas - ROUNDING, 0.0))
        tighter[tiny] = tail_epsilons(charges, deltas[tiny])
    # If figures differ by rounding only, the more informative rule keeps its name.
    better = tighter < sums.epsilons * (1 - 1e-6)
    accountants = np.where(better, by_library("PLD"), sums.accountants)
    return _Priced(
        client=client,
        epsilons=np.where(better, tighter, sums.epsilons),
        accountants=tuple(accountants.tolist()),
        distribution=distribution,
        charges=charges,
    )

"""Charges in the terms of other tools: composed loss distributions as plain arrays, and other accountants' events.

Guarantees:
  * a distribution is the ledger's own, in both directions, without rounding;
  * ε at any δ from the arrays equals that of the library that made them;
  * an event of `dp_accounting`, or a history of Opacus, is given only if its accountant prices it as the ledger does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdaudit.accounting.charges import Charge, Charges, Grouped
from fdaudit.accounting.losses.composition import losses
from fdaudit.accounting.losses.tails import Losses
from fdaudit.events import Gaussian, SampledGaussian

__all__ = ["Distribution", "Exported", "Losses", "composed", "exported"]

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Distribution:
    """The composed privacy-loss distribution of one client's charges.

    Attributes:
        client: the client with these charges.
        remove: the loss of data with the unit against data without it, or with a replacement.
        add: the loss in the opposite direction.
    """

    client: str
    remove: Losses
    add: Losses

    def epsilons(self, deltas: Values) -> Values:
        """Return ε at each δ, the larger of both directions."""
        return np.maximum(self.remove.epsilons(deltas), self.add.epsilons(deltas))


def composed(client: str, charges: Charges) -> Distribution:
    """Return the composed distribution of all charges; takes about a second."""
    composition = losses(charges)
    remove = add = Losses.of(composition._pmf_remove)
    if not composition._symmetric:
        add = Losses.of(composition._pmf_add)
    return Distribution(client=client, remove=remove, add=add)


@dataclass(frozen=True, kw_only=True)
class Exported:
    """One client's charges for other accountants.

    Attributes:
        client: its name.
        event: a `dp_accounting.DpEvent` as nested JSON, each event by its class name; None if there is none.
        relation: the neighbouring relation with which its `PLDAccountant` prices the event as the ledger does.
        history: steps (noise multiplier, sampling rate, number) as Opacus' accountants keep them; None if a charge is
            no sampled Gaussian of records added or removed.
        missing: why there is no event, or an empty text.
    """

    client: str
    event: dict[str, Any] | None
    relation: str = ""
    history: tuple[tuple[float, float, int], ...] | None = None
    missing: str = ""


def exported(client: str, charges: Charges) -> Exported:
    """Return a client's charges as an event of `dp_accounting` and as a history of Opacus.

    `dp_accounting` doubles a Gaussian's sensitivity for replaced records. Ours is already that of a replacement, so
    all events are for records added or removed, unless a sample has a pair of its own for replaced records.
    """
    import dp_accounting as dp

    swapped = any(map(_is_swapped, charges))
    events, history = list[dp.DpEvent](), list[tuple[float, float, int]]()
    for charge, times in charges.items():
        event = _event(charge, swapped)
        if event is None:
            what = f"{type(charge).__name__} has no event that prices it alike"
            return Exported(client=client, event=None, missing=what)
        runs = times * charge.count  # type: ignore[union-attr]
        events.append(dp.SelfComposedDpEvent(event, runs))
        if isinstance(charge, Gaussian | SampledGaussian):
            rate = charge.sample_rate if isinstance(charge, SampledGaussian) else 1.0
            history.append((charge.scale / charge.sensitivity, rate, runs))
    whole = len(history) == len(events) and not swapped
    return Exported(
        client=client,
        event=_as_json(dp.ComposedDpEvent(events)),
        relation="REPLACE_ONE" if swapped else "ADD_OR_REMOVE_ONE",
        history=tuple(history) if whole else None,
    )


def _is_swapped(charge: Charge) -> bool:
    return isinstance(charge, SampledGaussian) and charge.sample_rate < 1 and charge.relation == "replace-one"


def _event(charge: Charge, swapped: bool) -> Any:
    """Return one run's event, or None if the library has none; `swapped` is for its accountant of replaced records."""
    import dp_accounting as dp
    from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
    from scipy.stats import binom

    if isinstance(charge, Gaussian | SampledGaussian):
        # Of replaced records the library counts twice the distance that a Gaussian's multiplier is stated for.
        doubled = 2 if swapped and not _is_swapped(charge) else 1
        event = dp.GaussianDpEvent(doubled * charge.scale / charge.sensitivity)
        if isinstance(charge, SampledGaussian) and charge.sample_rate < 1:
            return dp.PoissonSampledDpEvent(charge.sample_rate, event)
        return event
    if swapped:
        return None
    if isinstance(charge, Grouped):
        k = list(range(charge.size + 1))
        chances = np.asarray(binom.pmf(k, charge.size, charge.event.sample_rate)).tolist()
        noise = charge.event.scale / charge.event.sensitivity
        return MixtureOfGaussiansDpEvent(noise, list(map(float, k)), chances)
    return None  # a Laplace event is for one value, and ours may move many


def _as_json(event: Any) -> dict[str, Any]:
    """Return an event as its class name (`dp_event`) with its fields; other events among them in the same way."""

    def plain(value: Any) -> Any:
        if hasattr(value, "to_named_tuple"):
            return _as_json(value)
        if isinstance(value, list | tuple):
            return list(map(plain, value))
        return value

    fields = {"dp_event": type(event).__name__}
    for attribute in type(event).__attrs_attrs__:
        fields[attribute.name] = plain(getattr(event, attribute.name))
    return fields

"""What a ledger charges: mechanisms as events state them, and what sampling, groups and choices make of them.

An event is stated for one unit and relation. `converted` restates it for another, or says why that is impossible.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fdaudit.accounting.losses.participation import toeplitz_sensitivity
from fdaudit.errors import IntegrityError
from fdaudit.events import (
    Composed,
    CorrelatedGaussian,
    DiscreteLaplace,
    DrawnGaussian,
    EventUnit,
    Gaussian,
    Laplace,
    Mechanism,
    NoGuarantee,
    PureDP,
    Relation,
    Release,
    SampledGaussian,
    event_from_json,
    event_to_json,
)
from fdaudit.limits import MOST_COUNT

__all__ = [
    "Charge",
    "Charges",
    "Drawn",
    "Grouped",
    "Selected",
    "charges_from_json",
    "charges_to_json",
    "converted",
    "grouped",
    "parts_of",
    "pure_each",
    "signal_to_noise",
]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """`steps` Gaussian releases, each of `drawn` clients that are drawn at random from `clients`; the draws are secret.

    The draws are fresh, uniform and without replacement. Each release is a sum over the drawn clients under one noise.
    Every client adds to it by the same rule, so the contributions of any two clients differ by at most the sensitivity:
    a clip of half the sensitivity bounds all of them.
    """

    gaussian: Gaussian
    clients: int
    steps: int
    drawn: int = 1

    @property
    def rate(self) -> float:
        """Return the probability that a client is drawn at a step."""
        return self.drawn / self.clients

    @property
    def noise(self) -> float:
        """Return the noise over the sensitivity of the one Gaussian release that a step's releases add up to."""
        return self.gaussian.scale / (self.gaussian.sensitivity * math.sqrt(self.gaussian.count))


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """Sums over Poisson samples of records, `size` of which are added or removed together."""

    event: SampledGaussian
    size: int

    @property
    def count(self) -> int:
        """Return the number of sums."""
        return self.event.count

    @property
    def loudest(self) -> SampledGaussian:
        """Return a mechanism of one record that dominates this one: the whole group takes part if one of it does.

        A shift of a mixture's Gaussians to larger means only makes the pair easier to tell apart (Choquette-Choo,
        Ganesh, Steinke & Thakurta 2024).
        """
        rate = -math.expm1(self.size * math.log1p(-self.event.sample_rate))
        return replace(self.event, sample_rate=rate, sensitivity=self.size * self.event.sensitivity)


@dataclass(frozen=True, kw_only=True)
class Selected:
    """The best of several runs with the same charges; their number is geometric with mean `mean`, and secret."""

    charges: tuple[tuple[Mechanism | Drawn | Grouped, int], ...]
    mean: float


Charge = Mechanism | Drawn | Grouped | Selected
Charges = Mapping[Charge, int]
"""Mechanisms, and how often each is charged."""


def pure_each(charge: Charge) -> float:
    """Return the pure ε of one run, or infinity if it has none."""
    if isinstance(charge, PureDP):
        return charge.epsilon
    if isinstance(charge, Laplace | DiscreteLaplace):
        return charge.sensitivity / charge.scale
    return math.inf


def signal_to_noise(charge: Gaussian | SampledGaussian, times: int) -> float:
    """Return the sensitivity over the noise of one Gaussian release that reveals as much as so many of these."""
    return math.sqrt(times * charge.count) * charge.sensitivity / charge.scale


def parts_of(event: Release) -> tuple[Mechanism, ...]:
    """Return the mechanisms of a release."""
    return event.parts if isinstance(event, Composed) else (event,)


def converted(
    event: Release, unit: EventUnit, relation: Relation, *, coins: bool = False
) -> Release | NoGuarantee:
    """Return the event restated for another unit and relation, or the reason why this is impossible.

    If clients take part by coins or a draw, a view of the messages shows who takes part. Coins count only if `coins`
    says so. A draw is no part of a restated event: see `Drawn`. Correlated noise is restated as one Gaussian release.

    A bound for an arbitrary change of all of a client's data (`client`, `replace-one`) also holds for any change in one
    record. Removing one record and adding another are two steps: their sensitivities add up.
    """
    if isinstance(event, Composed):
        parts = []
        for mechanism in event.parts:
            part = converted(mechanism, unit, relation, coins=coins)
            if isinstance(part, NoGuarantee):
                return part
            parts.append(part)
        return Composed(parts=tuple(parts))  # type: ignore[arg-type]
    if isinstance(event, SampledGaussian) and event.unit == "client" and event.sample_rate < 1 and not coins:
        # Without sampling, replacing moves the sum by twice what one client adds.
        both = 2 if event.relation == "replace-one" else 1
        event = replace(event, sample_rate=1.0, sensitivity=both * event.sensitivity)
    if isinstance(event, DrawnGaussian | CorrelatedGaussian):
        contributions = 1.0
        if isinstance(event, CorrelatedGaussian):
            # Participations in several steps of correlated noise exceed one contribution.
            contributions = toeplitz_sensitivity(
                event.bands, event.steps, event.separation, event.participations
            )
        event = Gaussian(
            sensitivity=event.sensitivity * contributions,
            scale=event.scale,
            count=event.count,
            unit=event.unit,
            relation=event.relation,
            covers=event.covers,
        )
    stated = f"{type(event).__name__} is stated for {event.unit}, {event.relation}"
    if (event.unit, event.relation) == (unit, relation):
        return event
    if unit == "client" and event.unit == "record":
        return NoGuarantee(reason=f"{stated}: a client holds many records")
    if event.relation == "replace-one":
        if event.unit == "client" and unit == "record":
            return replace(event, unit=unit, relation=relation)
        return NoGuarantee(reason=f"{stated}: what changes when one is removed was not bounded")
    if relation == "add-or-remove" and event.unit == "client":
        return NoGuarantee(reason=f"{stated}: a change of one record is no removal of a client")
    if isinstance(event, SampledGaussian) and event.sample_rate == 1:
        return replace(event, unit=unit, relation=relation, sensitivity=2 * event.sensitivity)
    if isinstance(event, SampledGaussian):
        return replace(event, unit=unit, relation=relation)  # priced as a replacement, not as two removals
    if isinstance(event, PureDP):
        return replace(event, unit=unit, relation=relation, epsilon=2 * event.epsilon)
    return replace(event, unit=unit, relation=relation, sensitivity=2 * event.sensitivity)


def grouped(part: Mechanism, size: int) -> Charge | NoGuarantee:
    """Return what `size` records that change together cost, given a mechanism stated for one record.

    Source: Vadhan 2017, Lemma 2.2, for pure ε. Sensitivities add up; a Gaussian's are those of one mean.
    """
    if size == 1:
        return part
    if isinstance(part, PureDP):
        return replace(part, epsilon=size * part.epsilon)
    if isinstance(part, SampledGaussian) and part.sample_rate < 1:
        if part.relation == "replace-one":
            return NoGuarantee(
                reason="with sampling, a replaced group is not accounted for: add or remove it"
            )
        return Grouped(event=part, size=size)
    return replace(part, sensitivity=size * part.sensitivity)


def charges_to_json(charges: Charges) -> list[dict[str, Any]]:
    """Return charges as JSON objects, each with its number of `times`."""
    return [{"times": n, "charge": _charge_to_json(charge)} for charge, n in charges.items()]


def charges_from_json(value: object) -> dict[Charge, int]:
    """Return the charges that `charges_to_json` wrote.

    Raises:
        IntegrityError: the value is no list of charges, or a charge has impossible parameters.
    """
    charges: dict[Charge, int] = {}
    try:
        if not isinstance(value, list):
            raise TypeError("charges are no list")
        for entry in value:
            times = entry["times"]
            if type(times) is not int or not 1 <= times <= MOST_COUNT or set(entry) != {"times", "charge"}:
                raise ValueError(f"times = {times!r:.80} is no number of charges")
            charge = _charge_from_json(entry["charge"])
            charges[charge] = charges.get(charge, 0) + times
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise IntegrityError([f"charges are malformed: {type(error).__name__}: {error}"]) from None
    return charges


def _charge_to_json(charge: Charge) -> dict[str, Any]:
    if isinstance(charge, Drawn):
        sizes = {"clients": charge.clients, "steps": charge.steps, "drawn": charge.drawn}
        return {"event": "Drawn", "of": event_to_json(charge.gaussian), **sizes}
    if isinstance(charge, Grouped):
        return {"event": "Grouped", "of": event_to_json(charge.event), "size": charge.size}
    if isinstance(charge, Selected):
        return {"event": "Selected", "of": charges_to_json(dict(charge.charges)), "mean": charge.mean}
    return event_to_json(charge)


def _charge_from_json(value: dict[str, Any]) -> Charge:
    what = value["event"]
    if what == "Selected":
        return Selected(charges=tuple(charges_from_json(value["of"]).items()), mean=float(value["mean"]))  # type: ignore[arg-type]
    stated = value["of"] if what in ("Drawn", "Grouped") else value
    event = event_from_json(stated)
    if isinstance(event, NoGuarantee | Composed):
        raise ValueError(f"{what} is no single mechanism")
    if what == "Drawn":
        sizes = {name: _count(value, name) for name in ("clients", "drawn", "steps")}
        if not isinstance(event, Gaussian) or sizes["drawn"] > sizes["clients"]:
            raise ValueError("Drawn is no draw of clients under Gaussian noise")
        return Drawn(gaussian=event, **sizes)
    if what == "Grouped":
        if not isinstance(event, SampledGaussian):
            raise ValueError("Grouped is of no sampled Gaussian")
        return Grouped(event=event, size=_count(value, "size"))
    return event


def _count(value: dict[str, Any], name: str) -> int:
    number = value[name]
    if type(number) is not int or not 1 <= number <= MOST_COUNT:
        raise ValueError(f"{name} = {number!r:.80} is no count")
    return number

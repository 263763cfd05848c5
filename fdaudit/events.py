"""Privacy events: a defence's action, separate from its cost.

An event states an absolute sensitivity for one neighbouring relation and unit. It also states what it *covers*: the
inputs of its message whose arbitrary change for one unit the sensitivity bounds, with all else fixed. What the sender
was sent is fixed at any values, unless the event names in `trusts` who must send what the protocol says. Accountants
compute the cost of an event; this module imports none.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from fdaudit.errors import IntegrityError
from fdaudit.limits import MOST_COUNT, MOST_PARTS

__all__ = [
    "Composed",
    "CorrelatedGaussian",
    "Covers",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "DrawnGaussian",
    "Event",
    "EventUnit",
    "Gaussian",
    "Laplace",
    "Mechanism",
    "NoGuarantee",
    "PureDP",
    "Relation",
    "Release",
    "SampledGaussian",
    "Unit",
    "event_from_json",
    "event_to_json",
]

_LEAST = 1e-60
"""The least sensitivity, scale or ε that is read from a file; the largest is its inverse, whose square is finite."""

_MOST_ENTRIES, _MOST_WORK = 4_000_000, 1_000_000_000
"""Most bands times steps of correlated noise, and most of these times participations: an event may be a stranger's."""

EventUnit = Literal["record", "client"]
"""What the sensitivity of an event is stated for."""
Unit = Literal["record", "group", "client"]
"""What a ledger protects: a record, all records of one group (a picture, a person), or all data of a client."""
Relation = Literal["add-or-remove", "replace-one"]
Cover = Literal["data", "messages", "each-client"]
Covers = tuple[str, ...]
"""Which of a message's inputs the sensitivity bounds: `data`, the sender's own records; `messages`, all messages
among them; `each-client`, the messages of one client among them, whichever it is, all others fixed."""


@dataclass(frozen=True, kw_only=True)
class NoGuarantee:
    """The message carries no privacy guarantee, for a stated reason; its ε is infinite."""

    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError("NoGuarantee: reason is empty. Say what is missing.")


@dataclass(frozen=True, kw_only=True)
class _Mechanism:
    """`count` independent runs of one mechanism, with parameters that were fixed before the data were seen."""

    unit: EventUnit
    relation: Relation
    covers: Covers
    count: int = 1
    trusts: tuple[str, ...] = ()
    """Roles, besides the sender's, whose messages must follow the protocol for the sensitivity to hold. Empty: it holds
    whatever the sender was sent."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.unit not in get_args(EventUnit) or self.relation not in get_args(Relation):
            raise ValueError(f"{name}: unit {self.unit!r} or relation {self.relation!r} is not known.")
        if type(self.count) is not int or not 1 <= self.count <= MOST_COUNT:
            raise ValueError(f"{name}: count = {self.count} must be a whole number from 1 to {MOST_COUNT:,}.")
        if not self.covers or not set(self.covers) <= set(get_args(Cover)):
            raise ValueError(f"{name}: covers = {self.covers} must name some of {get_args(Cover)}.")
        if not all(isinstance(who, str) and who and "/" not in who for who in self.trusts):
            raise ValueError(f"{name}: trusts = {self.trusts} must name roles, such as server.")

    def _positive(self, *fields: str) -> None:
        for field in fields:
            value = getattr(self, field)
            if not 0 < value < float("inf"):
                raise ValueError(f"{type(self).__name__}: {field} = {value} must be positive and finite.")


@dataclass(frozen=True, kw_only=True)
class _Noise(_Mechanism):
    """An additive-noise release: `scale` in units of the released values, `sensitivity` absolute."""

    sensitivity: float
    scale: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("sensitivity", "scale")


@dataclass(frozen=True, kw_only=True)
class Gaussian(_Noise):
    """Gaussian noise of standard deviation `scale` on a value of ℓ2 sensitivity `sensitivity`.

    With `drawn_from` above 1, the sender was drawn uniformly from that many clients at this step, independently of
    their data. Views that do not show which client was drawn may use this randomness.
    """

    drawn_from: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.drawn_from) is not int or self.drawn_from < 1:
            raise ValueError(f"Gaussian: drawn_from = {self.drawn_from} must be a whole number from 1 on.")


@dataclass(frozen=True, kw_only=True)
class Laplace(_Noise):
    """Laplace noise of scale `scale` on a value of ℓ1 sensitivity `sensitivity`."""


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussian(_Noise):
    """Discrete Gaussian noise of parameter `scale` on whole numbers of ℓ2 sensitivity `sensitivity`.

    Source: Canonne, Kamath & Steinke 2020, Theorem 4: its Rényi divergences are at most the Gaussian's.
    """


@dataclass(frozen=True, kw_only=True)
class DiscreteLaplace(_Noise):
    """Discrete Laplace noise of scale `scale` on whole numbers of ℓ1 sensitivity `sensitivity`."""


@dataclass(frozen=True, kw_only=True)
class PureDP(_Mechanism):
    """A mechanism described only by its pure ε: `epsilon` per run."""

    epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("epsilon")


@dataclass(frozen=True, kw_only=True)
class SampledGaussian(_Noise):
    """Gaussian noise on a sum over records, each included by a coin of probability `sample_rate`.

    `sensitivity` is the most that one record adds to the sum, `scale` the standard deviation of the noise, and `count`
    the number of such sums (steps). The coins are independent, secret, and drawn again for each sum (Poisson sampling).
    """

    sample_rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.sample_rate <= 1:
            raise ValueError(f"SampledGaussian: sample_rate = {self.sample_rate} must lie in (0, 1].")


@dataclass(frozen=True, kw_only=True)
class DrawnGaussian(_Noise):
    """Gaussian noise on a sum over `drawn` of `clients` clients, drawn uniformly without replacement.

    `sensitivity` is the most by which the sum moves if the data of one client in it are replaced: twice the clip.
    `count` is the number of such sums. Draws are independent of data, secret, and made again for each sum. A draw of a
    fixed size is stated for replaced clients only: without one client, another one would be drawn.
    """

    drawn: int
    clients: int

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = type(self.drawn) is int and type(self.clients) is int
        if not whole or not 1 <= self.drawn <= self.clients:
            raise ValueError(f"DrawnGaussian: drawn = {self.drawn} of clients = {self.clients} is no draw.")
        if (self.unit, self.relation) != ("client", "replace-one"):
            raise ValueError(
                f"DrawnGaussian: {self.unit}, {self.relation} is not accounted for. State client, replace-one."
            )


@dataclass(frozen=True, kw_only=True)
class CorrelatedGaussian(_Noise):
    """Gaussian noise that is correlated over the steps of one training (DP-FTRL, matrix factorisation).

    The training releases x + C^-1 z for the sums x of its steps. C is lower triangular with `bands` on its diagonal and
    below, the same in every column. `scale` is the standard deviation of z, `sensitivity` the most that one
    participation moves a step's sum. A unit takes part in at most `participations` of the `steps`, any two at least
    `separation` apart, and this was fixed without the data. `count` is the number of such trainings, with noise of
    their own. All steps are one event: releases that share noise cannot be charged one by one.

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization".
    """

    bands: tuple[float, ...]
    steps: int
    separation: int
    participations: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.bands or not all(isinstance(c, int | float) and abs(c) <= 1 / _LEAST for c in self.bands):
            raise ValueError("CorrelatedGaussian: bands must be finite numbers, one at least.")
        if self.bands[0] == 0:
            raise ValueError("CorrelatedGaussian: bands[0] = 0 has no inverse. Give the diagonal first.")
        for field in ("steps", "separation", "participations"):
            value = getattr(self, field)
            if type(value) is not int or not 1 <= value <= MOST_COUNT:
                raise ValueError(f"CorrelatedGaussian: {field} = {value} must be a whole number from 1 on.")
        times = min(self.participations, -(-self.steps // self.separation))
        if len(self.bands) * self.steps > _MOST_ENTRIES or times * self.steps * len(self.bands) > _MOST_WORK:
            problem = f"{len(self.bands)} bands, {self.steps} steps and {times} participations are too many"
            raise ValueError(f"CorrelatedGaussian: {problem}. Give the sensitivity as one Gaussian.")


Mechanism = (
    Gaussian
    | Laplace
    | DiscreteGaussian
    | DiscreteLaplace
    | PureDP
    | SampledGaussian
    | DrawnGaussian
    | CorrelatedGaussian
)
"""A mechanism with a guarantee."""


@dataclass(frozen=True, kw_only=True)
class Composed:
    """Several different mechanisms behind one message; all have the same unit, relation and cover."""

    parts: tuple[Mechanism, ...]

    def __post_init__(self) -> None:
        promises = set[tuple[EventUnit, Relation, Covers]]()
        for part in self.parts:
            promises.add((part.unit, part.relation, part.covers))
        if len(promises) != 1:
            raise ValueError("Composed: parts must be there, with one unit, one relation and one cover.")

    @property
    def unit(self) -> EventUnit:
        """Return the unit, which all parts have in common."""
        return self.parts[0].unit

    @property
    def relation(self) -> Relation:
        """Return the relation, which all parts have in common."""
        return self.parts[0].relation

    @property
    def covers(self) -> Covers:
        """Return the covered inputs, which all parts have in common."""
        return self.parts[0].covers

    @property
    def trusts(self) -> tuple[str, ...]:
        """Return the roles that some part trusts."""
        roles: dict[str, None] = {}
        for part in self.parts:
            roles |= dict.fromkeys(part.trusts)
        return tuple(roles)


Release = Mechanism | Composed
"""An event with a guarantee."""
Event = NoGuarantee | Release
_MECHANISMS: dict[str, type[Mechanism]] = {c.__name__: c for c in get_args(Mechanism)}


def event_to_json(event: Event) -> dict[str, Any]:
    """Return the event as a JSON object whose `event` member names its class."""
    if isinstance(event, Composed):
        return {"event": "Composed", "parts": list(map(event_to_json, event.parts))}
    value = {"event": type(event).__name__, **asdict(event)}
    if not value.get("trusts", True):
        del value["trusts"]  # most events trust nobody
    return value


def event_from_json(value: dict[str, Any]) -> Event:
    """Return the event that `event_to_json` wrote.

    Raises:
        IntegrityError: the object names no known event or carries impossible parameters.
    """
    name = value.get("event") if isinstance(value, dict) else None
    names = sorted([*_MECHANISMS, "Composed", "NoGuarantee"])
    if not isinstance(name, str) or name not in names:
        raise IntegrityError([f"event {name!r} is not one of {names}"])
    fields = {k: v for k, v in value.items() if k != "event"}
    try:
        if name == "Composed":
            parts = fields.pop("parts")
            if type(parts) is not list or len(parts) > MOST_PARTS:
                raise ValueError(f"parts is no list of at most {MOST_PARTS} mechanisms")
            return Composed(parts=tuple(map(_mechanism, parts)), **fields)
        return NoGuarantee(**fields) if name == "NoGuarantee" else _mechanism(value)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise IntegrityError([f"event {name} is malformed: {error}"]) from error


def _mechanism(value: dict[str, Any]) -> Mechanism:
    fields = dict(value)
    fields.pop("event", None)
    for name in ("covers", "bands", "trusts"):
        if name in fields:
            fields[name] = tuple(fields[name])
    event = _MECHANISMS[value["event"]](**fields)
    for name in ("sensitivity", "scale", "epsilon"):
        if not _LEAST <= fields.get(name, 1.0) <= 1 / _LEAST:
            raise ValueError(f"{name} = {fields[name]} is not from {_LEAST} to {1 / _LEAST}")
    return event

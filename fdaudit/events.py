"""Privacy events: what a defence did, apart from what it costs.

An event states an absolute sensitivity for one neighbouring relation and unit, and what it *covers*: the
inputs of its message whose arbitrary change for one unit its sensitivity bounds, all else fixed. What an
event costs is worked out elsewhere; nothing here imports an accountant.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from fdaudit.errors import IntegrityError

__all__ = [
    "Event",
    "Gaussian",
    "Laplace",
    "NoGuarantee",
    "Relation",
    "Unit",
    "event_from_json",
    "event_to_json",
]

Unit = Literal["record", "client"]
Relation = Literal["add-or-remove", "replace-one"]
Covers = tuple[str, ...]
"""`("data",)`, `("messages",)` or both: which classes of the message's inputs the sensitivity bounds."""


@dataclass(frozen=True, kw_only=True)
class NoGuarantee:
    """The message carries no privacy guarantee, for a stated reason; its ε is infinite."""

    reason: str

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError("NoGuarantee: reason is empty. Say what is missing.")


@dataclass(frozen=True, kw_only=True)
class _Noise:
    """An additive-noise release: `scale` in units of the released values, `sensitivity` absolute."""

    sensitivity: float
    scale: float
    unit: Unit
    relation: Relation
    covers: Covers
    count: int = 1

    def __post_init__(self) -> None:
        name = type(self).__name__
        for field in ("sensitivity", "scale"):
            value = getattr(self, field)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name}: {field} = {value} must be positive and finite.")
        if self.unit not in get_args(Unit) or self.relation not in get_args(Relation):
            raise ValueError(f"{name}: unit {self.unit!r} or relation {self.relation!r} is not known.")
        if not isinstance(self.count, int) or self.count < 1:
            raise ValueError(f"{name}: count = {self.count} must be a whole number from 1 on.")
        if not self.covers or not set(self.covers) <= {"data", "messages"}:
            raise ValueError(f"{name}: covers = {self.covers} must name 'data', 'messages' or both.")


@dataclass(frozen=True, kw_only=True)
class Gaussian(_Noise):
    """Gaussian noise of standard deviation `scale` on a value of ℓ2 sensitivity `sensitivity`."""


@dataclass(frozen=True, kw_only=True)
class Laplace(_Noise):
    """Laplace noise of scale `scale` on a value of ℓ1 sensitivity `sensitivity`."""


Event = NoGuarantee | Gaussian | Laplace
_EVENTS: dict[str, type[Event]] = {c.__name__: c for c in (NoGuarantee, Gaussian, Laplace)}


def event_to_json(event: Event) -> dict[str, Any]:
    """The event as a JSON object whose `event` member names its class."""
    return {"event": type(event).__name__, **asdict(event)}


def event_from_json(value: dict[str, Any]) -> Event:
    """The event that `event_to_json` wrote.

    Raises:
        IntegrityError: the object names no known event or carries impossible parameters.
    """
    name = value.get("event") if isinstance(value, dict) else None
    if not isinstance(name, str) or name not in _EVENTS:
        raise IntegrityError([f"event {name!r} is not one of {sorted(_EVENTS)}"])
    fields = {k: v for k, v in value.items() if k != "event"}
    try:
        if "covers" in fields:
            fields["covers"] = tuple(fields["covers"])
        return _EVENTS[name](**fields)
    except (TypeError, ValueError, AttributeError) as error:
        raise IntegrityError([f"event {name} is malformed: {error}"]) from error

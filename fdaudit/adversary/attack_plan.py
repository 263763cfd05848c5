"""One attack of a run, with its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["AttackPlan"]


@dataclass(frozen=True, eq=False)
class AttackPlan:
    """One attack. Its code is loaded where it is run, not here.

    Attributes:
        name: its public name.
        card: its docstring and literal attributes.
        target: where its class is, as `"module:Class"`.
        own: whether it is fdaudit's own; others run apart from these and from each other.
        params: its settings; None where the spec does not ask for it.
        adversaries: whose views it is run on.
    """

    name: str
    card: Mapping[str, Any]
    target: str
    own: bool
    params: Mapping[str, Any] | None
    adversaries: tuple[str, ...]

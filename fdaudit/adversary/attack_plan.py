"""One attack of a run, with its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fdaudit.registry import AttackCard

__all__ = ["AttackPlan"]


@dataclass(frozen=True, eq=False)
class AttackPlan:
    """One attack. Its code is loaded in the process that runs it, not here.

    Attributes:
        name: its public name.
        card: its card.
        target: import path of its class, as `"module:Class"`.
        own: whether it is fdaudit's own; third-party attacks run in processes separate from these and from each other.
        params: its settings; None if the spec does not ask for it.
        adversaries: the adversaries whose views it runs on.
        asked: the name that it was asked for by, which may be `import:module:Class`; empty if it is `name`.
        left_out: why a budget of time does not hold it, by adversary.
    """

    name: str
    card: AttackCard
    target: str
    own: bool
    params: Mapping[str, Any] | None
    adversaries: tuple[str, ...]
    asked: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)

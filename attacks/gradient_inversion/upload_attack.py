"""The shared part of attacks on uploads: the check that they apply, and each victim's reading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from torch import nn

from fdaudit.errors import UsageError
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability, AttackTask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["UploadAttack"]

R = TypeVar("R")
"""What an attack reads of one victim. Never a string, which is a reason why there is nothing to read."""


class UploadAttack(ABC, Generic[R]):
    """An attack that needs a network, and of each victim an upload that it can read."""

    card: ClassVar[AttackCard]

    # -- what a subclass says -------------------------------------------------------------------------------

    @abstractmethod
    def network(self, knowledge: Knowledge) -> nn.Module | str:
        """Return the network in the mode that the attack needs, or the reason why there is none."""

    @abstractmethod
    def read(self, view: View, knowledge: Knowledge, target: str) -> R | str:
        """Return what the attack reads of a victim, or the reason why there is nothing."""

    def missing(self, module: nn.Module, knowledge: Knowledge) -> str:
        """Return what else the attack needs and does not have, as a reason, or an empty string."""
        return ""

    # -- what they share ------------------------------------------------------------------------------------

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a suitable network, a victim's upload, and the model that it started from."""
        module = self.network(knowledge)
        reason = module if isinstance(module, str) else self.missing(module, knowledge)
        if reason:
            return Applicability(False, reason)
        readings, reasons = self.readings(view, knowledge, task)
        if readings:
            return Applicability(True)
        # Each reason once, with all its clients.
        targets_of: dict[str, list[str]] = {}
        for target, reason in reasons.items():
            targets_of.setdefault(reason, []).append(target)
        lines = [f"{', '.join(targets)}: {reason}" for reason, targets in targets_of.items()]
        return Applicability(False, "; ".join(lines) or "no victim is named")

    def readings(
        self, view: View, knowledge: Knowledge, task: AttackTask
    ) -> tuple[Mapping[str, R], Mapping[str, str]]:
        """Return the readings of victims, and the reasons of those without one."""
        readings: dict[str, R] = {}
        reasons: dict[str, str] = {}
        for target in task.targets:
            reading = self.read(view, knowledge, target)
            if isinstance(reading, str):
                reasons[target] = reading
            else:
                readings[target] = reading
        return readings, reasons

    def checked_network(self, knowledge: Knowledge) -> nn.Module:
        """Return the network of an adversary to whom the attack applies.

        Raises:
            UsageError: it does not apply.
        """
        module = self.network(knowledge)
        reason = module if isinstance(module, str) else self.missing(module, knowledge)
        if isinstance(module, str) or reason:
            raise UsageError("knowledge", None, f"does not do: {reason}", "Ask `applicable` first.")
        return module

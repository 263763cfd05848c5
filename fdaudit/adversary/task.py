"""The contract of attacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import torch

    from fdaudit import config as settings
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.goals import Guess
    from fdaudit.registry import AttackCard
    from fdaudit.types import Applicability, AttackTask

__all__ = ["Attack"]


class Attack(Protocol):
    """An attack: a card, a frozen config, a statement whether it applies, and guesses."""

    card: ClassVar[AttackCard]
    Config: ClassVar[type[settings.Config]]

    def __init__(self, config: Any) -> None: ...

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Return whether the attack applies, with a reason if not."""
        ...

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> Sequence[Guess]:
        """Return guesses; `generator` is the only source of randomness."""
        ...

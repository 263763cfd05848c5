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
    from fdaudit.types import Applicability, AttackTask

__all__ = ["Attack"]


class Attack(Protocol):
    """An attack: a frozen config, a statement whether it applies, and guesses.

    The class attributes are plain literals: `name`, the `goal` of its guesses, the kinds of messages that it `needs`,
    what it `assumes` an adversary to know, its `source`, and its settings under each of `profiles`. An attack may also
    declare the kinds that it `reads` besides, where they are in view, `oracle` (`soft` or `hard`), `tasks` (default:
    single-label only), `control`, and its `work`, which the estimate of the attack stage reads
    (`fdaudit.evaluation.estimate.Work`). A private kind that no attack needs or reads leaves a view "not tested".
    """

    name: ClassVar[str]
    goal: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    assumes: ClassVar[tuple[str, ...]]
    source: ClassVar[str]
    profiles: ClassVar[dict[str, dict[str, Any]]]
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

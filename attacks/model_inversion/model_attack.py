"""The shared parts of model inversion: attacks that query models, and attacks on models in view."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field

from fdaudit.config import Config
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.registry import AttackCard
from fdaudit.storage.cache import computed_once
from fdaudit.types import Applicability, AttackTask

from .victims import Askable, askable, card_of, invertible, models_in_view, of_classes, wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

    Invert = Callable[[torch.Generator], Mapping[str, Tensor]]

__all__ = ["QueriesConfig", "QueryAttack", "ViewedModelAttack"]


class QueriesConfig(Config):
    """Settings of the queries."""

    queries: int = Field(100_000, ge=1)
    """Largest number of queries a model, even with a larger budget."""
    least_queries: int = Field(500, ge=1)
    """The attack is not run with fewer queries a model."""


class QueryAttack(ABC):
    """An attack that queries each victim's own model if clients answer, else the released one for all victims."""

    card: ClassVar[AttackCard]
    config: QueriesConfig

    def missing(self, knowledge: Knowledge) -> str:
        """Return what the attack needs and does not have, as a reason, or an empty string."""
        return ""

    @abstractmethod
    def invert(
        self, model: Askable, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> list[Reconstruction]:
        """Return the guesses about one model, a guess for each victim that it stands for."""

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a model that answers within the budget, as an oracle or in view."""
        return self._askable(view, knowledge, task)[1]

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Reconstruction, ...]:
        """Return one image of every class for each victim; guesses of classes name no message."""
        models, verdict = self._askable(view, knowledge, task)
        if not models:
            raise _misapplied(self.card.name, verdict)
        guesses = list[Reconstruction]()
        for model in models:
            guesses += self.invert(model, knowledge, task, generator)
        return tuple(guesses)

    def _askable(
        self, view: View, knowledge: Knowledge, task: AttackTask
    ) -> tuple[list[Askable], Applicability]:
        if reason := self.missing(knowledge):
            return [], Applicability(False, reason)
        least = self.config.least_queries
        most = max(least, self.config.queries)
        return askable(str(self.card.oracle), view, knowledge, task, least=least, most=most)


class ViewedModelAttack(ABC):
    """An attack on models in view through a GAN of auxiliary images: each victim's own model, or the shared one."""

    card: ClassVar[AttackCard]
    config: Config

    @property
    @abstractmethod
    def evaluations(self) -> int:
        """Return the number of gradients spent on an image."""

    @abstractmethod
    def search(
        self, model: nn.Module, images: Tensor, classes: Tensor, knowledge: Knowledge
    ) -> tuple[Sequence[Tensor], Invert]:
        """Return the search for the `images` of classes and their `objective`, and what else determines it.

        Args:
            model: the network with the parameters in view, in evaluation mode.
            images: (n, c, h, w) auxiliary ones.
            classes: (k,) classes to reconstruct.
            knowledge: the adversary's other knowledge.
        """

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a model in view, its architecture, and auxiliary images large enough for a GAN."""
        return invertible(view, knowledge, task)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Reconstruction, ...]:
        """Return one image of every class for each victim; guesses of classes name no message."""
        verdict = invertible(view, knowledge, task)
        if not verdict or knowledge.auxiliary is None or knowledge.train is None:
            raise _misapplied(self.card.name, verdict)
        images, classes = knowledge.auxiliary[0], wanted(knowledge, task)
        card = card_of(self.card.name, self.config, knowledge)
        guesses = list[Reconstruction]()
        for parameters, targets in models_in_view(view, task.targets):
            model = knowledge.train.network(parameters).eval().requires_grad_(False)
            others, invert = self.search(model, images, classes, knowledge)
            inversion = computed_once(card, [parameters, images, *others, classes], invert)
            guesses += of_classes(
                targets,
                inversion["images"],
                classes,
                objective=float(inversion["objective"]),
                evaluations=self.evaluations,
            )
        return tuple(guesses)


def _misapplied(name: str, verdict: Applicability) -> ValueError:
    return ValueError(f"{name}: run on a view to which it does not apply: {verdict.reason}.")

"""One victim of an attack that compares soft answers with those of shadow models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.types import AttackTask

from .._target_model import BlackBox, asked, log_likelihood
from ._references import References, ShadowConfig, matched_references, references
from ._statistics import confidence
from ._treatment import Treatment, treatments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters


__all__ = ["CandidateAnswers", "cases", "probabilities"]


@dataclass(frozen=True, kw_only=True, eq=False)
class CandidateAnswers:
    """A victim's candidates, with the answers of the target and of shadow models.

    Attributes:
        target: the victim's model, as a queried model.
        treatment: the effects of defences on its answers.
        repeats: number of repeated queries to average, if answers are noisy.
        besides: number of population records that may be queried.
        x: (n, c, h, w) candidates.
        y: (n,) or (n, C).
        inside: (m, n) which shadow models hold which candidate.
        references: the shadow models.
        knowledge: with the training core that evaluates them.
        floor: smallest probability that differs from 0.
    """

    target: BlackBox
    treatment: Treatment
    repeats: int
    besides: int
    x: Tensor
    y: Tensor
    inside: Tensor
    references: References
    knowledge: Knowledge
    floor: float

    def likelihood(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p_y of records under the target (n,), and under the shadow models (m, n); float64."""
        mine, theirs = self._answers(x)
        shadows = torch.stack([log_likelihood(p, y, self.floor) for p in theirs])
        return log_likelihood(mine, y, self.floor), shadows

    def confidence(self) -> tuple[Tensor, Tensor]:
        """Return φ of the candidates under the target (n,), and under the shadow models (m, n); float64."""
        mine, theirs = self._answers(self.x)
        shadows = torch.stack([confidence(p, self.y, self.floor) for p in theirs])
        return confidence(mine, self.y, self.floor), shadows

    def _answers(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        return self._heard(x), [probabilities(self.knowledge, p, x) for p in self.references.models]

    def _heard(self, x: Tensor) -> Tensor:
        """Return the target's probabilities (n, C), with defences undone where possible and noise averaged."""
        times = self.repeats if self.treatment.noisy else 1
        answers = torch.stack([self.target(x).double() for _ in range(times)]).mean(0)
        plain = self.treatment == Treatment()
        return answers if plain or not self.target.labels.one_class else self.treatment.probabilities(answers)


def cases(
    view: View,
    knowledge: Knowledge,
    task: AttackTask,
    config: ShadowConfig,
    *,
    repeats: int,
    besides: int,
    floor: float,
) -> Mapping[str, CandidateAnswers]:
    """Return each victim's case; the oracle's budget is divided equally.

    Args:
        view: the adversary's view.
        knowledge: its other knowledge.
        task: with the challenges and an oracle handle, if there is one.
        config: of the shadow models: matched to a victim whose own model is queried, else one set for all.
        repeats: largest number of queries of the same sample.
        besides: largest number of population records queried for each victim.
        floor: smallest probability before a logarithm.

    Raises:
        ValueError: a victim has no model that can be queried.
    """
    by_target: dict[str, CandidateAnswers] = {}
    shared: References | None = None
    candidates = sum(len(c.y) for c in task.challenges.values())
    for name, challenge in task.challenges.items():
        target, refused = asked("soft", view, knowledge, task, name)
        if target is None:
            raise ValueError(f"run on a view to which it does not apply: {refused.reason}.")
        if target.of is not None:
            start = None if target.start is None else dict(target.start)
            shadows = matched_references(view, knowledge, challenge, config, start)
        else:
            shadows = shared = shared or references(view, knowledge, task, config)
        more = min(besides, len(shadows.population[1]))
        more = max(min(more, (target.remaining - candidates) // len(task.challenges)), 0)
        treated = treatments(view, name) if target.oracle is not None and target.of else Treatment()
        times = target.remaining // (candidates + more * len(task.challenges))
        by_target[name] = CandidateAnswers(
            target=target,
            treatment=treated,
            repeats=max(1, min(repeats, times)),
            besides=more,
            x=challenge.x,
            y=challenge.y,
            inside=shadows.candidates[name],
            references=shadows,
            knowledge=knowledge,
            floor=max(floor, treated.floor),
        )
    return by_target


def probabilities(knowledge: Knowledge, parameters: Parameters, x: Tensor) -> Tensor:
    """Return probabilities (n, C) from a model of the adversary's own."""
    if knowledge.train is None:
        raise ValueError("probabilities: no training core to ask the model with.")
    z = knowledge.train.predict(parameters, x)
    return knowledge.task.labels.probabilities(z)

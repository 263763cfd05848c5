"""One victim of an attack that compares soft answers with those of shadow models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.types import AttackTask

from .._target_model import Asked, asked, log_likelihood
from ._references import References, ShadowConfig, matched_references, references
from ._statistics import confidence
from ._treatment import Treatment, treatments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters


__all__ = ["Case", "cases", "probabilities"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A victim's candidates, what the target answers, and what shadow models answer.

    Attributes:
        target: the victim's model, as it can be asked.
        treatment: what defences do to its answers.
        repeats: how often the same is asked and averaged, where answers are noisy.
        besides: population records that may be asked.
        x: (n, c, h, w) candidates.
        y: (n,) or (n, C).
        inside: (m, n) which shadow models hold which candidate.
        references: the shadow models.
        knowledge: with the training core that asks them.
        floor: smallest probability that is told from 0.
    """

    target: Asked
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
        """log p_y of records under the target (n,), and under the shadow models (m, n); float64."""
        mine, theirs = self._answers(x)
        return log_likelihood(mine, y, self.floor), torch.stack(
            [log_likelihood(p, y, self.floor) for p in theirs]
        )

    def confidence(self) -> tuple[Tensor, Tensor]:
        """φ of the candidates under the target (n,), and under the shadow models (m, n); float64."""
        mine, theirs = self._answers(self.x)
        return confidence(mine, self.y, self.floor), torch.stack(
            [confidence(p, self.y, self.floor) for p in theirs]
        )

    def _answers(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        return self._heard(x), [probabilities(self.knowledge, p, x) for p in self.references.models]

    def _heard(self, x: Tensor) -> Tensor:
        """The target's probabilities (n, C), undone of what can be undone, averaged where they are noisy."""
        times = self.repeats if self.treatment.noisy else 1
        answers = torch.stack([self.target(x).double() for _ in range(times)]).mean(0)
        plain = self.treatment == Treatment()
        return answers if plain or self.target.multi_label else self.treatment.probabilities(answers)


def cases(
    view: View,
    knowledge: Knowledge,
    task: AttackTask,
    config: ShadowConfig,
    *,
    repeats: int,
    besides: int,
    floor: float,
) -> Mapping[str, Case]:
    """Each victim's case; the oracle's budget is shared out evenly.

    Args:
        view: the adversary's view.
        knowledge: what it knows besides.
        task: with the challenges and an oracle handle, where there is one.
        config: of the shadow models: matched to a victim whose own model is asked, else one set for all.
        repeats: how often the same sample is asked, at most.
        besides: how many population records are asked for each victim, at most.
        floor: smallest probability before a logarithm.

    Raises:
        ValueError: there is nothing to ask about some victim.
    """
    found: dict[str, Case] = {}
    shared: References | None = None
    candidates = sum(len(c.y) for c in task.challenges.values())
    for name, challenge in task.challenges.items():
        target, refused = asked("soft", view, knowledge, task, name)
        if target is None:
            raise ValueError(f"run on a view to which it does not apply: {refused.reason}.")
        if target.of is not None:
            made = matched_references(view, knowledge, challenge, config, _copy(target.start))
        else:
            made = shared = shared or references(view, knowledge, task, config)
        more = min(besides, len(made.population[1]))
        more = max(min(more, (target.remaining - candidates) // len(task.challenges)), 0)
        treated = treatments(view, name) if target.oracle is not None and target.of else Treatment()
        times = target.remaining // (candidates + more * len(task.challenges))
        found[name] = Case(
            target=target,
            treatment=treated,
            repeats=max(1, min(repeats, times)),
            besides=more,
            x=challenge.x,
            y=challenge.y,
            inside=made.candidates[name],
            references=made,
            knowledge=knowledge,
            floor=max(floor, treated.floor),
        )
    return found


def _copy(start: Mapping[str, Tensor] | None) -> Parameters | None:
    return None if start is None else dict(start)


def probabilities(knowledge: Knowledge, parameters: Parameters, x: Tensor) -> Tensor:
    """What a model of the adversary's own answers: probabilities (n, C)."""
    if knowledge.train is None:
        raise ValueError("probabilities: no training core to ask the model with.")
    z = knowledge.train.predict(parameters, x)
    return z.sigmoid() if knowledge.task == "multi-label" else z.softmax(1)

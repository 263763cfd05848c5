"""Membership inference by the loss: models fit members better than held-out records."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import Field

from fdaudit.config import Config
from fdaudit.goals.membership import Membership
from fdaudit.registry import AttackCard
from fdaudit.tasks import labels_of
from fdaudit.training.objectives import ClientStep
from fdaudit.types import Applicability, AttackTask

from ._reading import reads_forms
from ._target_model import answerable, asked, log_likelihood, soft_dice

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["LossThreshold", "LossThresholdConfig"]


class LossThresholdConfig(Config):
    """Settings of the loss-threshold attack."""

    floor: float = Field(1e-12, gt=0, lt=1)
    """Smallest probability before the logarithm."""
    mask_loss: Literal["dice", "cross-entropy", "both"] = "dice"
    """Loss of a mask: 1 minus the soft Dice coefficient, the mean cross-entropy of its pixels, or their sum, by which
    local models are trained. Other records have one loss, whatever this says."""


@reads_forms
class LossThreshold:
    """Scores a candidate by minus its (binary) cross-entropy loss under the most revealing model.

    It queries a soft-label oracle if the adversary has one, once for each candidate: each victim's own model if clients
    answer, else the released one. Otherwise it evaluates the last model in its view. Thresholding the loss is optimal
    under the assumptions of Sablayrolles et al. 2019. It is the simplest attack, so stronger ones have to beat it. The
    loss of a mask is 1 minus its soft Dice coefficient, unless `mask_loss` says otherwise. A loss that
    the user of an import names is used.
    """

    card = AttackCard(
        name="loss-threshold",
        work={"once": 150, "each": 200},
        goal="membership",
        needs=("oracle (soft labels)", "model_parameters", "model_update"),
        assumes=("architecture",),
        oracle="soft",
        source="Yeom, Giacomelli, Fredrikson & Jha 2018; Sablayrolles et al. 2019",
        tasks=("single-label", "multi-label", "segmentation", "text", "table"),
        profiles={"quick": {}, "standard": {}, "full": {}},
    )
    Config: ClassVar[type[LossThresholdConfig]] = LossThresholdConfig

    def __init__(self, config: LossThresholdConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a soft-label oracle, or a model in view with a known architecture."""
        return answerable("soft", view, knowledge, task)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """Return one `Membership` for each challenge; the attack is deterministic."""
        guesses, step = [], ClientStep.of(view.hyperparameters)
        for name, challenge in task.challenges.items():
            target, refused = asked("soft", view, knowledge, task, name)
            if target is None:
                raise ValueError(
                    f"loss-threshold: run on a view to which it does not apply: {refused.reason}."
                )
            answers = target(challenge.x)
            of = self.config.mask_loss if labels_of(challenge.y).dense else "cross-entropy"
            if of == "dice":
                scores = soft_dice(answers, challenge.y)
            else:
                fit = log_likelihood(answers, challenge.y, self.config.floor)
                scores = fit if of == "cross-entropy" else fit + soft_dice(answers, challenge.y)
            if step.function is not None:
                scores = -step.losses(answers.clamp_min(self.config.floor).log(), challenge.x, challenge.y)
            guesses.append(Membership(target=name, scores=scores))
        return tuple(guesses)

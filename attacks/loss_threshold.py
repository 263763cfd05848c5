"""Membership inference by the loss: members are fitted better than records held out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.types import Applicability, AttackTask, Membership, task_of

if TYPE_CHECKING:
    from fdaudit.knowledge import Knowledge
    from fdaudit.messages import Message
    from fdaudit.view import View

__all__ = ["LossThreshold", "LossThresholdConfig"]


class LossThresholdConfig(Config):
    """Settings of the loss-threshold attack."""

    floor: float = Field(1e-12, gt=0, lt=1)
    """Smallest probability before the logarithm."""


class LossThreshold:
    """Scores a candidate by minus its (binary) cross-entropy loss under the released model.

    Asks the released model's soft-label oracle where the adversary has one, one query a candidate; otherwise it
    evaluates the last model in its view itself. Thresholding the loss is optimal under the assumptions of Sablayrolles
    et al. 2019 and the simplest attack that any stronger one has to beat.
    """

    name: ClassVar[str] = "loss-threshold"
    goal: ClassVar[str] = "membership"
    needs: ClassVar[tuple[str, ...]] = ("oracle (soft labels)", "model_parameters")
    assumes: ClassVar[tuple[str, ...]] = ("architecture",)
    oracle: ClassVar[str | None] = "soft"
    source: ClassVar[str] = "Yeom, Giacomelli, Fredrikson & Jha 2018; Sablayrolles et al. 2019"
    tasks: ClassVar[tuple[str, ...]] = ("single-label", "multi-label")
    profiles: ClassVar[dict[str, dict[str, Any]]] = {"quick": {}, "standard": {}, "full": {}}
    Config: ClassVar[type[LossThresholdConfig]] = LossThresholdConfig

    def __init__(self, config: LossThresholdConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Yes with a soft-label oracle, or with a model in view and its architecture known."""
        if not task.challenges:
            return Applicability(False, "no challenge was issued for the victims")
        if task.oracle is not None and task.oracle.answers == "soft":
            asked = sum(len(c.y) for c in task.challenges.values())
            if asked > task.oracle.budget:
                return Applicability(False, f"needs {asked} queries, the budget allows {task.oracle.budget}")
            return Applicability(True)
        if not view.select(kind="model_parameters"):
            return Applicability(False, "neither a soft-label oracle nor any model parameters in view")
        if self._model(view) is None:
            return Applicability(False, "model parameters in view were recorded as digests only")
        if knowledge.architecture is None or knowledge.train is None:
            return Applicability(False, "the architecture of the model in view is not known")
        return Applicability(True)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """One `Membership` for each challenge; the attack draws nothing at random."""
        return tuple(
            Membership(target=target, scores=self._log_likelihood(view, knowledge, task, c.x, c.y))
            for target, c in task.challenges.items()
        )

    def _log_likelihood(
        self, view: View, knowledge: Knowledge, task: AttackTask, x: Tensor, y: Tensor
    ) -> Tensor:
        """log p_y (n,): minus the cross-entropy, in nats; multi-label, the sum over the classes that are known."""
        several = task_of(y) == "multi-label"
        if task.oracle is not None and task.oracle.answers == "soft":
            p = task.oracle.query(x).double()
        else:
            model = self._model(view)
            if model is None or knowledge.train is None:
                raise ValueError("loss-threshold: run on a view to which it does not apply.")
            z = knowledge.train.predict(view.tensors(model), x).double()
            p = z.sigmoid() if several else z.softmax(1)
        if several:
            right = torch.where(y == 1, p, 1 - p).clamp_min(self.config.floor).log()
            return (right * (y >= 0)).sum(1)
        return p.gather(1, y[:, None]).squeeze(1).clamp_min(self.config.floor).log()

    @staticmethod
    def _model(view: View) -> Message | None:
        """The last model that a party other than a client sent: the federation's, not one client's."""
        sent = [m for m in view.select(kind="model_parameters") if m.payload is not None]
        shared = [m for m in sent if not m.sender.startswith("client/")] or sent
        return shared[-1] if shared else None

"""The model that an adversary queries about a victim: the most revealing one available.

Guarantees:
  * a victim's own model has priority, through an oracle or as the victim sent it. The released or shared model is
    second;
  * for the shared model an oracle is preferred, because it answers from the target itself. Parameters in view can be
    queried without limit;
  * the answers are those that the attack declared (`soft` or `hard`), even if better ones are available.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.adversary.oracle import answer
from fdaudit.tasks import SINGLE_LABEL, Labels, labels_of
from fdaudit.types import Applicability, AttackTask, OracleHandle

from ._uploads import WEIGHTS, after, uploads_of, with_payload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters, Trainer
    from fdaudit.transcript.messages import Message

__all__ = ["BlackBox", "answerable", "asked", "log_likelihood", "shared_model", "soft_dice"]


@dataclass(frozen=True, kw_only=True, eq=False)
class BlackBox:
    """A target's model as a black box, for one victim.

    Attributes:
        answers: `soft` or `hard`.
        oracle: the handle, or None if parameters in view are evaluated.
        of: owner of the model; None for the released or shared one.
        parameters: the model in view, if there is no oracle.
        start: the model from which the victim trained the model that it sent.
        train: the adversary's own training core, to evaluate them.
        labels: the form of the labels that it predicts.
    """

    answers: str
    oracle: OracleHandle | None = None
    of: str | None = None
    parameters: Mapping[str, Tensor] | None = None
    start: Mapping[str, Tensor] | None = None
    train: Trainer | None = None
    labels: Labels = SINGLE_LABEL.labels

    @property
    def remaining(self) -> int:
        """Return the number of samples that may still be queried; unlimited for parameters in view."""
        return 2**62 if self.oracle is None else self.oracle.remaining

    def __call__(self, x: Tensor) -> Tensor:
        """Return answers for samples (n, c, h, w): probabilities (n, C), float32, or classes (n,), int64.

        In segmentation they are (n, C, h, w) or (n, h, w).

        Raises:
            BudgetExceededError: the query would exceed the oracle's budget; nothing was queried.
        """
        if self.oracle is not None:
            return self.oracle.query(x) if self.of is None else self.oracle.query(x, self.of)
        if self.train is None or self.parameters is None:
            raise ValueError("asked: neither an oracle nor a model to ask.")
        z = self.train.predict(dict(self.parameters), x)
        return answer(self.answers, z, self.labels)


def asked(
    answers: str, view: View, knowledge: Knowledge, task: AttackTask, target: str, *, own: bool = True
) -> tuple[BlackBox | None, Applicability]:
    """Return the model that an adversary can query about one victim, or None and the reason.

    Args:
        answers: `soft` or `hard`.
        view: the adversary's view.
        knowledge: its other knowledge.
        task: with an oracle handle, if it has one.
        target: the victim.
        own: whether a model that the victim sent may be queried.
    """
    labels = knowledge.task.labels
    oracle = task.oracle
    if oracle is not None and (oracle.answers != answers or (oracle.models and target not in oracle.models)):
        oracle = None
    if oracle is not None and oracle.models:
        return BlackBox(answers=answers, oracle=oracle, of=target, labels=labels), Applicability(True)
    if own and (pair := _sent_model(view, knowledge, target)) is not None:
        parameters, start = pair
        return BlackBox(
            answers=answers,
            of=target,
            parameters=parameters,
            start=start,
            train=knowledge.train,
            labels=labels,
        ), Applicability(True)
    if oracle is not None:
        return BlackBox(answers=answers, oracle=oracle, labels=labels), Applicability(True)
    if not view.select(kind="model_parameters"):
        return None, Applicability(
            False, f"neither a {answers}-label oracle nor any model parameters in view"
        )
    model = shared_model(view)
    if model is None:
        return None, Applicability(False, "model parameters in view were recorded as digests only")
    if knowledge.architecture is None or knowledge.train is None:
        return None, Applicability(False, "the architecture of the model in view is not known")
    parameters = view.tensors(model)
    return BlackBox(
        answers=answers, parameters=parameters, train=knowledge.train, labels=labels
    ), Applicability(True)


def answerable(
    answers: str, view: View, knowledge: Knowledge, task: AttackTask, besides: int = 0
) -> Applicability:
    """Check that every challenged victim's model can be queried, for each candidate and `besides` more samples."""
    if not task.challenges:
        return Applicability(False, "no challenge was issued for the victims")
    refusals, budgets, needed = list[Applicability](), list[int](), 0
    for target, challenge in task.challenges.items():
        model, reason = asked(answers, view, knowledge, task, target)
        if model is None:
            refusals.append(reason)
        else:
            budgets.append(model.remaining)
        needed += len(challenge.y) + besides
    if refusals:
        return refusals[0]
    allowed = min(budgets)
    if needed > allowed:
        return Applicability(False, f"needs {needed} queries, the budget allows {allowed}")
    return Applicability(True)


def _sent_model(view: View, knowledge: Knowledge, target: str) -> tuple[Parameters, Parameters] | None:
    """Return the last model of the federation's network that a victim sent, and the model that it was trained from."""
    if knowledge.architecture is None or knowledge.train is None:
        return None
    uploads = uploads_of(view, target, WEIGHTS)
    if not uploads:
        return None
    message, origin = uploads[-1]
    start = view.tensors(origin)
    network = knowledge.architecture.build(torch.Generator().manual_seed(0))
    for name, parameter in network.named_parameters():
        if name not in start or tuple(start[name].shape) != tuple(parameter.shape):
            return None
    return after(view, message, start), start


def shared_model(view: View) -> Message | None:
    """Return the last model that a party other than a client sent: the federation's, not one client's."""
    models = with_payload(view.select(kind="model_parameters"))
    for model in reversed(models):
        if not model.sender.startswith("client/"):
            return model
    return models[-1] if models else None


def log_likelihood(answer: Tensor, y: Tensor, floor: float = 1e-12) -> Tensor:
    """Return log p_y (n,) of soft answers: minus the cross-entropy, in nats.

    Of several labels this is the sum over the known classes, and of masks the mean over pixels.
    """
    return labels_of(y).log_likelihood(answer.double(), y, floor)


def soft_dice(answer: Tensor, y: Tensor) -> Tensor:
    """Return the soft Dice coefficient (n,) of answers (n, C, h, w) with masks (n, h, w): Gong 2022, Eq. 10.

    It is a mean over the classes that occur in a mask. The background, 0, counts only if nothing else occurs: every
    answer has the coefficient 0 with a class that does not.
    """
    p = answer.double()
    pixels = (-2, -1)
    hot = (y.unsqueeze(1) == torch.arange(p.shape[1], device=y.device).view(-1, 1, 1)).to(p.dtype)
    area = hot.sum(pixels)
    present = area > 0
    present[:, 0] &= ~present[:, 1:].any(1)
    overlap = (
        2 * (p * hot).sum(pixels) / (p.square().sum(pixels) + area).where(present, torch.ones_like(area))
    )
    return (overlap * present).sum(1) / present.sum(1)

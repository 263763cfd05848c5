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

from fdaudit.types import Applicability, AttackTask, OracleHandle, task_of

from ._uploads import WEIGHTS, after, uploads_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters, Trainer
    from fdaudit.transcript.messages import Message

__all__ = ["Asked", "answerable", "asked", "log_likelihood", "shared_model", "soft_dice"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """A target's model as a black box, for one victim.

    Attributes:
        answers: `soft` or `hard`.
        oracle: the handle, or None if parameters in view are evaluated.
        of: owner of the model; None for the released or shared one.
        parameters: the model in view, if there is no oracle.
        start: the model from which the victim trained the model that it sent.
        train: the adversary's own training core, to evaluate them.
        multi_label: whether each class has its own answer.
    """

    answers: str
    oracle: OracleHandle | None = None
    of: str | None = None
    parameters: Mapping[str, Tensor] | None = None
    start: Mapping[str, Tensor] | None = None
    train: Trainer | None = None
    multi_label: bool = False

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
        if self.multi_label:
            return z.sigmoid() if self.answers == "soft" else (z > 0).long()
        return z.softmax(1) if self.answers == "soft" else z.argmax(1)


def asked(
    answers: str, view: View, knowledge: Knowledge, task: AttackTask, target: str, *, own: bool = True
) -> tuple[Asked | None, Applicability]:
    """Return the model that an adversary can query about one victim, or None and the reason.

    Args:
        answers: `soft` or `hard`.
        view: the adversary's view.
        knowledge: its other knowledge.
        task: with an oracle handle, if it has one.
        target: the victim.
        own: whether a model that the victim sent may be queried.
    """
    several = knowledge.task == "multi-label"
    oracle = task.oracle
    if oracle is not None and (oracle.answers != answers or (oracle.models and target not in oracle.models)):
        oracle = None
    if oracle is not None and oracle.models:
        return Asked(answers=answers, oracle=oracle, of=target, multi_label=several), Applicability(True)
    if own and (sent := _sent_model(view, knowledge, target)) is not None:
        parameters, start = sent
        return Asked(
            answers=answers,
            of=target,
            parameters=parameters,
            start=start,
            train=knowledge.train,
            multi_label=several,
        ), Applicability(True)
    if oracle is not None:
        return Asked(answers=answers, oracle=oracle, multi_label=several), Applicability(True)
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
    return Asked(
        answers=answers, parameters=parameters, train=knowledge.train, multi_label=several
    ), Applicability(True)


def answerable(
    answers: str, view: View, knowledge: Knowledge, task: AttackTask, besides: int = 0
) -> Applicability:
    """Check that every challenged victim's model can be queried, for each candidate and `besides` more samples."""
    if not task.challenges:
        return Applicability(False, "no challenge was issued for the victims")
    found = [asked(answers, view, knowledge, task, target) for target in task.challenges]
    if refused := [reason for target, reason in found if target is None]:
        return refused[0]
    needed = sum(len(c.y) + besides for c in task.challenges.values())
    allowed = min(target.remaining for target, _ in found if target is not None)
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
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    if any(name not in start or tuple(start[name].shape) != shape for name, shape in shapes.items()):
        return None
    return after(view, message, start), start


def shared_model(view: View) -> Message | None:
    """Return the last model that a party other than a client sent: the federation's, not one client's."""
    sent = [m for m in view.select(kind="model_parameters") if m.payload is not None]
    shared = [m for m in sent if not m.sender.startswith("client/")] or sent
    return shared[-1] if shared else None


def log_likelihood(answer: Tensor, y: Tensor, floor: float = 1e-12) -> Tensor:
    """Return log p_y (n,) of soft answers (n, C): minus the cross-entropy, in nats.

    In the multi-label task this is the sum over the known classes. Of masks (n, h, w) and answers (n, C, h, w) it is
    the mean over pixels.
    """
    p = answer.double()
    if task_of(y) == "segmentation":
        return p.gather(1, y[:, None]).clamp_min(floor).log().mean((1, 2, 3))
    if task_of(y) == "multi-label":
        right = torch.where(y == 1, p, 1 - p).clamp_min(floor).log()
        return (right * (y >= 0)).sum(1)
    return p.gather(1, y[:, None]).squeeze(1).clamp_min(floor).log()


def soft_dice(answer: Tensor, y: Tensor) -> Tensor:
    """Return the soft Dice coefficient (n,) of answers (n, C, h, w) with masks (n, h, w): Gong 2022, Eq. 10.

    It is a mean over the classes that occur in a mask. The background, 0, counts only if nothing else occurs: every
    answer has the coefficient 0 with a class that does not.
    """
    p, pixels = answer.double(), (-2, -1)
    hot = (y.unsqueeze(1) == torch.arange(p.shape[1], device=y.device).view(-1, 1, 1)).to(p.dtype)
    area = hot.sum(pixels)
    present = area > 0
    present[:, 0] &= ~present[:, 1:].any(1)
    overlap = (
        2 * (p * hot).sum(pixels) / (p.square().sum(pixels) + area).where(present, torch.ones_like(area))
    )
    return (overlap * present).sum(1) / present.sum(1)

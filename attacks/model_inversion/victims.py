"""Which models are asked about which victims, and what becomes of the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fdaudit.cache import computed_once
from fdaudit.types import Applicability, AttackTask, Reconstruction

from .._asked import Asked, asked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fdaudit.config import Config
    from fdaudit.knowledge import Knowledge
    from fdaudit.view import View

__all__ = ["Askable", "as_probabilities", "askable", "card_of", "of_classes"]


@dataclass(frozen=True, eq=False)
class Askable:
    """One model that can be asked, whose records it may show, and how many samples it may be asked."""

    model: Asked
    targets: tuple[str, ...]
    queries: int

    def once(
        self,
        attack: str,
        config: Config,
        knowledge: Knowledge,
        tensors: Sequence[Tensor],
        generator: torch.Generator,
        invert: Callable[[torch.Generator], Mapping[str, Tensor]],
    ) -> Mapping[str, Tensor]:
        """What an attack makes of the model: once for all who have the same parameters in view (`fdaudit.cache`).

        An oracle is asked by everybody who has one, since every answer is on record; chance then comes from
        `generator`.

        Args:
            attack: its name.
            config: its settings.
            knowledge: with the network.
            tensors: what else it works with.
            generator: for an oracle.
            invert: the attack.
        """
        if self.model.parameters is None:
            return invert(generator)
        card = card_of(attack, config, knowledge)
        card |= {"answers": self.model.answers, "queries": self.queries}
        return computed_once(card, [self.model.parameters, *tensors], invert)


def card_of(attack: str, config: Config, knowledge: Knowledge) -> dict[str, Any]:
    """What decides the outcome of an attack on parameters in view, these and other tensors apart."""
    return {
        "attack": attack,
        "settings": config.model_dump(mode="json"),
        "network": None if knowledge.architecture is None else knowledge.architecture.described,
        "execution": None if knowledge.train is None else knowledge.train.execution.described,
    }


def askable(
    answers: str, view: View, knowledge: Knowledge, task: AttackTask, *, least: int, most: int
) -> tuple[list[Askable], Applicability]:
    """The models behind the victims, the budget spread evenly; or none, and the reason.

    A released model is one model for all victims; where clients answer by themselves, each is asked on its own.

    Args:
        answers: `soft` or `hard`.
        view: the adversary's view.
        knowledge: what it knows besides.
        task: with the victims, and an oracle handle where there is one.
        least: fewer queries a model are refused.
        most: no more are asked of a model, whatever the budget.
    """
    if knowledge.architecture is None or not knowledge.classes:
        return [], Applicability(False, "the images' shape or the number of classes is not known")
    if not task.targets:
        return [], Applicability(False, "no victim is named")
    found: dict[str | None, tuple[Asked, list[str]]] = {}
    reasons = []
    for target in task.targets:
        model, why = asked(answers, view, knowledge, task, target, own=False)
        if model is None:
            reasons.append(why.reason)
        else:
            found.setdefault(model.of, (model, []))[1].append(target)
    if not found:
        return [], Applicability(False, "; ".join(dict.fromkeys(reasons)))
    allowed = min(model.remaining for model, _ in found.values()) // len(found)
    if allowed < least:
        need = f"needs {least} queries for each of {len(found)} models"
        return [], Applicability(False, f"{need}, the budget allows {allowed}")
    share = min(allowed, most)
    return [Askable(m, tuple(t), share) for m, t in found.values()], Applicability(True)


def as_probabilities(answer: Tensor, classes: int) -> Tensor:
    """Answers (n, C) or classes (n,) as rows (n, C) that sum to 1, whatever a defence has made of them."""
    if answer.ndim == 1:
        return F.one_hot(answer.long().clamp(0, classes - 1), classes).float()
    p = answer.float().nan_to_num(0.0).clamp_min(0)
    largest = p.amax(1, keepdim=True)
    # By the largest first: a sum of what noise and a clip have left may be next to nothing, or overflow.
    p = torch.where(largest > 0, p / largest, torch.ones_like(p))
    return p / p.sum(1, keepdim=True)


def of_classes(
    targets: Sequence[str],
    images: Tensor,
    labels: Tensor,
    *,
    objective: float | None = None,
    evaluations: int = 0,
) -> list[Reconstruction]:
    """The same class-level guess about several victims of one model."""
    return [
        Reconstruction(
            target=target,
            messages=(),
            images=images.nan_to_num(0.5).clamp(0, 1).cpu(),
            labels=labels.cpu(),
            objective=objective,
            evaluations=evaluations,
        )
        for target in targets
    ]

"""The models that are queried or inverted for each victim, and the guesses made from the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.storage.cache import computed_once
from fdaudit.types import Applicability, AttackTask

from .._target_model import BlackBox, asked, shared_model
from .._uploads import after, received_before, with_payload
from .gan import learnable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.config import Config

__all__ = [
    "Askable",
    "as_probabilities",
    "askable",
    "card_of",
    "invertible",
    "model_of",
    "models_in_view",
    "of_classes",
    "wanted",
]


@dataclass(frozen=True, eq=False)
class Askable:
    """A model that can be queried, the victims that it stands for, and its query limit."""

    model: BlackBox
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
        """Return an attack's result on the model, cached for adversaries with the same parameters in view.

        The cache is `fdaudit.storage.cache`. An oracle is always queried, because every answer is recorded. Random
        draws then come from `generator`.

        Args:
            attack: its name.
            config: its settings.
            knowledge: with the network.
            tensors: its other inputs.
            generator: for an oracle.
            invert: the attack.
        """
        if self.model.parameters is None:
            return invert(generator)
        card = card_of(attack, config, knowledge)
        card |= {"answers": self.model.answers, "queries": self.queries}
        return computed_once(card, [self.model.parameters, *tensors], invert)


def card_of(attack: str, config: Config, knowledge: Knowledge) -> dict[str, Any]:
    """Return what determines an attack's result on parameters in view, except these and other tensors."""
    return {"attack": attack, "settings": config.model_dump(mode="json"), **knowledge.described}


def askable(
    answers: str, view: View, knowledge: Knowledge, task: AttackTask, *, least: int, most: int
) -> tuple[list[Askable], Applicability]:
    """Return the models behind the victims, with the budget divided equally; or none, and the reason.

    A released model is one model for all victims. If clients answer themselves, each one's model is queried.

    Args:
        answers: `soft` or `hard`.
        view: the adversary's view.
        knowledge: its other knowledge.
        task: with the victims, and an oracle handle if there is one.
        least: fewer queries a model are refused.
        most: largest number of queries a model, even with a larger budget.
    """
    if knowledge.architecture is None or not knowledge.classes:
        return [], Applicability(False, "the images' shape or the number of classes is not known")
    if not task.targets:
        return [], Applicability(False, "no victim is named")
    models: dict[str | None, tuple[BlackBox, list[str]]] = {}
    reasons = []
    for target in task.targets:
        model, why = asked(answers, view, knowledge, task, target, own=False)
        if model is None:
            reasons.append(why.reason)
        else:
            models.setdefault(model.of, (model, []))[1].append(target)
    if not models:
        return [], Applicability(False, "; ".join(dict.fromkeys(reasons)))
    allowed = min(model.remaining for model, _ in models.values()) // len(models)
    if allowed < least:
        need = f"needs {least} queries for each of {len(models)} models"
        return [], Applicability(False, f"{need}, the budget allows {allowed}")
    share = min(allowed, most)
    all_askable = []
    for black_box, targets in models.values():
        all_askable.append(Askable(black_box, tuple(targets), share))
    return all_askable, Applicability(True)


def wanted(knowledge: Knowledge, task: AttackTask) -> Tensor:
    """Return the classes (k,) that an attack reconstructs: those that its task names, or all."""
    return torch.tensor(task.classes or range(knowledge.classes))


def invertible(view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
    """Return whether a model in view can be inverted through a GAN of auxiliary images."""
    if not (verdict := learnable(knowledge)):
        return verdict
    if knowledge.architecture is None or knowledge.train is None or not knowledge.classes:
        return Applicability(False, "the architecture of the model in view is not known")
    if not task.targets:
        return Applicability(False, "no victim is named")
    if not view.select(kind="model_parameters"):
        return Applicability(False, "no model parameters in view")
    if shared_model(view) is None:
        return Applicability(False, "model parameters in view were recorded as digests only")
    return Applicability(True)


def models_in_view(view: View, targets: Sequence[str]) -> list[tuple[Mapping[str, Tensor], list[str]]]:
    """Return the models to invert, each with the victims that it stands for (`model_of`)."""
    groups: dict[int, tuple[Mapping[str, Tensor], list[str]]] = {}
    for target in targets:
        seq, parameters = model_of(view, target)
        groups.setdefault(seq, (parameters, []))[1].append(target)
    return list(groups.values())


def model_of(view: View, target: str) -> tuple[int, Mapping[str, Tensor]]:
    """Return the number of the last message with a victim's own model, or with the shared one, and the model."""
    for message in reversed(with_payload(view.select(sender=target))):
        if message.kind == "model_parameters":
            return message.seq, view.tensors(message)
        if message.kind == "model_update":
            received = received_before(view, message, target)
            if received:
                return message.seq, after(view, message, view.tensors(received[-1]))
    shared = shared_model(view)
    if shared is None:
        raise ValueError("no model in view to invert. Ask `applicable` first.")
    return shared.seq, view.tensors(shared)


def as_probabilities(answer: Tensor, classes: int) -> Tensor:
    """Return answers (n, C) or classes (n,) as rows (n, C) that sum to 1, even after a defence changed them."""
    if answer.ndim == 1:
        return F.one_hot(answer.long().clamp(0, classes - 1), classes).float()
    p = answer.float().nan_to_num(0.0).clamp_min(0)
    largest = p.amax(1, keepdim=True)
    # Divide by the largest first: after noise and clipping a sum may be nearly zero, or overflow.
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
    """Return the same class-level guess for several victims of one model."""
    guesses = []
    for target in targets:
        guess = Reconstruction(
            target=target,
            messages=(),
            images=images.nan_to_num(0.5).clamp(0, 1).cpu(),
            labels=labels.cpu(),
            objective=objective,
            evaluations=evaluations,
        )
        guesses.append(guess)
    return guesses

"""Controls of attacks on a published model: one that memorised records, and an untrained one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.adversary.oracle import Oracle, answer
from fdaudit.evaluation.controls._membership import (
    MOST_CANDIDATES,
    Design,
    Measured,
    guessed,
    knowing,
    passed,
    said,
    tossed,
)
from fdaudit.handout.auxiliary import others
from fdaudit.result import Control
from fdaudit.rng import child
from fdaudit.storage.cache import computed_once
from fdaudit.training.objectives import objective_of
from fdaudit.training.trainer import Fit, Job, Parameters
from fdaudit.types import task_of

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.data import Dataset
    from fdaudit.planning.case import Case

__all__ = ["overfit_model"]

_MOST_MASKS = 64
"""Most candidates with masks: a network takes long to learn a mask by heart."""
_FITTED = 0.9
"""Share of the pixels of a mask that is learnt by heart."""


def overfit_model(attack: AttackPlan, plan: Case) -> dict[str, Control]:
    """Return both controls: a model that memorised half of the auxiliary records, and an untrained one.

    Fair coins choose the half, whose labels are random. All attacks of a run get the same model.
    """
    x, _ = plan.auxiliary
    generator = child(plan.seed, "control", "models", "design")
    pairs = min(len(x), _MOST_MASKS if plan.dataset.task == "segmentation" else MOST_CANDIDATES) // 2
    x = x[torch.randperm(len(x), generator=generator)[: 2 * pairs]]
    y = _random_labels(2 * pairs, plan.dataset, generator)
    candidates = tossed((x, y), (x[:0], y[:0]), generator)
    initial = plan.initial()
    overfit, accuracy = _learn_by_heart(plan, initial, *candidates.members)
    found = {
        name: _on_model(attack, plan, weights, candidates)
        for name, weights in (("positive", overfit), ("negative", initial))
    }
    fitted = f"learnt by heart under random labels ({accuracy:.0%} fitted)"
    by_heart = f"{pairs} auxiliary records {fitted} against {pairs} held out"
    made = passed(
        (by_heart, found["positive"]), ("the same candidates, a model never trained", found["negative"])
    )
    if accuracy < 1:
        made["positive"] = made["positive"].model_copy(update={"passed": False})
    return made


def _random_labels(n: int, like: Dataset, generator: torch.Generator) -> Tensor:
    """Return labels of the dataset's task that are independent of the images; each quarter of a mask has one class."""
    if like.task == "multi-label":
        return torch.randint(2, (n, like.classes), generator=generator)
    if like.task == "segmentation":
        _, height, width = like.input_shape
        quarters = torch.randint(like.classes, (n, 2, 2), generator=generator)
        rows, columns = (torch.arange(side) * 2 // side for side in (height, width))
        return quarters[:, rows][:, :, columns]
    return torch.randint(like.classes, (n,), generator=generator)


def _learn_by_heart(plan: Case, initial: Parameters, x: Tensor, y: Tensor) -> tuple[Parameters, float]:
    """Train by Adam on full batches until every label is fitted, at most 40 times 25 steps."""
    trainer, task = plan.trainer(), task_of(y)
    batches = [torch.arange(len(y))] * 25

    def accuracy(weights: Parameters) -> float:
        right = (answer("hard", trainer.predict(weights, x), task) == y).view(len(y), -1)
        fitted = right.double().mean(1) >= _FITTED if task == "segmentation" else right.all(1)
        return float(fitted.double().mean())

    def made(draws: torch.Generator) -> Parameters:  # which it does not need
        weights, fit = initial, Fit(lr=0.003, optimizer="adam", objective=objective_of(task))
        for _ in range(40):
            job = Job(party="control", parameters=weights, x=x, targets=y, batches=batches)
            weights = trainer.fit([job], fit)[0].parameters
            if accuracy(weights) == 1:
                break
        return weights

    card = {
        "what": "control: overfit model",
        "network": plan.architecture.described,
        "execution": plan.execution.described,
    }
    found = computed_once(card, [initial, x, y], made)
    return found, accuracy(found)


def _on_model(attack: AttackPlan, plan: Case, weights: Parameters, made: Design) -> Measured:
    """Run the attack on a published model, with an oracle as in a run."""
    challenge = made.challenge
    oracle = Oracle(attack.card.get("oracle") or "soft", budget=max(plan.spec.query_budget, len(challenge.y)))
    answering = plan.trainer()
    labels = task_of(challenge.y)
    knowledge = knowing(plan, auxiliary=others(plan).records)

    def reply(asked: Tensor, _: str | None) -> Tensor:
        return answer(oracle.answers, answering.predict(weights, asked), labels)

    with said(plan, attack, (), to="world") as nothing:
        return guessed(attack, plan, nothing, knowledge, made, oracle, reply)

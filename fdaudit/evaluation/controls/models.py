"""Controls of attacks on a published model: one that memorised records, and an untrained one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.adversary.oracle import Oracle, answer
from fdaudit.evaluation.controls._membership import (
    MOST_CANDIDATES,
    Measured,
    PairedCandidates,
    guessed,
    knowing,
    passed,
    said,
    settled,
    tossed,
)
from fdaudit.handout.auxiliary import others
from fdaudit.result import Control
from fdaudit.rng import child
from fdaudit.storage.cache import computed_once
from fdaudit.training.trainer import Fit, Job, Parameters

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case

__all__ = ["most_by_heart", "overfit_model"]

_MOST_USES, _FEWEST_BY_HEART = 10**8, 16
"""Uses of parameters in one step, parameters times records, and the records that are learnt however many these are."""


def most_by_heart(parameters: int) -> int:
    """Return the number of records that a network with so many parameters can learn by heart in reasonable time."""
    return max(_FEWEST_BY_HEART, _MOST_USES // parameters)


def overfit_model(attack: AttackPlan, case: Case) -> dict[str, Control]:
    """Return both controls: a model that memorised half of the auxiliary records, and an untrained one.

    Fair coins choose the half, whose labels are random. All attacks of a run get the same model.
    """
    x, _ = case.auxiliary
    generator = child(case.seed, "control", "models", "design")
    labels = case.dataset.task.labels
    affordable = most_by_heart(case.architecture.parameters)
    pairs = min(len(x) // 2, (labels.most_by_heart or MOST_CANDIDATES) // 2, affordable)
    x = x[torch.randperm(len(x), generator=generator)[: 2 * pairs]]
    y = labels.random(2 * pairs, case.dataset.classes, case.dataset.input_shape, generator)
    candidates = tossed((x, y), (x[:0], y[:0]), generator)
    initial = case.initial()
    overfit, accuracy = _learn_by_heart(case, initial, *candidates.members)
    found = {
        name: _on_model(attack, case, weights, candidates)
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


def _learn_by_heart(case: Case, initial: Parameters, x: Tensor, y: Tensor) -> tuple[Parameters, float]:
    """Train by Adam on full batches until every label is fitted, at most 40 times 25 steps."""
    trainer, labels = case.trainer(), case.dataset.task.labels
    batches = [torch.arange(len(y))] * 25

    def accuracy(weights: Parameters) -> float:
        return float(labels.fitted(trainer.predict(weights, x), y).double().mean())

    def made(draws: torch.Generator) -> Parameters:  # which it does not need
        weights, fit = initial, Fit(lr=0.003, optimizer="adam", objective=labels.objective)
        for _ in range(40):
            job = Job(party="control", parameters=weights, x=x, targets=y, batches=batches)
            weights = settled(trainer, trainer.fit([job], fit)[0].parameters, x)
            if accuracy(weights) == 1:
                break
        return weights

    card = {
        "what": "control: overfit model",
        "network": case.architecture.described,
        "execution": case.execution.described,
    }
    found = computed_once(card, [initial, x, y], made)
    return found, accuracy(found)


def _on_model(attack: AttackPlan, case: Case, weights: Parameters, made: PairedCandidates) -> Measured:
    """Run the attack on a published model, with an oracle as in a run."""
    challenge = made.challenge
    oracle = Oracle(attack.card.oracle or "soft", budget=max(case.spec.query_budget, len(challenge.y)))
    answering = case.trainer()
    labels = case.dataset.task.labels
    knowledge = knowing(case, auxiliary=others(case).records)

    def reply(asked: Tensor, _: str | None) -> Tensor:
        return answer(oracle.answers, answering.predict(weights, asked), labels)

    with said(case, attack, (), to="world") as nothing:
        return guessed(attack, case, nothing, knowledge, made, oracle, reply)

"""Controls of attacks on a model in view: one that memorised records, and an untrained one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fdaudit.adversary.oracle import Oracle, answer
from fdaudit.evaluation.controls._case import Sent, SmallCase, knowing, said
from fdaudit.evaluation.controls._membership import (
    MOST_CANDIDATES,
    ControlRecord,
    PairedCandidates,
    design,
    on_coins,
    settled,
    tossed,
)
from fdaudit.handout.auxiliary import others
from fdaudit.models.conditional import build_domain_head, shared_network
from fdaudit.rng import child
from fdaudit.storage.cache import computed_once
from fdaudit.training.stepwise import Learner, Optimizer
from fdaudit.training.trainer import Fit, Job, Parameters, parameters_of

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case

__all__ = ["most_by_heart", "overfit_discriminator", "overfit_model"]

_MOST_USES, _FEWEST_BY_HEART = 10**8, 16
"""Uses of parameters in one step, parameters times records, and the records that are learnt however many these are."""
_SHARE = 0.7
"""Share of the auxiliary records that are candidates of a discriminator."""
_STEPS = 300
"""Full-batch steps of Adam for the discriminator."""


def most_by_heart(parameters: int) -> int:
    """Return the number of records that a network with so many parameters can learn by heart in reasonable time."""
    return max(_FEWEST_BY_HEART, _MOST_USES // parameters)


def overfit_model(attack: AttackPlan, case: Case) -> dict[str, SmallCase]:
    """Return both cases: a published model that memorised half of the auxiliary records, and an untrained one.

    Fair coins choose the half, whose labels are random. All attacks of a run get the same model, with an oracle as in
    the run.
    """
    x, _ = case.auxiliary
    generator = child(case.seed, "control", "models", "design")
    labels = case.dataset.task.labels
    affordable = most_by_heart(case.architecture.parameters)
    pairs = min(len(x) // 2, (labels.most_by_heart or MOST_CANDIDATES) // 2, affordable)
    x = x[torch.randperm(len(x), generator=generator)[: 2 * pairs]]
    y = labels.random(2 * pairs, case.dataset.classes, case.dataset.input_shape, generator)
    coins = tossed((x, y), (x[:0], y[:0]), generator)
    initial = case.initial()
    overfit, accuracy = _learn_by_heart(case, initial, *coins.members)
    oracle = Oracle(attack.card.oracle or "soft", budget=max(case.spec.query_budget, 2 * pairs))

    def published(what: str, weights: Parameters) -> ControlRecord:
        trainer = case.trainer()

        def reply(asked: Tensor, _: str | None) -> Tensor:
            return answer(oracle.answers, trainer.predict(weights, asked), labels)

        return ControlRecord(what, said(attack, case, (), to="world"), reply)

    fitted = f"learnt by heart under random labels ({accuracy:.0%} fitted)"
    return on_coins(
        attack,
        case,
        coins,
        published(f"{pairs} auxiliary records {fitted} against {pairs} held out", overfit),
        published("the same candidates, a model never trained", initial),
        knowledge=knowing(case, auxiliary=others(case).records),
        oracle=oracle,
        learnt=accuracy == 1,
    )


def _learn_by_heart(case: Case, initial: Parameters, x: Tensor, y: Tensor) -> tuple[Parameters, float]:
    """Train by Adam on full batches until every label is fitted, at most 40 times 25 steps."""
    trainer, labels = case.trainer(), case.dataset.task.labels
    batches = [torch.arange(len(y))] * 25

    def accuracy(weights: Parameters) -> float:
        return float(labels.fitted(trainer.predict(weights, x), y).double().mean())

    def train(draws: torch.Generator) -> Parameters:  # which it does not need
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
    weights = computed_once(card, [initial, x, y], train)
    return weights, accuracy(weights)


def overfit_discriminator(attack: AttackPlan, case: Case) -> dict[str, SmallCase]:
    """Return both cases: a discriminator that memorised half of some auxiliary records, and an untrained one."""
    coins = design(attack, case, share=_SHARE)
    pairs, rest = coins.pairs, len(coins.rest[0])
    by_heart = (
        f"a discriminator that learnt to tell {pairs} auxiliary records from {rest} others by heart, "
        f"against {pairs} held out"
    )
    untrained = "the same candidates, a discriminator never trained"
    return on_coins(
        attack,
        case,
        coins,
        ControlRecord(by_heart, said(attack, case, _discriminator(attack, case, coins, _STEPS))),
        ControlRecord(untrained, said(attack, case, _discriminator(attack, case, coins, 0))),
    )


def _discriminator(attack: AttackPlan, case: Case, coins: PairedCandidates, steps: int) -> Sequence[Sent]:
    """Return a client's uploads: a classifier's extractor and a layer above it, trained jointly for some steps."""
    trainer = case.trainer()
    start = case.architecture.build(child(case.seed, "control", attack.name, "initial"))
    network = shared_network(trainer.network(parameters_of(start)))
    draws = child(case.seed, "control", attack.name, "head")
    head = build_domain_head(draws, shared_network(start), case.dataset.input_shape).to(trainer.device)
    # Only layers below the head learn: a classifier's own head has no gradient here.
    both = nn.ModuleDict({"extractor": network.extractor, "head": head})
    learner = Learner("client/0", both, Optimizer(lr=0.003), trainer.device)
    x = torch.cat([coins.members[0], coins.rest[0]]).to(trainer.device)
    real = (torch.arange(len(x)) < len(coins.members[0])).float().to(trainer.device)
    for _ in range(steps):
        logits = head(network.extractor(x))[:, 0]
        learner.step(nn.functional.binary_cross_entropy_with_logits(logits, real))
    messages = list[Sent]()
    for kind, module in (("model_parameters", network), ("discriminator_parameters", head)):
        weights = {name: t.cpu() for name, t in parameters_of(module).items()}
        messages.append(("client/0", "server", kind, weights))
    return messages

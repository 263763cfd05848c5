"""Controls of attacks on recorded answers: clients that memorised their records or learnt a shifted task.

In the negative controls the answers are those of untrained clients, or noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.evaluation.controls._case import VICTIM, Attempt, Figures, SmallCase, said
from fdaudit.evaluation.controls._membership import (
    CONFIDENCE,
    WORKS,
    ControlRecord,
    PairedCandidates,
    design,
    on_coins,
    settled,
)
from fdaudit.goals.model_extraction import Extraction
from fdaudit.metrics import score_extraction
from fdaudit.rng import child
from fdaudit.scoring.goals.model_extraction import auxiliary_model, check_copy
from fdaudit.training.trainer import Fit, Job, Parameters, parameters_of
from fdaudit.types import AttackTask

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case

__all__ = [
    "answers_about_candidates",
    "averaged_answers",
    "model_that_answers",
    "public_samples",
    "recorded_answers",
]

_OTHERS = 3
"""Clients other than the victim."""
_SHARE = 0.7
"""Share of the auxiliary records that are candidates; the other clients hold the rest."""
_NEIGHBOURS = 4
"""Public samples around each candidate, where the attack reads such."""
_PUBLIC = 500
"""Public samples of the control, if the run has none."""
_MOST = 2_000
"""Most auxiliary records of the control of an attack that copies models."""


def recorded_answers(attack: AttackPlan, case: Case) -> dict[str, SmallCase]:
    """Return both cases: one client memorises a random half of the candidates and sends logits on public samples.

    Labels are drawn at random: everything a model knows of them, it knows from the records. Three other clients hold
    other records. All models of the negative control are untrained, each with its own initial weights.
    """
    coins = design(attack, case, share=_SHARE, random_labels=True)
    return _logits(attack, case, coins, public_samples(attack, case))


def answers_about_candidates(attack: AttackPlan, case: Case) -> dict[str, SmallCase]:
    """Return both cases of the same federation, whose public samples are the candidates themselves.

    If the attack reads answers within a `reach` of a candidate, samples at that distance are public too.
    """
    coins = design(attack, case, share=_SHARE, random_labels=True)
    x, reach = coins.challenge.x, float((attack.params or {}).get("reach", 0))
    if reach != 0 and x.is_floating_point():
        generator = child(case.seed, "control", attack.name, "neighbours")
        signs = torch.randint(2, (_NEIGHBOURS, *x.shape), generator=generator) * 2 - 1
        steps = 0.99 * reach * signs  # within the reach, whatever rounding adds
        x = torch.cat([x, (x + steps).flatten(0, 1)])
    return _logits(attack, case, coins, x)


def averaged_answers(attack: AttackPlan, case: Case) -> dict[str, SmallCase]:
    """Return both cases of the same federation, of which the adversary sees the mean of all logits alone."""
    coins = design(attack, case, share=_SHARE, random_labels=True)
    return _logits(attack, case, coins, public_samples(attack, case), averaged=True)


def public_samples(attack: AttackPlan, case: Case) -> Tensor:
    """Return the run's public samples or, if it has none, means of two auxiliary images."""
    if len(case.public):
        return case.public[:_PUBLIC]
    x, _ = case.auxiliary
    pairs = torch.randint(len(x), (2, _PUBLIC), generator=child(case.seed, "control", attack.name, "public"))
    return (x[pairs[0]] + x[pairs[1]]) / 2


def _logits(
    attack: AttackPlan, case: Case, coins: PairedCandidates, public: Tensor, *, averaged: bool = False
) -> dict[str, SmallCase]:
    """Return both cases of clients that answer about public samples, each by itself or as their mean."""
    untrained = list[Parameters]()
    for k in range(1 + _OTHERS):
        generator = child(case.seed, "control", attack.name, "initial", k)
        untrained.append(parameters_of(case.architecture.build(generator)))
    trained, accuracy = _by_heart(case, untrained, coins)
    share = "the mean of the logits" if averaged else "logits"
    samples = f"{share} on {len(public)} public samples of {1 + _OTHERS} clients"
    fitted = f"under random labels ({accuracy:.0%} fitted)"

    def recorded(what: str, models: Sequence[Parameters]) -> ControlRecord:
        trainer, index = case.trainer(), torch.arange(len(public))
        clients = [f"client/{k}" for k in range(len(models))]
        parties = ("server", *clients, "world")
        logits = [trainer.predict(weights, public) for weights in models]
        if not averaged:
            messages = []
            for client, values in zip(clients, logits, strict=True):
                messages.append((client, "server", "logits", {"index": index, "values": values}))
            return ControlRecord(what, said(attack, case, messages, parties=parties))
        mean = {"index": index, "values": torch.stack(logits).mean(0)}
        message = ("server", "world", "ensemble_labels", mean)
        settings = {"share": "logits"}
        return ControlRecord(
            what, said(attack, case, [message], to="world", parties=parties, public=settings)
        )

    return on_coins(
        attack,
        case,
        coins,
        recorded(
            f"{samples}, one of which learnt {coins.pairs} auxiliary records by heart {fitted}, "
            f"against {coins.pairs} held out",
            trained,
        ),
        recorded(f"the same candidates, {samples} that were never trained", untrained),
        public=public,
    )


def _by_heart(
    case: Case, start: Sequence[Parameters], coins: PairedCandidates
) -> tuple[Sequence[Parameters], float]:
    """Fit every client's model, the victim's until all its records are right; return the models and its accuracy."""
    x, y = coins.rest
    data = [coins.members]
    for k in range(_OTHERS):
        part = torch.arange(k, len(y), _OTHERS)
        if len(part):
            data.append((x[part], y[part]))
    trainer, models, accuracy = case.trainer(), start[: len(data)], 0.0
    x, y = coins.members
    fit = Fit(lr=0.003, optimizer="adam")
    for _ in range(40):
        jobs = list[Job]()
        for k, (weights, (inputs, targets)) in enumerate(zip(models, data, strict=True)):
            batches = [torch.arange(len(targets))] * 25
            jobs.append(
                Job(party=f"client/{k}", parameters=weights, x=inputs, targets=targets, batches=batches)
            )
        fitted = trainer.fit(jobs, fit)
        by_client = list[Parameters]()
        for outcome, job in zip(fitted, jobs, strict=True):
            by_client.append(settled(trainer, outcome.parameters, job.x))
        models = by_client
        accuracy = float((trainer.predict(models[0], x).argmax(1) == y).double().mean())
        if accuracy == 1:
            break
    return models, accuracy


# -- copies of models -------------------------------------------------------------------------------------------


def model_that_answers(attack: AttackPlan, case: Case) -> dict[str, SmallCase]:
    """Return both cases of an attack that copies models: a model that answers, and answers that are noise.

    The model is trained on half of the auxiliary records with shifted labels: class c becomes c + 1. The adversary
    holds the other half with true labels, and so cannot guess the model's answers. The copy and the model are compared
    on the model's training records, of which the adversary has none.
    """
    x, y = case.auxiliary
    generator = child(case.seed, "control", attack.name, "records")
    order = torch.randperm(len(y), generator=generator)[:_MOST]
    rows, others = order.tensor_split(2)
    x_test, y_test = x[rows], (y[rows] + 1) % case.dataset.classes
    auxiliary = x[others], y[others]
    model = auxiliary_model(case, (x_test, y_test), child(case.seed, "control", attack.name, "model"))
    baseline = auxiliary_model(case, auxiliary, child(case.seed, "control", attack.name, "baseline"))
    public = public_samples(attack, case)
    logits = case.trainer().predict(model, public)
    noise = torch.randn(logits.shape, generator=child(case.seed, "control", attack.name, "noise"))
    knowledge = Knowledge(
        architecture=case.architecture,
        auxiliary=auxiliary,
        train=case.trainer(),
        public=public,
        initial=case.initial_seed,
        classes=case.dataset.classes,
    )

    def score(guesses: Sequence[Extraction]) -> Figures:
        (guess,) = guesses
        check_copy(guess, baseline)
        trainer = case.trainer()
        copied = trainer.predict(dict(guess.parameters), x_test).argmax(1)
        answered = trainer.predict(model, x_test).argmax(1)
        without = trainer.predict(baseline, x_test).argmax(1)
        return score_extraction(copied, answered, without, y_test)

    def agrees(figures: Figures) -> bool:
        p = figures["agreement_gain"].p
        return p is not None and p <= WORKS

    def chance(figures: Figures) -> bool:
        p = figures["agreement_gain"].p
        return p is not None and p > 1 - CONFIDENCE

    by_model = f"{len(public)} public samples answered by a model of {len(rows)} auxiliary records with shifted labels"
    more = f"the copy agrees with it more often than the baseline, by chance with p of at most {WORKS:g}"
    no_more = "the copy agrees with the model no more often than the baseline"
    cases = dict[str, SmallCase]()
    for name, what, values, passes in (
        ("positive", f"{by_model}: {more}", logits, agrees),
        ("negative", f"the same samples answered by noise: {no_more}", noise, chance),
    ):
        kind = "logits"
        if "hard_labels" in attack.card.needs:
            kind, values = "hard_labels", values.argmax(1)
        message = (VICTIM, "server", kind, {"index": torch.arange(len(public)), "values": values})
        attempt = Attempt(
            record=said(attack, case, [message]), knowledge=knowledge, task=AttackTask(targets=(VICTIM,))
        )
        cases[name] = SmallCase(
            what=what, attempts=(attempt,), score=score, passes=passes, leading=("agreement_gain", "")
        )
    return cases

"""Controls of attacks on recorded answers: clients that memorised their records, and untrained clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.evaluation.controls._membership import (
    Measured,
    PairedCandidates,
    design,
    passed,
    said,
    score,
    settled,
)
from fdaudit.result import Control
from fdaudit.rng import child
from fdaudit.training.trainer import Fit, Job, Parameters, parameters_of

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case

__all__ = ["answers_about_candidates", "averaged_answers", "public_samples", "recorded_answers"]

_OTHERS = 3
"""Clients other than the victim."""
_SHARE = 0.7
"""Share of the auxiliary records that are candidates; the other clients hold the rest."""
_NEIGHBOURS = 4
"""Public samples around each candidate, where the attack reads such."""
_PUBLIC = 500
"""Public samples of the control, if the run has none."""


def recorded_answers(attack: AttackPlan, case: Case) -> dict[str, Control]:
    """Return both controls: one client memorises a random half of the candidates and sends logits on public samples.

    Labels are drawn at random: everything a model knows of them, it knows from the records. Three other clients hold
    other records. All models of the negative control are untrained, each with its own initial weights.
    """
    return _answers(attack, case, averaged=False)


def answers_about_candidates(attack: AttackPlan, case: Case) -> dict[str, Control]:
    """Return both controls of the same federation, whose public samples are the candidates themselves.

    If the attack reads answers within a `reach` of a candidate, samples at that distance are public too.
    """
    return _answers(attack, case, averaged=False, about_candidates=True)


def averaged_answers(attack: AttackPlan, case: Case) -> dict[str, Control]:
    """Return both controls of the same federation, of which the adversary sees the mean of all logits alone."""
    return _answers(attack, case, averaged=True)


def _answers(
    attack: AttackPlan, case: Case, *, averaged: bool, about_candidates: bool = False
) -> dict[str, Control]:
    made = design(attack, case, share=_SHARE)
    public = _around(made.challenge.x, attack, case) if about_candidates else public_samples(attack, case)
    start = [
        parameters_of(case.architecture.build(child(case.seed, "control", attack.name, "initial", k)))
        for k in range(1 + _OTHERS)
    ]
    models, accuracy = _by_heart(case, start, made)
    found = {
        name: _heard(attack, case, made, public, weights, averaged=averaged)
        for name, weights in (("positive", models), ("negative", start))
    }
    pairs = len(made.member) // 2
    what = "the mean of the logits" if averaged else "logits"
    samples = f"{what} on {len(public)} public samples of {1 + _OTHERS} clients"
    by_heart = (
        f"{samples}, one of which learnt {pairs} auxiliary records by heart under random labels "
        f"({accuracy:.0%} fitted), against {pairs} held out"
    )
    return passed(
        (by_heart, found["positive"]),
        (f"the same candidates, {samples} that were never trained", found["negative"]),
    )


def _around(x: Tensor, attack: AttackPlan, case: Case) -> Tensor:
    """Return candidates (n, ...) with their neighbours in random directions, at the distance that the attack reads."""
    reach = float((attack.params or {}).get("reach", 0))
    if reach == 0 or not x.is_floating_point():
        return x
    generator = child(case.seed, "control", attack.name, "neighbours")
    signs = torch.randint(2, (_NEIGHBOURS, *x.shape), generator=generator) * 2 - 1
    steps = 0.99 * reach * signs  # within the reach, whatever rounding adds
    return torch.cat([x, (x + steps).flatten(0, 1)])


def public_samples(attack: AttackPlan, case: Case) -> Tensor:
    """Return the run's public samples or, if it has none, means of two auxiliary images."""
    if len(case.public):
        return case.public[:_PUBLIC]
    x, _ = case.auxiliary
    pairs = torch.randint(len(x), (2, _PUBLIC), generator=child(case.seed, "control", attack.name, "public"))
    return (x[pairs[0]] + x[pairs[1]]) / 2


def _by_heart(case: Case, start: list[Parameters], made: PairedCandidates) -> tuple[list[Parameters], float]:
    """Fit every client's model, the victim's until all its records are right; return the models and its accuracy."""
    x, y = made.rest
    parts = [torch.arange(k, len(y), _OTHERS) for k in range(_OTHERS)]
    data = [made.members, *((x[p], y[p]) for p in parts if len(p))]
    trainer, models, accuracy = case.trainer(), start[: len(data)], 0.0
    fit = Fit(lr=0.003, optimizer="adam")
    for _ in range(40):
        jobs = [
            Job(party=f"client/{k}", parameters=w, x=a, targets=b, batches=[torch.arange(len(b))] * 25)
            for k, (w, (a, b)) in enumerate(zip(models, data, strict=True))
        ]
        fitted = trainer.fit(jobs, fit)
        models = [
            settled(trainer, f.parameters, records) for f, (records, _) in zip(fitted, data, strict=True)
        ]
        accuracy = float((trainer.predict(models[0], data[0][0]).argmax(1) == data[0][1]).double().mean())
        if accuracy == 1:
            break
    return models, accuracy


def _heard(
    attack: AttackPlan,
    case: Case,
    made: PairedCandidates,
    public: Tensor,
    models: list[Parameters],
    *,
    averaged: bool,
) -> Measured:
    """Return the attack's AUC from these clients' answers, or from their mean."""
    trainer, index = case.trainer(), torch.arange(len(public))
    logits = {f"client/{k}": trainer.predict(w, public) for k, w in enumerate(models)}
    if averaged:
        mean = torch.stack([*logits.values()]).mean(0)
        messages = [("server", "world", "ensemble_labels", {"index": index, "values": mean})]
    else:
        messages = [(k, "server", "logits", {"index": index, "values": z}) for k, z in logits.items()]
    public_settings = {"share": "logits"} if averaged else {}
    to = "world" if averaged else "server"
    with said(case, attack, messages, to, clients=tuple(logits), public=public_settings) as view:
        return score(attack, case, view, made, public)

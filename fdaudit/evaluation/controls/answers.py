"""Controls of attacks that copy a model: a model that answers, and answers that are noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.evaluation.controls._membership import CONFIDENCE, WORKS, attack_seed, said
from fdaudit.evaluation.controls.federation import public_samples
from fdaudit.goals.model_extraction import Extraction
from fdaudit.isolation.attacker import attack as run_attack
from fdaudit.isolation.schema import Trial
from fdaudit.metrics import score_extraction
from fdaudit.result import Control
from fdaudit.rng import child
from fdaudit.scoring.goals.model_extraction import auxiliary_model, check_copy
from fdaudit.types import AttackTask, Figure

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case
    from fdaudit.training.trainer import Parameters

__all__ = ["model_that_answers"]

_VICTIM = "client/0"
_MOST = 2_000
"""Most auxiliary records of the control."""


def model_that_answers(attack: AttackPlan, case: Case) -> dict[str, Control]:
    """Return both controls of an attack that copies models.

    The model is trained on half of the auxiliary records with shifted labels: class c becomes c + 1. The adversary
    holds the other half with true labels, and so cannot guess the model's answers. The copy and the model are compared
    on the model's training records, of which the adversary has none. In the negative control the answers are noise.
    """
    x, y = case.auxiliary
    generator = child(case.seed, "control", attack.name, "records")
    order = torch.randperm(len(y), generator=generator)[:_MOST]
    taught, held = order.tensor_split(2)
    shifted = (y + 1) % case.dataset.classes
    model = auxiliary_model(
        case, (x[taught], shifted[taught]), child(case.seed, "control", attack.name, "model")
    )
    baseline = auxiliary_model(case, (x[held], y[held]), child(case.seed, "control", attack.name, "baseline"))
    public = public_samples(attack, case)
    logits = case.trainer().predict(model, public)
    noise = torch.randn(logits.shape, generator=child(case.seed, "control", attack.name, "noise"))
    eyes = (x[held], y[held]), (x[taught], shifted[taught])
    found = {
        name: _gain(attack, case, public, told, (model, baseline), *eyes)
        for name, told in (("positive", logits), ("negative", noise))
    }
    what = f"{len(public)} public samples answered by a model of {len(taught)} auxiliary records with shifted labels"
    return {
        "positive": Control(
            what=f"{what}: the copy agrees with it more often than the baseline, by chance with p of at most {WORKS:g}",
            passed=_p(found["positive"]) <= WORKS,
            figures=tuple(found["positive"].values()),
        ),
        "negative": Control(
            what="the same samples answered by noise: the copy agrees with the model no more often than the baseline",
            passed=_p(found["negative"]) > 1 - CONFIDENCE,
            figures=tuple(found["negative"].values()),
        ),
    }


def _p(figures: Mapping[str, Figure]) -> float:
    """Return the p-value of the gain; NaN, which passes no control, if there is none."""
    p = figures["agreement_gain"].p
    return float("nan") if p is None else p


def _gain(
    attack: AttackPlan,
    case: Case,
    public: Tensor,
    logits: Tensor,
    models: tuple[Parameters, Parameters],
    auxiliary: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
) -> Mapping[str, Figure]:
    hard = "hard_labels" in attack.card.needs
    kind, values = ("hard_labels", logits.argmax(1)) if hard else ("logits", logits)
    sent = {"index": torch.arange(len(public)), "values": values}
    knowledge = Knowledge(
        architecture=case.architecture,
        auxiliary=auxiliary,
        train=case.trainer(),
        public=public,
        initial=case.initial_seed,
        classes=case.dataset.classes,
    )
    with said(case, attack, [(_VICTIM, "server", kind, sent)]) as view:
        trial = Trial(
            knowledge=knowledge, task=AttackTask(targets=(_VICTIM,)), seed=attack_seed(case, attack)
        )
        guesses = run_attack(attack, view, trial)
    if isinstance(guesses, str):
        reason = f"the attack does not apply to its own control: {guesses}"
        return {"agreement_gain": Figure(name="agreement_gain", value=None, unavailable=reason)}
    (guess,) = guesses
    if not isinstance(guess, Extraction):
        raise TypeError("the attack gave no copy of the model of its own control")
    model, baseline = models
    check_copy(guess, baseline)
    trainer, (x, y) = case.trainer(), test
    copied, told, without = (
        trainer.predict(dict(p), x).argmax(1) for p in (guess.parameters, model, baseline)
    )
    return score_extraction(copied, told, without, y)

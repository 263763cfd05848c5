"""Controls of attacks on gradients that compare images with records: auxiliary records, and signs at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fdaudit.evaluation.controls._membership import attack_seed, knowing, said
from fdaudit.handout.auxiliary import groups_of
from fdaudit.isolation.attacker import attack as run_attack
from fdaudit.isolation.schema import Trial
from fdaudit.metrics import score_reconstruction
from fdaudit.result import Control
from fdaudit.rng import child, child_numpy
from fdaudit.types import AttackTask, Figure, Reconstruction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case

__all__ = ["compared_records"]

_RECORDS, _STEPS = 16, 20
"""Auxiliary records that are compared, and how often."""
_SPREAD = 0.15
"""Standard deviation of a compared image from the record, in units of pixel intensity."""
_STRAY = 0.5
"""Standard deviation of what a discriminator adds, in units of the L1 loss's gradient."""
_LEAST_GAIN_DB = 1.0


def compared_records(attack: AttackPlan, plan: Case) -> dict[str, Control]:
    """Return both controls: gradients that compare auxiliary records with images near them, and signs at random."""
    held = len(plan.auxiliary[1])
    generator = child(plan.seed, "control", attack.name, "victims")
    order = torch.randperm(held, generator=generator)
    count = min(_RECORDS, held // 2)
    victims, known = order[:count], order[count:]
    what = f"{count} auxiliary records compared with {_STEPS} images under noise of {_SPREAD:g} each"
    found = {
        name: _figures(attack, plan, victims, known, generator, true=name == "positive")
        for name in ("positive", "negative")
    }
    gains = {name: figures["psnr_gain"] for name, figures in found.items()}
    positive, negative = gains["positive"], gains["negative"]
    works = (positive.value or 0.0) >= _LEAST_GAIN_DB and (positive.low is None or positive.low > 0)
    return {
        "positive": Control(
            what=f"{what}: mean gain over the prior at least {_LEAST_GAIN_DB:g} dB, with an interval above 0",
            passed=works,
            figures=(positive,),
        ),
        "negative": Control(
            what=f"the same with signs at random: gain below {_LEAST_GAIN_DB:g} dB",
            passed=negative.value is not None and negative.value < _LEAST_GAIN_DB,
            figures=(negative,),
        ),
    }


def _figures(
    attack: AttackPlan, plan: Case, victims: Tensor, known: Tensor, generator: torch.Generator, *, true: bool
) -> Mapping[str, Figure]:
    """Return the attack's scores on records compared with images near them, or under signs at random."""
    x, y = plan.auxiliary
    real, target = x[victims], "client/0"
    messages = []
    for _ in range(_STEPS):
        shown = (real + _SPREAD * torch.randn(real.shape, generator=generator)).clamp(0, 1)
        stray = _STRAY * torch.randn(real.shape, generator=generator)
        signs = (shown - real).sign() if true else torch.randn(real.shape, generator=generator).sign()
        messages += [
            (target, "server", "private_labels", {"values": y[victims].to(torch.uint8)}),
            ("server", target, "generated_samples", {"samples": shown}),
            (target, "server", "sample_gradients", {"values": signs + stray}),
        ]
    auxiliary = (x[known], y[known])
    with said(plan, attack, messages) as view:
        case = Trial(
            knowledge=knowing(plan, auxiliary=auxiliary),
            task=AttackTask(targets=(target,)),
            seed=attack_seed(plan, attack),
        )
        made = run_attack(attack, view, case)
    if isinstance(made, str) or not isinstance(made[0], Reconstruction):
        reason = f"the attack does not apply to its own control: {made}"
        return {"psnr_gain": Figure(name="psnr_gain", value=None, unavailable=reason)}
    groups = groups_of(plan, y)
    return score_reconstruction(
        made[0].images,
        real,
        x[known],
        child_numpy(plan.seed, "control", attack.name, "score"),
        true_labels=None if groups is None else groups[victims],
        auxiliary_labels=None if groups is None else groups[known],
    ).figures

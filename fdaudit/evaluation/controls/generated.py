"""Controls of attacks on generated samples, a discriminator's scores, and gradients at images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fdaudit.evaluation.controls._case import VICTIM, Attempt, Sent, SmallCase, knowing, said
from fdaudit.evaluation.controls._membership import ControlRecord, design, on_coins
from fdaudit.evaluation.controls.gradients import LEAST_GAIN_DB, closer, no_closer, score_images
from fdaudit.goals import GOALS
from fdaudit.models.generative import build_discriminator
from fdaudit.rng import child
from fdaudit.training.optimizers import annealed
from fdaudit.training.stepwise import Learner, Optimizer
from fdaudit.types import AttackTask

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case

__all__ = ["compared_records", "generated_samples", "scored_samples"]

_SHARE = 0.7
"""Share of the auxiliary records that are candidates; other samples are made of the rest."""
_SPREAD = 0.05
"""Standard deviation of the noise on repeated images, in units of pixel intensity."""
_COPIES = 4
_SCORED = {"discriminator_width": 16, "adam_lr": 0.01, "rounds": 2, "steps_per_round": 300}
"""Settings of the discriminator whose scores are read: one step of Adam with each batch of samples."""
_SAMPLES = 32
"""Samples of a batch that is scored."""
_MOST_SHARE = 0.9
"""Share of the auxiliary records that are candidates of scores, which tell each of them with less certainty."""
_RECORDS, _TIMES = 16, 20
"""Auxiliary records that are compared, and how often."""
_NEAR = 0.15
"""Standard deviation of a compared image from the record, in units of pixel intensity."""
_STRAY = 0.5
"""Standard deviation of what a discriminator adds, in units of the L1 loss's gradient."""


def generated_samples(attack: AttackPlan, case: Case) -> dict[str, SmallCase]:
    """Return both cases: samples that repeat a client's records under noise, and ones that repeat other records."""
    coins = design(attack, case, share=_SHARE)
    generator = child(case.seed, "control", attack.name, "noise")

    def recorded(of: str, images: Tensor) -> ControlRecord:
        repeated = images.repeat(_COPIES, 1, 1, 1)
        noise = _SPREAD * torch.randn(repeated.shape, generator=generator)
        message = ("server", VICTIM, "generated_samples", {"samples": (repeated + noise).clamp(0, 1)})
        what = f"generated samples repeat {len(images)} auxiliary images {_COPIES} times under noise of {_SPREAD:g}"
        return ControlRecord(f"{what}{of}", said(attack, case, [message]))

    return on_coins(
        attack,
        case,
        coins,
        recorded(f", those of the members, against {coins.pairs} others", coins.members[0]),
        recorded(" that are no candidates", coins.rest[0]),
    )


def scored_samples(attack: AttackPlan, case: Case) -> dict[str, SmallCase]:
    """Return both cases: scores of a discriminator that learnt a client's records, and of one that learnt others.

    The samples are means of a candidate and another record.
    """
    coins = design(attack, case, share=_MOST_SHARE)
    candidates, others = coins.challenge.x, coins.rest[0]
    steps = int(_SCORED["steps_per_round"])
    how = (
        f"scores and gradients of a discriminator over {steps} steps of {_SAMPLES} samples, of which it tells"
    )

    def recorded(of: str, records: Tensor) -> ControlRecord:
        draws = child(case.seed, "control", attack.name, "samples")
        D = build_discriminator(draws, int(_SCORED["discriminator_width"]), case.dataset.input_shape)
        learner = Learner(VICTIM, D, Optimizer(lr=_SCORED["adam_lr"], betas=(0.5, 0.999)))
        messages = list[Sent]()
        for t in range(steps):
            near = torch.randint(len(candidates), (_SAMPLES,), generator=draws)
            far = torch.randint(len(others), (_SAMPLES,), generator=draws)
            samples = ((candidates[near] + others[far]) / 2).requires_grad_()
            real = records[torch.randint(len(records), (_SAMPLES,), generator=draws)]
            on_real, on_samples = D(torch.cat([real, samples])).split(_SAMPLES)
            loss = nn.functional.softplus(-on_samples).mean()
            (toward_real,) = torch.autograd.grad(loss, samples, retain_graph=True)
            scores = on_samples.detach().sigmoid().mean((1, 2)) / on_real.detach().sigmoid().mean()
            messages += [
                ("server", VICTIM, "generated_samples", {"samples": samples.detach()}),
                (VICTIM, "server", "discriminator_scores", {"values": scores}),
                ("server", VICTIM, "logit_cotangents", {"gan_weight": torch.ones(())}),
                (VICTIM, "server", "sample_gradients", {"values": toward_real}),
            ]
            loss = nn.functional.softplus(-on_real).mean() + nn.functional.softplus(on_samples).mean()
            learner.step(loss, annealed(_SCORED["adam_lr"], 0.0, t, steps))
        return ControlRecord(f"{how} {of}", said(attack, case, messages, public=_SCORED))

    return on_coins(
        attack,
        case,
        coins,
        recorded(f"{coins.pairs} auxiliary records, against {coins.pairs} held out", coins.members[0]),
        recorded(f"{len(others)} records that are no candidates", others),
    )


def compared_records(attack: AttackPlan, case: Case) -> dict[str, SmallCase]:
    """Return both cases: gradients that compare auxiliary records with images near them, and signs at random.

    For an attack on membership, images are compared with members, or with other records: signs at random would not do,
    since labels in clear already tell of members.
    """
    how = f"compared with {_TIMES} images under noise of {_NEAR:g} each"
    if GOALS[attack.card.goal].challenged:
        coins = design(attack, case, share=_SHARE)
        generator = child(case.seed, "control", attack.name, "noise")
        pairs, rest = coins.pairs, len(coins.rest[1])
        of_members = said(attack, case, _comparisons(*coins.members, generator))
        of_others = said(attack, case, _comparisons(*coins.rest, generator))
        return on_coins(
            attack,
            case,
            coins,
            ControlRecord(f"{pairs} auxiliary records {how}, against {pairs} others", of_members),
            ControlRecord(f"{rest} auxiliary records {how} that are no candidates", of_others),
        )
    x, y = case.auxiliary
    generator = child(case.seed, "control", attack.name, "victims")
    order = torch.randperm(len(y), generator=generator)
    count = min(_RECORDS, len(y) // 2)
    victims, others = order[:count], order[count:]
    knowledge = knowing(case, auxiliary=(x[others], y[others]))
    gain = f"mean gain over the prior at least {LEAST_GAIN_DB:g} dB, with an interval above 0"
    cases = dict[str, SmallCase]()
    for name, what, passes in (
        ("positive", f"{count} auxiliary records {how}: {gain}", closer),
        ("negative", f"the same with signs at random: gain below {LEAST_GAIN_DB:g} dB", no_closer),
    ):
        messages = _comparisons(x[victims], y[victims], generator, true=name == "positive")
        attempt = Attempt(
            record=said(attack, case, messages), knowledge=knowledge, task=AttackTask(targets=(VICTIM,))
        )
        cases[name] = SmallCase(
            what=what,
            attempts=(attempt,),
            score=partial(score_images, attack, case, [victims], others),
            passes=passes,
            figures=("psnr_gain",),
            leading=("psnr_gain", ""),
        )
    return cases


def _comparisons(
    real: Tensor, labels: Tensor, generator: torch.Generator, *, true: bool = True
) -> Sequence[Sent]:
    """Return the messages of a client whose records are compared with images near them, or under signs at random."""
    messages = list[Sent]()
    for _ in range(_TIMES):
        images = (real + _NEAR * torch.randn(real.shape, generator=generator)).clamp(0, 1)
        stray = _STRAY * torch.randn(real.shape, generator=generator)
        signs = images - real if true else torch.randn(real.shape, generator=generator)
        messages += [
            (VICTIM, "server", "private_labels", {"values": labels.to(torch.uint8)}),
            ("server", VICTIM, "generated_samples", {"samples": images}),
            (VICTIM, "server", "sample_gradients", {"values": signs.sign() + stray}),
        ]
    return messages

"""Controls of attacks on generators, discriminators and gradients at images: with auxiliary records or without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from fdaudit.evaluation.controls._membership import (
    Measured,
    PairedCandidates,
    attack_seed,
    design,
    knowing,
    passed,
    said,
    score,
)
from fdaudit.evaluation.controls.gradients import LEAST_GAIN_DB
from fdaudit.goals import GOALS
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.handout.auxiliary import groups_of
from fdaudit.isolation.attacker import attack as run_attack
from fdaudit.isolation.schema import Trial
from fdaudit.metrics import score_reconstruction
from fdaudit.models.conditional import build_domain_head, shared_network
from fdaudit.models.generative import build_discriminator
from fdaudit.result import Control
from fdaudit.rng import child, child_numpy
from fdaudit.training.optimizers import annealed
from fdaudit.training.stepwise import Learner, Optimizer
from fdaudit.training.trainer import parameters_of
from fdaudit.types import AttackTask, Figure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case

__all__ = ["compared_records", "generated_samples", "overfit_discriminator", "scored_samples"]

_SHARE = 0.7
"""Share of the auxiliary records that are candidates; other samples are made of the rest."""
_SPREAD = 0.05
"""Standard deviation of the noise on repeated images, in units of pixel intensity."""
_COPIES = 4
_STEPS = 300
"""Full-batch steps of Adam for the discriminator."""
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


def generated_samples(attack: AttackPlan, case: Case) -> dict[str, Control]:
    """Return both controls: samples that repeat a client's records under noise, and ones that repeat other records."""
    made = design(attack, case, share=_SHARE, random_labels=False)
    generator = child(case.seed, "control", attack.name, "noise")
    source = {"positive": made.members[0], "negative": made.rest[0]}
    found = {}
    for name, images in source.items():
        repeated = images.repeat(_COPIES, 1, 1, 1)
        noise = _SPREAD * torch.randn(repeated.shape, generator=generator)
        samples = (repeated + noise).clamp(0, 1)
        with said(case, attack, [("server", "client/0", "generated_samples", {"samples": samples})]) as view:
            found[name] = score(attack, case, view, made)
    pairs, rest = len(made.member) // 2, len(made.rest[0])
    how = f"repeat {{}} auxiliary images {_COPIES} times under noise of {_SPREAD:g}"
    return passed(
        (
            f"generated samples {how.format(pairs)}, those of the members, against {pairs} others",
            found["positive"],
        ),
        (f"generated samples {how.format(rest)} that are no candidates", found["negative"]),
    )


def overfit_discriminator(attack: AttackPlan, case: Case) -> dict[str, Control]:
    """Return both controls: a discriminator that memorised half of some auxiliary records, and an untrained one."""
    made = design(attack, case, share=_SHARE, random_labels=False)
    found = {
        "positive": _discriminated(attack, case, made, _STEPS),
        "negative": _discriminated(attack, case, made, 0),
    }
    pairs, rest = len(made.member) // 2, len(made.rest[0])
    by_heart = (
        f"a discriminator that learnt to tell {pairs} auxiliary records from {rest} others by heart, "
        f"against {pairs} held out"
    )
    return passed(
        (by_heart, found["positive"]),
        ("the same candidates, a discriminator never trained", found["negative"]),
    )


def _discriminated(attack: AttackPlan, case: Case, made: PairedCandidates, steps: int) -> Measured:
    """Return the attack's AUC on a classifier's extractor and a layer above it, trained jointly for some steps."""
    trainer = case.trainer()
    start = case.architecture.build(child(case.seed, "control", attack.name, "initial"))
    network = shared_network(trainer.network(parameters_of(start)))
    drawn = child(case.seed, "control", attack.name, "head")
    head = build_domain_head(drawn, shared_network(start), case.dataset.input_shape).to(trainer.device)
    # Only layers below the head learn: a classifier's own head has no gradient here.
    both = nn.ModuleDict({"extractor": network.extractor, "head": head})
    learner = Learner("client/0", both, Optimizer(lr=0.003), trainer.device)
    x = torch.cat([made.members[0], made.rest[0]]).to(trainer.device)
    real = (torch.arange(len(x)) < len(made.members[0])).float().to(trainer.device)
    for _ in range(steps):
        logits = head(network.extractor(x))[:, 0]
        learner.step(nn.functional.binary_cross_entropy_with_logits(logits, real))
    messages = [
        ("client/0", "server", kind, {n: t.cpu() for n, t in parameters_of(module).items()})
        for kind, module in (("model_parameters", network), ("discriminator_parameters", head))
    ]
    with said(case, attack, messages) as view:
        return score(attack, case, view, made)


def scored_samples(attack: AttackPlan, case: Case) -> dict[str, Control]:
    """Return both controls: scores of a discriminator that learnt a client's records, and of one that learnt others."""
    made = design(attack, case, share=_MOST_SHARE, random_labels=False)
    found = {
        name: _scored(attack, case, made, records)
        for name, records in (("positive", made.members[0]), ("negative", made.rest[0]))
    }
    pairs, rest, steps = len(made.member) // 2, len(made.rest[0]), _SCORED["steps_per_round"]
    how = f"scores and gradients of a discriminator over {steps} steps of {_SAMPLES} samples, of which it tells {{}}"
    return passed(
        (f"{how.format(f'{pairs} auxiliary records')}, against {pairs} held out", found["positive"]),
        (how.format(f"{rest} records that are no candidates"), found["negative"]),
    )


def _scored(attack: AttackPlan, case: Case, made: PairedCandidates, records: Tensor) -> Measured:
    """Return the attack's AUC on what a discriminator of these records says of means of a candidate and another."""
    draws = child(case.seed, "control", attack.name, "samples")
    width, shape = int(_SCORED["discriminator_width"]), case.dataset.input_shape
    D = build_discriminator(draws, width, shape)
    learner = Learner("client/0", D, Optimizer(lr=_SCORED["adam_lr"], betas=(0.5, 0.999)))
    steps, target, messages = int(_SCORED["steps_per_round"]), "client/0", []
    x = made.challenge.x
    for t in range(steps):
        near, far = (torch.randint(len(images), (_SAMPLES,), generator=draws) for images in (x, made.rest[0]))
        sent = ((x[near] + made.rest[0][far]) / 2).requires_grad_()
        real = records[torch.randint(len(records), (_SAMPLES,), generator=draws)]
        on_real, on_sent = D(torch.cat([real, sent])).split(_SAMPLES)
        (toward_real,) = torch.autograd.grad(nn.functional.softplus(-on_sent).mean(), sent, retain_graph=True)
        scores = on_sent.detach().sigmoid().mean((1, 2)) / on_real.detach().sigmoid().mean()
        messages += [
            ("server", target, "generated_samples", {"samples": sent.detach()}),
            (target, "server", "discriminator_scores", {"values": scores}),
            ("server", target, "logit_cotangents", {"gan_weight": torch.ones(())}),
            (target, "server", "sample_gradients", {"values": toward_real}),
        ]
        loss = nn.functional.softplus(-on_real).mean() + nn.functional.softplus(on_sent).mean()
        learner.step(loss, annealed(_SCORED["adam_lr"], 0.0, t, steps))
    with said(case, attack, messages, public=_SCORED) as view:
        return score(attack, case, view, made)


def compared_records(attack: AttackPlan, case: Case) -> dict[str, Control]:
    """Return both controls: gradients that compare auxiliary records with images near them, and signs at random."""
    if GOALS[attack.card.goal].challenged:
        return _compared_members(attack, case)
    held = len(case.auxiliary[1])
    generator = child(case.seed, "control", attack.name, "victims")
    order = torch.randperm(held, generator=generator)
    count = min(_RECORDS, held // 2)
    victims, known = order[:count], order[count:]
    what = f"{count} auxiliary records compared with {_TIMES} images under noise of {_NEAR:g} each"
    found = {
        name: _compared(attack, case, victims, known, generator, true=name == "positive")
        for name in ("positive", "negative")
    }
    gains = {name: figures["psnr_gain"] for name, figures in found.items()}
    positive, negative = gains["positive"], gains["negative"]
    works = (positive.value or 0.0) >= LEAST_GAIN_DB and (positive.low is None or positive.low > 0)
    return {
        "positive": Control(
            what=f"{what}: mean gain over the prior at least {LEAST_GAIN_DB:g} dB, with an interval above 0",
            passed=works,
            figures=(positive,),
        ),
        "negative": Control(
            what=f"the same with signs at random: gain below {LEAST_GAIN_DB:g} dB",
            passed=negative.value is not None and negative.value < LEAST_GAIN_DB,
            figures=(negative,),
        ),
    }


def _compared_members(attack: AttackPlan, case: Case) -> dict[str, Control]:
    """Return both controls of an attack on membership: images are compared with members, or with other records.

    Signs at random would not do: labels in clear already tell of members.
    """
    made = design(attack, case, share=_SHARE, random_labels=False)
    generator = child(case.seed, "control", attack.name, "noise")
    source = {"positive": made.members, "negative": made.rest}
    found = {}
    for name, (x, y) in source.items():
        with said(case, attack, _comparisons(x, y, generator, true=True)) as view:
            found[name] = score(attack, case, view, made)
    pairs, rest = len(made.member) // 2, len(made.rest[1])
    how = f"auxiliary records compared with {_TIMES} images under noise of {_NEAR:g} each"
    return passed(
        (f"{pairs} {how}, against {pairs} others", found["positive"]),
        (f"{rest} {how} that are no candidates", found["negative"]),
    )


def _comparisons(
    real: Tensor, labels: Tensor, generator: torch.Generator, *, true: bool
) -> list[tuple[str, str, str, Mapping[str, Tensor]]]:
    """Return the messages of a client whose records are compared with images near them, or under signs at random."""
    target = "client/0"
    messages: list[tuple[str, str, str, Mapping[str, Tensor]]] = []
    for _ in range(_TIMES):
        shown = (real + _NEAR * torch.randn(real.shape, generator=generator)).clamp(0, 1)
        stray = _STRAY * torch.randn(real.shape, generator=generator)
        signs = (shown - real).sign() if true else torch.randn(real.shape, generator=generator).sign()
        messages += [
            (target, "server", "private_labels", {"values": labels.to(torch.uint8)}),
            ("server", target, "generated_samples", {"samples": shown}),
            (target, "server", "sample_gradients", {"values": signs + stray}),
        ]
    return messages


def _compared(
    attack: AttackPlan, case: Case, victims: Tensor, known: Tensor, generator: torch.Generator, *, true: bool
) -> Mapping[str, Figure]:
    """Return the attack's scores on records compared with images near them, or under signs at random."""
    x, y = case.auxiliary
    real, target = x[victims], "client/0"
    messages = _comparisons(real, y[victims], generator, true=true)
    auxiliary = (x[known], y[known])
    with said(case, attack, messages) as view:
        trial = Trial(
            knowledge=knowing(case, auxiliary=auxiliary),
            task=AttackTask(targets=(target,)),
            seed=attack_seed(case, attack),
        )
        made = run_attack(attack, view, trial)
    if isinstance(made, str) or not isinstance(made[0], Reconstruction):
        reason = f"the attack does not apply to its own control: {made}"
        return {"psnr_gain": Figure(name="psnr_gain", value=None, unavailable=reason)}
    groups = groups_of(case, y)
    return score_reconstruction(
        made[0].images,
        real,
        x[known],
        child_numpy(case.seed, "control", attack.name, "score"),
        true_labels=None if groups is None else groups[victims],
        auxiliary_labels=None if groups is None else groups[known],
    ).figures

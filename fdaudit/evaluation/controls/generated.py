"""Controls of attacks on generators and discriminators: ones that repeat records, and ones that cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from fdaudit.evaluation.controls._membership import Design, Measured, design, passed, said, score
from fdaudit.models.conditional import build_domain_head, shared_network
from fdaudit.result import Control
from fdaudit.rng import child
from fdaudit.training.stepwise import Learner, Optimizer
from fdaudit.training.trainer import parameters_of

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case

__all__ = ["generated_samples", "overfit_discriminator"]

_SHARE = 0.7
"""Share of the auxiliary records that are candidates; other samples are made of the rest."""
_SPREAD = 0.05
"""Standard deviation of the noise on repeated images, in units of pixel intensity."""
_COPIES = 4
_STEPS = 300
"""Full-batch steps of Adam for the discriminator."""


def generated_samples(attack: AttackPlan, plan: Case) -> dict[str, Control]:
    """Return both controls: samples that repeat a client's records under noise, and ones that repeat other records."""
    made = design(attack, plan, share=_SHARE, random_labels=False)
    generator = child(plan.seed, "control", attack.name, "noise")
    source = {"positive": made.members[0], "negative": made.rest[0]}
    found = {}
    for name, images in source.items():
        repeated = images.repeat(_COPIES, 1, 1, 1)
        noise = _SPREAD * torch.randn(repeated.shape, generator=generator)
        samples = (repeated + noise).clamp(0, 1)
        with said(plan, attack, [("server", "client/0", "generated_samples", {"samples": samples})]) as view:
            found[name] = score(attack, plan, view, made)
    pairs, rest = len(made.member) // 2, len(made.rest[0])
    how = f"repeat {{}} auxiliary images {_COPIES} times under noise of {_SPREAD:g}"
    return passed(
        (
            f"generated samples {how.format(pairs)}, those of the members, against {pairs} others",
            found["positive"],
        ),
        (f"generated samples {how.format(rest)} that are no candidates", found["negative"]),
    )


def overfit_discriminator(attack: AttackPlan, plan: Case) -> dict[str, Control]:
    """Return both controls: a discriminator that memorised half of some auxiliary records, and an untrained one."""
    made = design(attack, plan, share=_SHARE, random_labels=False)
    found = {
        "positive": _discriminated(attack, plan, made, _STEPS),
        "negative": _discriminated(attack, plan, made, 0),
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


def _discriminated(attack: AttackPlan, plan: Case, made: Design, steps: int) -> Measured:
    """Return the attack's AUC on a classifier's extractor and a layer above it, trained jointly for some steps."""
    trainer = plan.trainer()
    start = plan.architecture.build(child(plan.seed, "control", attack.name, "initial"))
    network = shared_network(trainer.network(parameters_of(start)))
    drawn = child(plan.seed, "control", attack.name, "head")
    head = build_domain_head(drawn, shared_network(start), plan.dataset.input_shape).to(trainer.device)
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
    with said(plan, attack, messages) as view:
        return score(attack, plan, view, made)

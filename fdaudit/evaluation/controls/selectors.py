"""Controls of attacks on accept bits: the run's own selector, fitted to auxiliary records by known coins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import EAVESDROPPER
from fdaudit.config import Config
from fdaudit.evaluation.controls._membership import Design, Measured, attack_seed, guessed, passed
from fdaudit.handout.rehearsals import rehearsal_of, stand_in_of
from fdaudit.isolation.schema import Trial
from fdaudit.rng import child, child_seed
from fdaudit.storage.scratch import scratch
from fdaudit.types import AttackTask, Challenge

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.plan import Plan
    from fdaudit.result import Control

__all__ = ["rehearsed_selector"]

_PAIRS = 25
"""Number of pairs after which the victim gets no further class."""
_MOST_PAIRS = 40
"""Most pairs of one class."""
_ROUNDS = 3
_VICTIM = "client/0"


def rehearsed_selector(attack: AttackPlan, plan: Plan) -> dict[str, Control]:
    """Return both controls: a few rounds of the run's own protocol, undefended; one client holds the members.

    Pairs are of one class, as in a run's challenge. In the negative control another client holds the members, and the
    victim other auxiliary records.
    """
    made = _design(attack, plan)
    pairs = len(made.member) // 2
    found = {
        "positive": _heard(attack, plan, made, [made.members, made.rest]),
        "negative": _heard(attack, plan, made, [made.rest, made.members]),
    }
    return passed(
        (
            f"accept bits of a selector fitted to {pairs} auxiliary records, against {pairs} held out",
            found["positive"],
        ),
        ("the same candidates, a selector fitted to other records", found["negative"]),
    )


def _design(attack: AttackPlan, plan: Plan) -> Design:
    """Return pairs of auxiliary records of one class, from about half of the classes, and the remaining records."""
    x, y = plan.auxiliary
    generator = child(plan.seed, "control", attack.name, "design")
    chosen, pairs, labels = list[Tensor](), 0, y.unique()
    labels = labels[torch.randperm(len(labels), generator=generator)]
    for label in labels[: max((len(labels) + 1) // 2, 1)].tolist():
        of = (y == label).nonzero().squeeze(1)
        of = of[torch.randperm(len(of), generator=generator)]
        chosen.append(of[: 2 * min(len(of) // 2, _MOST_PAIRS)])
        pairs += len(chosen[-1]) // 2
        if pairs >= _PAIRS:
            break
    rows = torch.cat(chosen)
    rest = ~torch.isin(torch.arange(len(y)), rows)
    coins = torch.randint(2, (pairs,), generator=generator).bool()
    pair = torch.arange(pairs).repeat_interleave(2)
    return Design(
        challenge=Challenge(target=_VICTIM, x=x[rows], y=y[rows], pair=pair),
        member=torch.stack([coins, ~coins], 1).flatten(),
        rest=(x[rest], y[rest]),
    )


def _heard(attack: AttackPlan, plan: Plan, made: Design, data: list[tuple[Tensor, Tensor]]) -> Measured:
    """Return the attack's AUC about the first client of a rehearsal, as an eavesdropper."""
    with scratch("control") as folder:
        rehearsal = rehearsal_of(
            plan, EAVESDROPPER, config=_short(stand_in_of(plan)[1]), defended=False, own=folder
        )
        view = rehearsal(data, child_seed(plan.seed, "control", attack.name))
        knowledge = Knowledge(
            auxiliary=made.rest,
            encode=plan.encoder,
            public=plan.public if len(plan.public) else None,
            classes=plan.dataset.classes,
            task=plan.dataset.task,
        )
        task = AttackTask(targets=(_VICTIM,), challenges={_VICTIM: made.challenge})
        case = Trial(knowledge=knowledge, task=task, seed=attack_seed(plan, attack))
        return guessed(attack, plan, view, case, made)


def _short(config: Config) -> Config:
    """Return the settings with a few rounds and little training, if these are settings: selectors need no more."""
    short: dict[str, Any] = {"rounds": _ROUNDS, "warm_up_steps": 1, "local_steps": 1, "distill_steps": 1}
    kept = {k: min(v, getattr(config, k)) for k, v in short.items() if k in type(config).model_fields}
    return config.model_copy(update=kept)

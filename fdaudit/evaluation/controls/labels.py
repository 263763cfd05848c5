"""Controls of attacks on class shares: the run's own protocol, undefended, with clients of very uneven classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.data import class_counts
from fdaudit.evaluation.controls._membership import attack_seed, knowing, undefended
from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.isolation.attacker import attack as run_attack
from fdaudit.isolation.schema import Trial
from fdaudit.metrics import mean_figure, total_variation
from fdaudit.result import Control
from fdaudit.rng import child, child_numpy
from fdaudit.tasks import labels_of
from fdaudit.types import AttackTask, Figure

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case

__all__ = ["MOST_CLIENTS", "most_of", "rounds_of", "skewed_clients"]

MOST_CLIENTS = 4
"""Clients of the control, unless the run has fewer."""
_MOST_ROUNDS = 3
"""Rounds of the control, unless the attack's card states its `rounds`: PLS sends no row before a class is learnt."""
_SHORTEST = dict.fromkeys(
    ("local_steps", "local_epochs", "warm_up_steps", "distill_rounds", "distill_steps", "steps_per_round"), 1
)
"""Lengths of training in the control of an attack that reads counts, which no training changes."""
_MOST_RECORDS = 4_000
_OWN_SHARE = 0.9
"""Share of a client's records from its own classes, which no other client of the control favours."""
_WORKS = 0.5
"""Largest distance, as a share of the prior's, at which the attack counts as working: the report's own rule."""


def rounds_of(attack: AttackPlan) -> int:
    """Return the most rounds of an attack's control."""
    return int(attack.card.control.get("rounds", _MOST_ROUNDS))


def most_of(attack: AttackPlan) -> dict[str, int]:
    """Return the largest values of settings in an attack's control; the shortest training where it reads no model."""
    most = {"rounds": rounds_of(attack)}
    return most if attack.card.control.get("trained", True) else {**most, **_SHORTEST}


def skewed_clients(attack: AttackPlan, case: Case) -> dict[str, Control]:
    """Return both controls of an attack on class shares.

    The victims hold half of the auxiliary records, each client mostly its own classes. The attack knows the other half
    and sees all traffic. The negative control compares the same guesses with another client's shares: guesses that are
    still right did not come from the client's messages.
    """
    generator = child(case.seed, "control", attack.name, "victims")
    x, y = case.auxiliary
    order = torch.randperm(len(y), generator=generator)[:_MOST_RECORDS]
    victims, known = order[: len(order) // 2], order[len(order) // 2 :]
    C = case.dataset.classes
    parts = _uneven(y[victims], max(2, min(case.spec.clients, C, MOST_CLIENTS)), generator)
    data = [(x[victims[part]], y[victims[part]]) for part in parts]
    truths = [_shares(labels, C) for _, labels in data]
    what = f"{len(data)} undefended clients with half of the auxiliary records, {_OWN_SHARE:.0%} of their own classes"
    empty = any(not int(class_counts(labels, C).sum()) for _, labels in data)
    guesses = (
        f"{len(y)} auxiliary records do not give every client of the control a class"
        if empty
        else _guesses(attack, case, data, (x[known], y[known]))
    )
    if isinstance(guesses, str):
        unavailable = Figure(name="label_tv", value=None, unavailable=guesses)
        lost = Control(what=what, passed=False, figures=(unavailable,))
        return {"positive": lost, "negative": lost}
    turned = [*truths[1:], truths[0]]
    found, prior = _distances(attack, case, guesses, truths)
    other, other_prior = _distances(attack, case, guesses, turned)
    return {
        "positive": Control(
            what=f"{what}: mean total variation at most {_WORKS:g} times that of all clients' shares together",
            passed=(found.value or 0.0) <= _WORKS * (prior.value or 0.0),
            figures=(found, prior),
        ),
        "negative": Control(
            what="the same guesses held against another client's shares: farther off than all clients' shares together",
            passed=(other.value or 0.0) > (other_prior.value or 0.0),
            figures=(other, other_prior),
        ),
    }


def _uneven(y: Tensor, clients: int, generator: torch.Generator) -> list[Tensor]:
    """Return row numbers by client: a record goes to its home, except a tenth that is spread evenly."""
    home = labels_of(y).home(y, clients)
    stray = torch.rand(len(home), generator=generator) >= _OWN_SHARE
    anywhere = torch.randint(clients, home.shape, generator=generator)
    holder = torch.where(stray, anywhere, home)
    return [(holder == k).nonzero().flatten() for k in range(clients)]


def _shares(y: Tensor, classes: int) -> Tensor:
    counts = class_counts(y, classes).double()
    return counts / counts.sum().clamp_min(1)


def _distances(
    attack: AttackPlan, case: Case, guesses: Sequence[LabelDistribution], truths: Sequence[Tensor]
) -> tuple[Figure, Figure]:
    """Return the mean total variation of the guesses, and of the best constant guess: the shares over all clients."""
    pooled = torch.stack(list(truths)).mean(0)
    found = [total_variation(t, g.distribution) for t, g in zip(truths, guesses, strict=True)]
    prior = [total_variation(t, pooled) for t in truths]
    made = []
    for name, values in (("label_tv", found), ("label_tv_prior", prior)):
        draws = child_numpy(case.seed, "control", attack.name, "score", name)
        made.append(mean_figure(f"{name}_mean", values, draws))
    return made[0], made[1]


def _guesses(
    attack: AttackPlan, case: Case, data: Sequence[tuple[Tensor, Tensor]], auxiliary: tuple[Tensor, Tensor]
) -> Sequence[LabelDistribution] | str:
    """Return the attack's guess about each client, in their order, or the reason why there is none."""
    with undefended(attack, case, data, most_of(attack)) as (rehearsal, view):
        public = rehearsal.common.public if len(rehearsal.common.public) else None
        knowledge = knowing(case, auxiliary=auxiliary, encode=case.encoder, public=public, rehearse=rehearsal)
        task = AttackTask(targets=tuple(f"client/{k}" for k in range(len(data))))
        trial = Trial(knowledge=knowledge, task=task, seed=attack_seed(case, attack))
        made = run_attack(attack, view, trial)
        if isinstance(made, str):
            return f"the attack does not apply to its own control: {made}"
        by_client = {g.target: g for g in made if isinstance(g, LabelDistribution)}
        return [by_client[k] for k in task.targets]

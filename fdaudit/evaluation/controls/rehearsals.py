"""Controls on the run's own protocol, undefended: of attacks on class shares, and on accept bits.

Clients of the first have very uneven classes. Selectors of the second are fitted to auxiliary records by known coins.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.data import class_counts
from fdaudit.evaluation.controls._case import (
    Attempt,
    Figures,
    Records,
    SmallCase,
    impossible,
    knowing,
    overheard,
    shortened,
)
from fdaudit.evaluation.controls._membership import ControlRecord, PairedCandidates, on_coins, tossed
from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.metrics import mean_figure, total_variation
from fdaudit.result import Control
from fdaudit.rng import child, child_numpy
from fdaudit.tasks import labels_of
from fdaudit.types import AttackTask

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case

__all__ = ["MOST_CLIENTS", "most_of", "rehearsed_selector", "rounds_of", "skewed_clients"]

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
_PAIRS = 25
"""Number of pairs after which the victim gets no further class."""
_MOST_PAIRS = 40
"""Most pairs of one class."""
_SELECTORS = {"rounds": 3, "warm_up_steps": 1, "local_steps": 1, "distill_steps": 1}
"""A few rounds and little training: selectors need no more."""


def rounds_of(attack: AttackPlan) -> int:
    """Return the most rounds of an attack's control."""
    return int(attack.card.control.get("rounds", _MOST_ROUNDS))


def most_of(attack: AttackPlan) -> dict[str, int]:
    """Return the largest values of settings in an attack's control; the shortest training where it reads no model."""
    most = {"rounds": rounds_of(attack)}
    return most if attack.card.control.get("trained", True) else {**most, **_SHORTEST}


def skewed_clients(attack: AttackPlan, case: Case) -> dict[str, SmallCase | Control]:
    """Return both cases of an attack on class shares.

    The victims hold half of the auxiliary records, each client mostly its own classes. The attack knows the other half
    and sees all traffic. The negative control compares the same guesses with another client's shares: guesses that are
    still right did not come from the client's messages.
    """
    generator = child(case.seed, "control", attack.name, "victims")
    x, y = case.auxiliary
    order = torch.randperm(len(y), generator=generator)[:_MOST_RECORDS]
    rows, others = order[: len(order) // 2], order[len(order) // 2 :]
    classes = case.dataset.classes
    data, truths = list[Records](), list[Tensor]()
    for part in _uneven(y[rows], max(2, min(case.spec.clients, classes, MOST_CLIENTS)), generator):
        data.append((x[rows[part]], y[rows[part]]))
        truths.append(class_counts(y[rows[part]], classes).double())
    what = f"{len(data)} undefended clients with half of the auxiliary records, {_OWN_SHARE:.0%} of their own classes"
    if not all(counts.sum() for counts in truths):
        reason = f"{len(y)} auxiliary records do not give every client of the control a class"
        lost = impossible(what, ("label_tv", ""), reason)
        return {"positive": lost, "negative": lost}
    rehearsal = shortened(case, most_of(attack))
    public = rehearsal.common.public
    attempt = Attempt(
        record=overheard(attack, case, rehearsal, data),
        knowledge=knowing(
            case,
            auxiliary=(x[others], y[others]),
            encode=case.encoder,
            public=public if len(public) else None,
            rehearse=rehearsal,
        ),
        task=AttackTask(targets=tuple(f"client/{k}" for k in range(len(data)))),
    )
    shares = [counts / counts.sum() for counts in truths]

    def near(figures: Figures) -> bool:
        distance, prior = figures.values()
        return (distance.value or 0.0) <= _WORKS * (prior.value or 0.0)

    def far(figures: Figures) -> bool:
        distance, prior = figures.values()
        return (distance.value or 0.0) > (prior.value or 0.0)

    closer = f"{what}: mean total variation at most {_WORKS:g} times that of all clients' shares together"
    farther = (
        "the same guesses held against another client's shares: farther off than all clients' shares together"
    )
    cases = dict[str, SmallCase | Control]()
    attempts = (attempt,)
    for name, words, compared, passes in (
        ("positive", closer, shares, near),
        ("negative", farther, [*shares[1:], shares[0]], far),
    ):
        cases[name] = SmallCase(
            what=words,
            attempts=attempts,
            score=partial(_distances, attack, case, compared),
            passes=passes,
            leading=("label_tv", ""),
            without=what,
        )
    return cases


def _uneven(y: Tensor, clients: int, generator: torch.Generator) -> list[Tensor]:
    """Return row numbers by client: a record goes to its home, except a tenth that is spread evenly."""
    home = labels_of(y).home(y, clients)
    stray = torch.rand(len(home), generator=generator) >= _OWN_SHARE
    anywhere = torch.randint(clients, home.shape, generator=generator)
    holder = torch.where(stray, anywhere, home)
    return [(holder == k).nonzero().flatten() for k in range(clients)]


def _distances(
    attack: AttackPlan, case: Case, truths: Sequence[Tensor], guesses: Sequence[LabelDistribution]
) -> Figures:
    """Return the mean total variation of the guesses, and of the best constant guess: all clients' shares."""
    by_client = {guess.target: guess.distribution for guess in guesses}
    pooled = torch.stack(list(truths)).mean(0)
    distances: dict[str, list[float]] = {"label_tv": [], "label_tv_prior": []}
    for k, truth in enumerate(truths):
        distances["label_tv"].append(total_variation(truth, by_client[f"client/{k}"]))
        distances["label_tv_prior"].append(total_variation(truth, pooled))
    figures = {}
    for name, values in distances.items():
        draws = child_numpy(case.seed, "control", attack.name, "score", name)
        figures[name] = mean_figure(f"{name}_mean", values, draws)
    return figures


# -- accept bits ------------------------------------------------------------------------------------------------


def rehearsed_selector(attack: AttackPlan, case: Case) -> dict[str, SmallCase]:
    """Return both cases: a few rounds of the run's own protocol, undefended; one client holds the members.

    Pairs are of one class, as in a run's challenge. In the negative control another client holds the members, and the
    victim other auxiliary records.
    """
    coins = _same_class(attack, case)
    rehearsal = shortened(case, _SELECTORS)
    public = rehearsal.common.public
    knowledge = Knowledge(
        auxiliary=coins.rest,
        encode=case.encoder,
        public=public if len(public) else None,
        classes=case.dataset.classes,
        task=case.dataset.task,
    )
    return on_coins(
        attack,
        case,
        coins,
        ControlRecord(
            f"accept bits of a selector fitted to {coins.pairs} auxiliary records, against {coins.pairs} held out",
            overheard(attack, case, rehearsal, [coins.members, coins.rest]),
        ),
        ControlRecord(
            "the same candidates, a selector fitted to other records",
            overheard(attack, case, rehearsal, [coins.rest, coins.members]),
        ),
        knowledge=knowledge,
    )


def _same_class(attack: AttackPlan, case: Case) -> PairedCandidates:
    """Return pairs of auxiliary records of one class, from about half of the classes, and the remaining records."""
    x, y = case.auxiliary
    generator = child(case.seed, "control", attack.name, "design")
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
    return tossed((x[rows], y[rows]), (x[rest], y[rest]), generator)

"""Controls of attacks on accept bits: the run's own selector, fitted to auxiliary records by known coins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.evaluation.controls._membership import (
    Measured,
    PairedCandidates,
    guessed,
    passed,
    tossed,
    undefended,
)
from fdaudit.rng import child

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case
    from fdaudit.result import Control

__all__ = ["rehearsed_selector"]

_PAIRS = 25
"""Number of pairs after which the victim gets no further class."""
_MOST_PAIRS = 40
"""Most pairs of one class."""
_MOST = {"rounds": 3, "warm_up_steps": 1, "local_steps": 1, "distill_steps": 1}
"""A few rounds and little training: selectors need no more."""


def rehearsed_selector(attack: AttackPlan, case: Case) -> dict[str, Control]:
    """Return both controls: a few rounds of the run's own protocol, undefended; one client holds the members.

    Pairs are of one class, as in a run's challenge. In the negative control another client holds the members, and the
    victim other auxiliary records.
    """
    made = _design(attack, case)
    pairs = len(made.member) // 2
    found = {
        "positive": _heard(attack, case, made, [made.members, made.rest]),
        "negative": _heard(attack, case, made, [made.rest, made.members]),
    }
    return passed(
        (
            f"accept bits of a selector fitted to {pairs} auxiliary records, against {pairs} held out",
            found["positive"],
        ),
        ("the same candidates, a selector fitted to other records", found["negative"]),
    )


def _design(attack: AttackPlan, case: Case) -> PairedCandidates:
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


def _heard(
    attack: AttackPlan, case: Case, made: PairedCandidates, data: list[tuple[Tensor, Tensor]]
) -> Measured:
    """Return the attack's AUC about the first client of a rehearsal, as an eavesdropper."""
    with undefended(attack, case, data, _MOST) as (rehearsal, view):
        public = rehearsal.common.public
        knowledge = Knowledge(
            auxiliary=made.rest,
            encode=case.encoder,
            public=public if len(public) else None,
            classes=case.dataset.classes,
            task=case.dataset.task,
        )
        return guessed(attack, case, view, knowledge, made)

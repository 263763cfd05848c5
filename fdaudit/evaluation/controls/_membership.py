"""Coins over auxiliary records, and the small cases of attacks that guess them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.optim.swa_utils import update_bn

from fdaudit.evaluation.controls._case import VICTIM, Attempt, Figures, Records, SmallCase, knowing
from fdaudit.goals.membership import Membership
from fdaudit.handout.auxiliary import others
from fdaudit.metrics import auc_figure, auc_p_value
from fdaudit.rng import child, child_numpy
from fdaudit.training.trainer import parameters_of
from fdaudit.types import AttackTask, Challenge

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.oracle import Oracle
    from fdaudit.adversary.view import View
    from fdaudit.planning.case import Case
    from fdaudit.training.trainer import Parameters, Trainer

__all__ = [
    "CONFIDENCE",
    "MOST_CANDIDATES",
    "WORKS",
    "ControlRecord",
    "PairedCandidates",
    "design",
    "on_coins",
    "settled",
    "tossed",
]

CONFIDENCE = 0.999
"""Level of negative controls: at 95 % one honest run in twenty would read inconclusive by chance."""
WORKS = 0.01
"""p-value up to which a positive control has found members: a dozen pairs of auxiliary records can reach it."""
MOST_CANDIDATES = 400


@dataclass(frozen=True, kw_only=True, eq=False)
class PairedCandidates:
    """Candidates in pairs, one of each a member by a fair coin, and the remaining records.

    Attributes:
        challenge: the challenge about `client/0`.
        member: (n,) which candidates are members.
        rest: (x, y) auxiliary records that are not candidates.
    """

    challenge: Challenge
    member: Tensor
    rest: Records

    @property
    def members(self) -> Records:
        """Return the victim's records (x, y)."""
        return self.challenge.x[self.member], self.challenge.y[self.member]

    @property
    def pairs(self) -> int:
        """Return the number of coins."""
        return len(self.member) // 2


def design(
    attack: AttackPlan,
    case: Case,
    *,
    share: float,
    most: int = MOST_CANDIDATES,
    random_labels: bool = False,
) -> PairedCandidates:
    """Return coins over auxiliary records.

    Args:
        attack: the attack under control; its name labels the draws.
        case: the case with the auxiliary records.
        share: share of the records that become candidates.
        most: the most candidates.
        random_labels: draw labels independently of the images.
    """
    x, y = case.auxiliary
    generator = child(case.seed, "control", attack.name, "design")
    order = torch.randperm(len(x), generator=generator)
    x, y = x[order], y[order]
    if random_labels:
        y = torch.randint(case.dataset.classes, (len(x),), generator=generator)
    n = 2 * max(min(int(share * len(x)), most) // 2, 1)
    return tossed((x[:n], y[:n]), (x[n:], y[n:]), generator)


def tossed(candidates: Records, rest: Records, generator: torch.Generator) -> PairedCandidates:
    """Return coins over candidates (x, y) that follow each other in pairs."""
    (x, y), pairs = candidates, len(candidates[1]) // 2
    coins = torch.randint(2, (pairs,), generator=generator).bool()
    challenge = Challenge(target=VICTIM, x=x, y=y, pair=torch.arange(pairs).repeat_interleave(2))
    return PairedCandidates(challenge=challenge, member=torch.stack([coins, ~coins], 1).flatten(), rest=rest)


def settled(trainer: Trainer, weights: Parameters, x: Tensor) -> Parameters:
    """Set running statistics to those of x (n, ...) at these weights.

    They follow training slowly: MobileNet's move by a hundredth a step, and what a network has learnt by heart in
    twenty steps does not show in its answers for hundreds.
    """
    if not trainer.keeps_statistics:
        return weights
    network = trainer.network(weights)
    with trainer.randomness(0):
        update_bn([x], network, trainer.device)
    return parameters_of(network)


class ControlRecord(NamedTuple):
    """A record of which members follow, or do not.

    Attributes:
        what: the record in words.
        record: opens the adversary's view.
        reply: answers the questions to an oracle.
    """

    what: str
    record: AbstractContextManager[View]
    reply: Callable[[Tensor, str | None], Tensor] | None = None


def on_coins(
    attack: AttackPlan,
    case: Case,
    coins: PairedCandidates,
    positive: ControlRecord,
    negative: ControlRecord,
    *,
    knowledge: Knowledge | None = None,
    public: Tensor | None = None,
    oracle: Oracle | None = None,
    learnt: bool = True,
) -> dict[str, SmallCase]:
    """Return both cases: the positive AUC must be beyond chance, the negative one within.

    P-values are exact over the coins: a bootstrap interval would be too narrow for scores that are nearly equal.

    Args:
        attack: the attack under control.
        case: the run's case.
        coins: the truth of both cases.
        positive: a record that depends on the coins.
        negative: one that does not.
        knowledge: what the adversary knows; default: auxiliary records, the task encoder and `public`.
        public: (n, c, h, w) public samples.
        oracle: terms of the oracle.
        learnt: whether the members' labels were learnt; without that the positive control fails.
    """
    if knowledge is None:
        knowledge = knowing(case, auxiliary=others(case).records, encode=case.encoder, public=public)
    task = AttackTask(targets=(VICTIM,), challenges={VICTIM: coins.challenge}, oracle=oracle)

    def score(guesses: Sequence[Membership]) -> Figures:
        (guess,) = guesses
        draws = child_numpy(case.seed, "control", attack.name, "score")
        pair = coins.challenge.pair
        auc = auc_figure(guess.scores, coins.member, draws, pair=pair, confidence=CONFIDENCE)
        below = auc_p_value(-guess.scores, coins.member, pair=pair)
        above = 1.0 if auc.p is None else auc.p
        # Two-sided: the probability of a distance to 0.5 at least as large by chance.
        return {"auc": auc, "either": replace(auc, p=min(1.0, 2 * min(below, above)))}

    def finds_members(figures: Figures) -> bool:
        p = figures["auc"].p
        return learnt and p is not None and p <= WORKS

    def is_chance(figures: Figures) -> bool:
        p = figures["either"].p
        return figures["auc"].value is not None and p is not None and p > 1 - CONFIDENCE

    beyond = f"AUC above 0.5, by chance with p of at most {WORKS:g}"
    within = f"AUC as near 0.5 as chance has it, p above {1 - CONFIDENCE:.2g} to either side"
    cases = dict[str, SmallCase]()
    for name, (what, record, reply), expected, passes in (
        ("positive", positive, beyond, finds_members),
        ("negative", negative, within, is_chance),
    ):
        cases[name] = SmallCase(
            what=f"{what}: {expected}",
            attempts=(Attempt(record=record, knowledge=knowledge, task=task, reply=reply),),
            score=score,
            passes=passes,
            figures=("auc",),
            leading=("auc", ""),
        )
    return cases

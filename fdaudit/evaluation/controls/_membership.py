"""Shared parts of membership attacks' controls: coins over auxiliary records, and figures of both controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.swa_utils import update_bn

from fdaudit import protocols
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import EAVESDROPPER, View, view_of
from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import Common
from fdaudit.federation.rehearsal import rehearse
from fdaudit.goals.membership import Membership
from fdaudit.handout.auxiliary import others
from fdaudit.handout.rehearsals import rehearsal_of, stand_in_of
from fdaudit.isolation.attacker import attack as run_attack
from fdaudit.isolation.schema import Trial
from fdaudit.metrics import auc_p_value, score_membership
from fdaudit.result import Control
from fdaudit.rng import SecretStream, child, child_numpy, child_seed
from fdaudit.storage.scratch import scratch
from fdaudit.training.trainer import parameters_of
from fdaudit.transcript.transcript import Transcript
from fdaudit.types import AttackTask, Challenge, Figure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.adversary.oracle import Oracle
    from fdaudit.federation.protocol import ProtocolConfig
    from fdaudit.isolation.rehearsal import Rehearsal
    from fdaudit.planning.case import Case
    from fdaudit.training.trainer import Parameters, Trainer
    from fdaudit.transcript.wire import Defense

__all__ = [
    "CONFIDENCE",
    "MOST_CANDIDATES",
    "MOST_PUBLIC",
    "WORKS",
    "Measured",
    "PairedCandidates",
    "attack_seed",
    "design",
    "guessed",
    "knowing",
    "measured",
    "on_protocol",
    "passed",
    "said",
    "score",
    "settled",
    "tossed",
    "undefended",
]

CONFIDENCE = 0.999
"""Level of negative controls: at 95 % one honest run in twenty would read inconclusive by chance."""
WORKS = 0.01
"""p-value up to which a positive control has found members: a dozen pairs of auxiliary records can reach it."""
MOST_CANDIDATES = 400
MOST_PUBLIC = 500
"""Most public samples of a federation in a control: answers about all of many would take longer than the attack."""
_VICTIM = "client/0"


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
    rest: tuple[Tensor, Tensor]

    @property
    def members(self) -> tuple[Tensor, Tensor]:
        """Return the victim's records (x, y)."""
        return self.challenge.x[self.member], self.challenge.y[self.member]


def design(
    attack: AttackPlan,
    case: Case,
    *,
    share: float = 1.0,
    most: int = MOST_CANDIDATES,
    random_labels: bool = True,
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


def tossed(
    candidates: tuple[Tensor, Tensor], rest: tuple[Tensor, Tensor], generator: torch.Generator
) -> PairedCandidates:
    """Return coins over candidates (x, y) that follow each other in pairs."""
    (x, y), pairs = candidates, len(candidates[1]) // 2
    coins = torch.randint(2, (pairs,), generator=generator).bool()
    challenge = Challenge(target=_VICTIM, x=x, y=y, pair=torch.arange(pairs).repeat_interleave(2))
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


@contextmanager
def said(
    case: Case,
    attack: AttackPlan,
    messages: Sequence[tuple[str, str, str, Mapping[str, Tensor]]],
    to: str = "server",
    *,
    clients: Sequence[str] = (),
    public: Mapping[str, Any] | None = None,
) -> Iterator[View]:
    """Yield the view of `to` on a transcript of these messages: sender, receiver, kind, tensors.

    Args:
        case: the run's case.
        attack: the attack under control.
        messages: what is sent.
        to: whose view it is.
        clients: clients besides those that send or receive something.
        public: the protocol's public configuration.
    """
    named = {name for m in messages for name in m[:2] if name.startswith("client/")}
    clients = sorted({*named, *clients, _VICTIM})
    seed = child_seed(case.seed, "control", attack.name, "secret").to_bytes(8, "big")
    secret = SecretStream(seed * 2, "control").bytes(32)
    with scratch("control") as folder:
        with Transcript(folder, secret=secret) as transcript:
            for sender, receiver, kind, tensors in messages:
                transcript.record(sender, receiver, kind, tensors)
        yield view_of(folder, to, parties=("server", *clients, "world"), hyperparameters=dict(public or {}))


@contextmanager
def undefended(
    attack: AttackPlan, case: Case, data: Sequence[tuple[Tensor, Tensor]], most: Mapping[str, int]
) -> Iterator[tuple[Rehearsal, View]]:
    """Yield a rehearsal of the run's own protocol, undefended, and what an eavesdropper sees of its clients' data.

    Its public samples are at most `MOST_PUBLIC` of the run's, evenly spread over them.

    Args:
        attack: the attack under control.
        case: the run's case.
        data: the records (x, y) of each client.
        most: largest values of settings; those that the protocol does not have, or that are not set, are left out.
    """
    config = stand_in_of(case)[1]
    less = {}
    for name, value in most.items():
        if name in type(config).model_fields and getattr(config, name) is not None:
            less[name] = min(value, getattr(config, name))
    short = config.model_copy(update=less)
    with scratch("control") as folder:
        rehearsal = rehearsal_of(case, EAVESDROPPER, config=short, defended=False, own=folder)
        rehearsal = replace(rehearsal, common=_with_less_public(case.common))
        yield rehearsal, rehearsal(list(data), child_seed(case.seed, "control", attack.name))


def _with_less_public(common: Common) -> Common:
    held = len(common.public)
    if held <= MOST_PUBLIC:
        return common
    rows = torch.arange(MOST_PUBLIC) * held // MOST_PUBLIC
    labels = None if common.public_labels is None else common.public_labels[rows]
    return replace(common, public=common.public[rows], public_labels=labels)


def on_protocol(
    name: str,
    attack: AttackPlan,
    case: Case,
    folder: Path,
    config: ProtocolConfig,
    data: Sequence[tuple[Tensor, Tensor]],
    defenses: Mapping[tuple[str, str], Sequence[Defense]] | None = None,
) -> View:
    """Return what the server sees of a protocol on the run's network, with these clients' records (x, y)."""
    x, _ = case.auxiliary
    return rehearse(
        folder / "transcript",
        protocol=protocols.REGISTRY.load(name),
        config=config,
        common=Common(
            networks=Networks(case.architecture),
            execution=case.execution,
            public=x.new_zeros(0, *x.shape[1:]),
            task=case.dataset.task,
        ),
        data=data,
        seed=child_seed(case.seed, "control", attack.name),
        defenses=defenses,
    )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """An attack's AUC on one control.

    Attributes:
        auc: the AUC with its one-sided p-value over the control's own coins.
        either: two-sided p-value: probability of a distance to 0.5 at least as large by chance.
    """

    auc: Figure
    either: float = 1.0


def measured(
    attack: AttackPlan, case: Case, scores: Tensor, challenge: Challenge, member: Tensor
) -> Measured:
    """Return the AUC of scores (n,) on a control's challenge, and its p-values."""
    auc = score_membership(
        scores,
        member,
        generator=child_numpy(case.seed, "control", attack.name, "score"),
        pair=challenge.pair,
        confidence=CONFIDENCE,
    ).figures["auc"]
    below = auc_p_value(-scores, member, pair=challenge.pair)
    return Measured(auc=auc, either=min(1.0, 2 * min(below, 1.0 if auc.p is None else auc.p)))


def knowing(case: Case, **more: Any) -> Knowledge:
    """Return an adversary's knowledge of the run's network and task, and more fields of it."""
    return Knowledge(
        architecture=case.architecture,
        train=case.trainer(),
        classes=case.dataset.classes,
        task=case.dataset.task,
        **more,
    )


def score(
    attack: AttackPlan, case: Case, view: View, made: PairedCandidates, public: Tensor | None = None
) -> Measured:
    """Return the AUC of an attack about the design's victim, as the server of a view."""
    knowledge = knowing(case, auxiliary=others(case).records, encode=case.encoder, public=public)
    return guessed(attack, case, view, knowledge, made)


def attack_seed(case: Case, attack: AttackPlan) -> int:
    """Return the seed of an attack's draws in its controls."""
    return child_seed(case.seed, "control", attack.name, "attack")


def guessed(
    attack: AttackPlan,
    case: Case,
    view: View,
    knowledge: Knowledge,
    made: PairedCandidates,
    oracle: Oracle | None = None,
    reply: Callable[[Tensor, str | None], Tensor] | None = None,
) -> Measured:
    """Return the AUC of an attack about the design's victim."""
    task = AttackTask(targets=(_VICTIM,), challenges={_VICTIM: made.challenge}, oracle=oracle)
    trial = Trial(knowledge=knowledge, task=task, seed=attack_seed(case, attack))
    guesses = run_attack(attack, view, trial, reply)
    if isinstance(guesses, str):
        reason = f"the attack does not apply to its own control: {guesses}"
        return Measured(auc=Figure(name="auc", value=None, unavailable=reason))
    (guess,) = guesses
    if not isinstance(guess, Membership) or guess.scores.shape != made.member.shape:
        raise TypeError("the attack gave no score for each candidate of its own control")
    return measured(attack, case, guess.scores, made.challenge, made.member)


def passed(positive: tuple[str, Measured], negative: tuple[str, Measured]) -> dict[str, Control]:
    """Return both controls: the positive AUC must be beyond chance, the negative one within; texts name their data.

    P-values are exact over the coins: a bootstrap interval would be too narrow for scores that are nearly equal.
    """
    (found, high), (nothing, chance) = positive, negative
    level, works = f"{1 - CONFIDENCE:.2g}", f"{WORKS:g}"
    return {
        "positive": Control(
            what=f"{found}: AUC above 0.5, by chance with p of at most {works}",
            passed=high.auc.p is not None and high.auc.p <= WORKS,
            figures=(high.auc,),
        ),
        "negative": Control(
            what=f"{nothing}: AUC as near 0.5 as chance has it, p above {level} to either side",
            passed=chance.auc.value is not None and chance.either > 1 - CONFIDENCE,
            figures=(chance.auc,),
        ),
    }

"""Small cases of auxiliary records: a record, what an adversary knows, and the truth; attacked and scored as any case.

The victims are auxiliary records, so what a control sends holds nothing private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fdaudit import protocols
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import EAVESDROPPER, View, view_of
from fdaudit.config import validate
from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import Common
from fdaudit.federation.rehearsal import rehearse
from fdaudit.goals import Guess
from fdaudit.handout.auxiliary import Assumption, merged
from fdaudit.handout.rehearsals import rehearsal_of, stand_in_of
from fdaudit.isolation.schema import Trial
from fdaudit.isolation.trials import attack as run_attack
from fdaudit.result import Control
from fdaudit.rng import SecretStream, child_seed
from fdaudit.scoring.goals.scorer import CheckedTask
from fdaudit.scoring.guesses import check_guesses, refuse_another_goal
from fdaudit.storage.scratch import scratch
from fdaudit.transcript.transcript import Transcript
from fdaudit.types import AttackTask, Figure

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.federation.protocol import ProtocolConfig
    from fdaudit.isolation.rehearsal import Rehearsal
    from fdaudit.planning.case import Case
    from fdaudit.transcript.wire import Defense

__all__ = [
    "MOST_PUBLIC",
    "VICTIM",
    "Attempt",
    "Figures",
    "Records",
    "Sent",
    "SmallCase",
    "impossible",
    "knowing",
    "on_protocol",
    "overheard",
    "said",
    "shortened",
    "tried",
]

VICTIM = "client/0"
MOST_PUBLIC = 500
"""Most public samples of a federation in a control: answers about all of many would take longer than the attack."""
Records = tuple[Tensor, Tensor]
"""Records (x, y)."""
Sent = tuple[str, str, str, Mapping[str, Tensor]]
"""A message: sender, receiver, kind, tensors."""
Figures = Mapping[str, Figure]
"""Figures by name."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Attempt:
    """What one adversary is given.

    Attributes:
        record: opens the adversary's view; or why there is none.
        knowledge: what it is assumed to know as well.
        task: its victims.
        reply: answers the questions to the oracle of its task.
        assumed: its auxiliary records, if the attack is tried with several adversaries.
    """

    record: AbstractContextManager[View] | str
    knowledge: Knowledge
    task: AttackTask
    reply: Callable[[Tensor, str | None], Tensor] | None = None
    assumed: Assumption = field(default_factory=lambda: Assumption(None))


@dataclass(frozen=True, kw_only=True, eq=False)
class SmallCase:
    """A case with a known outcome.

    Attributes:
        what: the record and the expected figures, in words.
        without: the words if the attack does not apply; empty for the same.
        attempts: one for each adversary. Two cases with the same attempts share their guesses.
        score: compares guesses, which are of the attack's goal, with the truth.
        passes: whether figures are as expected.
        figures: names of the figures that a result shows, if there are such; empty for all.
        leading: the figure that says why there is none, and its unit.
        replaced: settings of the attack.
    """

    what: str
    attempts: Sequence[Attempt]
    score: Callable[[Sequence[Any]], Figures]
    passes: Callable[[Figures], bool]
    figures: Sequence[str] = ()
    leading: tuple[str, str]
    without: str = ""
    replaced: Mapping[str, Any] = field(default_factory=dict)


def tried(attack: AttackPlan, case: Case, cases: Mapping[str, SmallCase | Control]) -> dict[str, Control]:
    """Return the outcome of an attack on each small case, by name."""
    outcomes = dict[str, Control]()
    attempts: Sequence[Attempt] = ()
    for name, small in cases.items():
        if isinstance(small, Control):
            outcomes[name] = small
            continue
        if small.attempts is not attempts:
            attempts, guesses = small.attempts, _guesses(attack, case, small)
        if isinstance(guesses, str):
            reason = f"the attack does not apply to its own control: {guesses}"
            outcomes[name] = impossible(small.without or small.what, small.leading, reason)
            continue
        figures = small.score(guesses)
        selected = [figures[key] for key in small.figures or figures if key in figures]
        outcomes[name] = Control(what=small.what, passed=small.passes(figures), figures=tuple(selected))
    return outcomes


def impossible(what: str, leading: tuple[str, str], reason: str) -> Control:
    """Return the outcome of a case that has no figures."""
    name, unit = leading
    return Control(
        what=what, passed=False, figures=(Figure(name=name, value=None, unit=unit, unavailable=reason),)
    )


def _guesses(attack: AttackPlan, case: Case, small: SmallCase) -> tuple[Guess, ...] | str:
    """Return the checked guesses of all adversaries, or why there are none."""
    attack = replace(attack, params={**(attack.params or {}), **small.replaced})
    seed = child_seed(case.seed, "control", attack.name, "attack")
    by_adversary = list[tuple[Guess, ...]]()
    for attempt in small.attempts:
        if isinstance(attempt.record, str):
            return attempt.record
        with attempt.record as view:
            trial = Trial(knowledge=attempt.knowledge, task=attempt.task, seed=seed)
            guesses = run_attack(attack, view, trial, attempt.reply)
        if isinstance(guesses, str):
            return guesses
        if guesses:
            task = attempt.task
            asked_for = CheckedTask.of(task.targets, task.challenges, view, case.dataset.classes)
            check_guesses(guesses, asked_for)
            refuse_another_goal(guesses, attack.card.goal_on(case.dataset.task.name))
        by_adversary.append(guesses)
    return merged(by_adversary, [attempt.assumed for attempt in small.attempts]) or "it guessed nothing"


def knowing(case: Case, **more: Any) -> Knowledge:
    """Return an adversary's knowledge of the run's network and task, and more fields of it."""
    return Knowledge(
        architecture=case.architecture,
        train=case.trainer(),
        classes=case.dataset.classes,
        task=case.dataset.task,
        **more,
    )


# -- what is recorded -------------------------------------------------------------------------------------------


@contextmanager
def said(
    attack: AttackPlan,
    case: Case,
    messages: Sequence[Sent],
    to: str = "server",
    *,
    parties: Sequence[str] = ("server", VICTIM, "world"),
    public: Mapping[str, Any] | None = None,
) -> Iterator[View]:
    """Yield the view of `to` on a transcript of these messages.

    Args:
        attack: the attack under control.
        case: the run's case.
        messages: what is sent.
        to: whose view it is.
        parties: every party.
        public: the protocol's public configuration.
    """
    seed = child_seed(case.seed, "control", attack.name, "secret").to_bytes(8, "big")
    secret = SecretStream(seed * 2, "control").bytes(32)
    with scratch("control") as folder:
        with Transcript(folder, secret=secret) as transcript:
            for sender, receiver, kind, tensors in messages:
                transcript.record(sender, receiver, kind, tensors)
        yield view_of(folder, to, parties=tuple(parties), hyperparameters=dict(public or {}))


@contextmanager
def on_protocol(
    name: str,
    attack: AttackPlan,
    case: Case,
    settings: Mapping[str, Any],
    data: Sequence[Records],
    defenses: Mapping[tuple[str, str], Sequence[Defense]] | None = None,
) -> Iterator[View]:
    """Yield what the server sees of a protocol on the run's network, with these clients' records."""
    x, _ = case.auxiliary
    protocol = protocols.REGISTRY.load(name)
    config: ProtocolConfig = validate(protocol.Config, settings)
    with scratch("control") as folder:
        yield rehearse(
            folder / "transcript",
            protocol=protocol,
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


def shortened(case: Case, most: Mapping[str, int]) -> Rehearsal:
    """Return a rehearsal of the run's own protocol, undefended, as an eavesdropper's.

    Its public samples are at most `MOST_PUBLIC` of the run's, evenly spread over them.

    Args:
        case: the run's case.
        most: largest values of settings; those that the protocol does not have, or that are not set, are left out.
    """
    config = stand_in_of(case)[1]
    less = dict[str, int]()
    for name, value in most.items():
        present = getattr(config, name) if name in type(config).model_fields else None
        if present is not None:
            less[name] = min(value, present)
    rehearsal = rehearsal_of(case, EAVESDROPPER, config=config.model_copy(update=less), defended=False)
    common, size = case.common, len(case.common.public)
    if size > MOST_PUBLIC:
        rows = torch.arange(MOST_PUBLIC) * size // MOST_PUBLIC
        labels = common.public_labels
        labels = None if labels is None else labels[rows]
        common = replace(common, public=common.public[rows], public_labels=labels)
    return replace(rehearsal, common=common)


@contextmanager
def overheard(
    attack: AttackPlan, case: Case, rehearsal: Rehearsal, data: Sequence[Records]
) -> Iterator[View]:
    """Yield what an eavesdropper sees of a rehearsal in which clients hold these records."""
    with scratch("control") as folder:
        yield replace(rehearsal, own=folder)(list(data), child_seed(case.seed, "control", attack.name))

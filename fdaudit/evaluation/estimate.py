"""An estimate of the time, memory and disk of the attack stage, made before its first cell.

An attack states its `work` in steps (`steps.py`), and one is measured on the run's network, in a fraction of a second.
Memory follows from the network's parameters, the values that it keeps for a gradient, and the number of processes. Disk
follows from the messages on record.

The estimate assumes that nothing else uses the processors. A cell whose adversary sees no message that
the attack needs is not counted. Other cells may still turn out not to apply, and then the stage takes less time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fdaudit import attacks
from fdaudit.adversary.attack_plan import AttackPlan
from fdaudit.errors import SpecError
from fdaudit.evaluation.budget import Cost, ReducibleSetting, least_of, total
from fdaudit.evaluation.controls import rehearsals
from fdaudit.evaluation.controls._case import MOST_PUBLIC
from fdaudit.evaluation.controls._membership import MOST_CANDIDATES
from fdaudit.evaluation.controls.models import most_by_heart
from fdaudit.evaluation.steps import BATCH, Unit, Work, round_of
from fdaudit.goals import GOALS
from fdaudit.planning.attacks import plan_attack
from fdaudit.planning.case import Case
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.spec.schema import Spec
from fdaudit.storage.timings import read_timings
from fdaudit.transcript.messages import Message, role

__all__ = ["Costs", "Estimate", "costs_of", "estimate"]

_WORTH_SAYING = 30.0
"""Seconds of a stage that is worth a line."""
_MAIN, _EACH = 0.8, 1.1
"""Gigabytes of the main process, and of the two processes of an attack, beside the data of a run (proportional set
sizes)."""
_RECORDS = 64
"""Most images that an attack handles at once: the most that a gradient attack tries to separate."""
_KEPT = 4
"""Copies of a network's intermediate values that a gradient of a gradient holds."""
_COMMON = 1.1
"""Gigabytes of the results on disk that processes share."""
_TRAINED: Mapping[str, float] = {
    "answers": 2000,
    "average": 3000,
    "candidates": 3000,
    "classes": 4800,
    "discriminator": 2000,
    "federation": 3000,
    "labels": 3500,
    "model": 1000,
    "tables": 1500,
    "uploads": 250,
}
"""Steps of an attack's `once` for which its control trains networks, by its name. No setting changes them."""
_BY_HEART = 150
"""Full batches in which a control's network usually learns its records by heart."""
_REHEARSAL = "rehearsal"
"""The name of the rehearsal that all membership attacks share."""
_SAME_FOR_ALL = ("classes", "model")
"""Controls whose trained network all attacks of a run share."""
_FROM_VICTIMS = ("gradients", "labels", "neurons", "uploads")
"""Controls of attacks that read what a victim sends, never what a server publishes."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of the attacks of a run with the settings asked for.

    Attributes:
        attacks: of attacks that state their work and may apply.
        shared: the work that attacks share, by name.
        unit: a step of the run's network.
        cells: number of cells that may apply.
        unstated: attacks that may apply and state no work.
        views: gigabytes on disk that one process needs for the adversaries' views.
        rehearsal: gigabytes on disk of the rehearsal that membership attacks share; 0 if there is none.
    """

    attacks: tuple[Cost, ...]
    shared: Mapping[str, Cost]
    unit: Unit
    cells: int
    unstated: tuple[str, ...]
    views: float
    rehearsal: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The time, memory and disk that the cells of a run need.

    Attributes:
        cells: number of cells that may apply.
        processes: processes that run them.
        seconds: time for all of them.
        gigabytes: most memory of all processes together.
        disk: most gigabytes on disk, in addition to what is there.
        longest: the attack that takes longest.
        shape: channels, height and width of an image.
        unstated: attacks that state no work, and are not counted in `seconds`.
    """

    cells: int
    processes: int
    seconds: float
    gigabytes: float
    disk: float = 0.0
    longest: str
    shape: tuple[int, ...]
    unstated: tuple[str, ...] = ()

    def line(self, *, short_too: bool = False) -> str:
        """Return the estimate in words; without `short_too` empty for a stage of less than half a minute."""
        if self.seconds < _WORTH_SAYING and not short_too:
            return ""
        cells = "cell" if self.cells <= 1 else "cells"
        threads = "thread" if self.processes <= 1 else "threads"
        if self.seconds < 90:
            duration = f"{round(self.seconds, -1):.0f} s"
        elif self.seconds < 5400:
            duration = f"{self.seconds / 60:.0f} minutes"
        else:
            duration = f"{self.seconds / 3600:.1f} hours"
        size = " x ".join(map(str, self.shape[1:]))
        line = (
            f"attacks  {self.cells} {cells}, about {duration} on {self.processes} {threads} if nothing else runs; "
            f"at most about {self.gigabytes:.1f} GB of memory and {self.disk:.1f} GB on disk "
            f"(longest: {self.longest}; {size} pixels)"
        )
        if self.unstated:
            line += f"; not counted: {', '.join(self.unstated)}"
        return line


def estimate(run: RunDirectory, costs: Costs, processes: int) -> Estimate:
    """Return the time, memory and disk of cells from what they cost.

    Args:
        run: the run, with a finished federation.
        costs: what they cost.
        processes: how many processes run them.
    """
    longest = max(costs.attacks, key=lambda cost: total([cost], costs.shared, 1, 1.0), default=None)
    return Estimate(
        cells=costs.cells,
        processes=processes,
        seconds=total(costs.attacks, costs.shared, processes, 1.0),
        gigabytes=_gigabytes(run.case, costs.unit, processes),
        disk=processes * costs.views + costs.rehearsal + (_COMMON if processes > 1 else 0.0),
        longest=longest.attack if longest else "",
        shape=run.case.architecture.input_shape,
        unstated=costs.unstated,
    )


def costs_of(run: RunDirectory, cells: Mapping[AttackPlan, Sequence[str]]) -> Costs | None:
    """Return what cells cost; None if none may apply, or the run's network is not known.

    Args:
        run: the run, with a finished federation.
        cells: the adversaries of each attack.
    """
    case = run.case
    seen = dict[str, _VisibleKinds]()
    able = dict[AttackPlan, tuple[str, ...]]()
    for attack, names in cells.items():
        suited = list[str]()
        for name in names:
            if name not in seen:
                seen[name] = _VisibleKinds.by(run, name)
            if seen[name].suffices(attack, case):
                suited.append(name)
        if suited:
            able[attack] = tuple(suited)
    if not able or case.networks is None:
        return None
    unit, federation = Unit.measured(case), read_timings(run.path).get("federation", 0.0)
    # All membership attacks share one rehearsal of the run: their power control.
    rehearsal = Cost(attack=_REHEARSAL, seconds=federation)
    shared, on_disk = {_REHEARSAL: rehearsal}, 0.0
    costs, unstated = list[Cost](), list[str]()
    for attack, names in able.items():
        work = Work.of(attack.card)
        if work is None:
            unstated.append(attack.name)
            continue
        cost, parts = _cost(attack, work, names, case, unit, rehearsal)
        costs.append(cost)
        shared |= {part.attack: part for part in parts}
        if _REHEARSAL in cost.shared:
            on_disk = _on_disk(run.messages)
    return Costs(
        attacks=tuple(costs),
        shared=shared,
        unit=unit,
        cells=sum(map(len, able.values())),
        unstated=tuple(unstated),
        views=sum(one.gigabytes for one in seen.values()),
        rehearsal=on_disk,
    )


def _cost(
    attack: AttackPlan,
    work: Work,
    names: tuple[str, ...],
    case: Case,
    unit: Unit,
    rehearsal: Cost,
) -> tuple[Cost, list[Cost]]:
    """Return what an attack costs by itself, and each part of its work that it may share with other attacks."""
    settings, federation = _reducible(attack, work, case.spec), rehearsal.seconds
    control, trained = _control(attack, work, case, unit, federation)
    parts, runs = [control], 1
    if GOALS[attack.card.goal].challenged:
        if case.spec.canaries is not None:
            runs += 1
        if case.spec.rehearses and case.stand_in is not None:
            parts.append(rehearsal)
            runs += 1
    if work.victims:
        steps = unit.trained * case.spec.victims * round_of(case)
        parts.append(_shadows("shadows of each victim", (work.victims,), steps, attack, settings))
    if work.shadows:
        # One set is for the run, and one for the control.
        parts.append(_shadows("shadows", work.shadows, 2 * unit.trained, attack, settings))
    # A control runs the attack twice, where it must work and where it must fail.
    once = max(work.once - trained, min(work.once, 2 * work.each))
    quick = unit.seconds * (once + runs * len(names) * work.each) + work.rehearsals * federation
    leading = list[float]()
    for setting in settings.values():
        if setting.work == "leads":
            leading.append(setting.asked / setting.least)
    cost = Cost(
        attack=attack.name,
        adversaries=names,
        seconds=quick * work.growth(attack) * max(leading, default=1.0),
        shared=tuple(part.attack for part in parts),
        settings=settings,
    )
    return cost, parts


def _shadows(
    what: str,
    counts: Sequence[str],
    seconds: float,
    attack: AttackPlan,
    settings: Mapping[str, ReducibleSetting],
) -> Cost:
    """Return what shadow models cost, which attacks with the same numbers share.

    Args:
        what: the kind of models.
        counts: the settings whose product they cost.
        seconds: for a product of 1.
        attack: the attack.
        settings: its settings that may be reduced.
    """
    params = attack.params or {}
    numbers = list[int]()
    counted = dict[str, ReducibleSetting]()
    for count in counts:
        number = params.get(count)
        if type(number) is int:
            numbers.append(number)
        if count in settings:
            counted[count] = replace(settings[count], work="multiplies")
    bounds = [(one.asked, one.least) for one in counted.values()]
    name = f"{what}: {numbers} {bounds}"
    return Cost(attack=name, seconds=seconds * math.prod(numbers), settings=counted)


def _control(attack: AttackPlan, work: Work, case: Case, unit: Unit, federation: float) -> tuple[Cost, float]:
    """Return what the training of an attack's control costs, and for how many of the steps `once` it stands."""
    on, auxiliary, most = str(attack.card.control["on"]), len(case.auxiliary[1]), MOST_CANDIDATES // 2
    name, trained = f"control: {on}", _TRAINED.get(on, 0.0)
    if on not in _SAME_FOR_ALL:
        name, trained = f"{name} of {attack.name}", min(trained, work.once)
    by_heart = 0.0  # records that networks learn by heart
    if on == "model":
        by_heart = min(auxiliary // 2, most, most_by_heart(case.architecture.parameters))
    elif on in ("average", "federation"):
        by_heart = min(0.35 * auxiliary, most) + 0.3 * auxiliary
    steps = trained
    if by_heart:
        steps = _BY_HEART * by_heart / BATCH
    seconds = unit.seconds * steps
    if on == "labels" and federation:
        # It repeats some rounds of the run's federation with some of its clients.
        rounds, repeated, clients = case.settings.get("rounds"), 1.0, rehearsals.MOST_CLIENTS
        if type(rounds) is int and rounds > 0:
            repeated = min(1.0, rehearsals.rounds_of(attack) / rounds)
        seconds = federation * (repeated * min(1.0, clients / max(1, case.spec.clients)))
        if not attack.card.control.get("trained", True):
            # Clients train for a step or an epoch, and answer once.
            records = auxiliary / 2 + min(len(case.public), MOST_PUBLIC) * clients
            seconds = min(seconds, unit.seconds * (clients + records / BATCH))
    return Cost(attack=name, seconds=seconds), trained


def _reducible(attack: AttackPlan, work: Work, spec: Spec) -> dict[str, ReducibleSetting]:
    """Return the settings that a budget may reduce; those that the work is not proportional to, down to `quick`.

    What the user set by hand stays. So does an attack of a third party that refuses its least numbers.
    """
    by_hand = set[str]()
    for entry in () if spec.attacks == "all" else spec.attacks:
        if entry.name in (attack.asked, attack.name):
            by_hand |= set(entry.params)
    params = attack.params or {}
    settings = dict[str, ReducibleSetting]()
    for name, quick in attack.card.profiles["quick"].items():
        number = params.get(name)
        if name in by_hand or type(number) is not int or type(quick) is not int or min(number, quick) < 1:
            continue
        least = least_of(quick)
        if attack.own:  # no lower than its configuration allows
            field = attacks.REGISTRY.load(attack.name, "attack").Config.model_fields[name]
            for bound in field.metadata:
                least = max(least, int(getattr(bound, "ge", None) or 0))
        if name in work.grows:
            settings[name] = ReducibleSetting(asked=number, least=min(number, least))
        elif name == work.victims or name in work.shadows:
            settings[name] = ReducibleSetting(asked=number, least=min(number, least), work="elsewhere")
        elif number > quick:
            settings[name] = ReducibleSetting(asked=number, least=quick, work="leads")
    if settings and not attack.own:
        least_params = {**params, **{name: setting.least for name, setting in settings.items()}}
        try:
            plan_attack(attack.asked or attack.name, least_params, spec, "attack", attack.adversaries)
        except SpecError:
            return {}
    return settings


def _gigabytes(case: Case, unit: Unit, processes: int) -> float:
    """Return the memory of all processes: each holds the records, and gradients of many records at once."""
    records = max((len(client.train) for client in case.splits.clients), default=_RECORDS)
    values = min(_RECORDS, max(1, records)) * (unit.parameters + _KEPT * unit.kept)
    data = 0 if case.missing("images") else case.dataset.x.nbytes
    return _MAIN + data / 1e9 + processes * (_EACH + (4 * values + data) / 1e9)


def _on_disk(messages: Sequence[Message]) -> float:
    """Return the gigabytes of the messages' payloads that are on record."""
    length = 0
    for m in messages:
        if m.payload is not None:
            length += int(m.payload["length"])
    return length / 1e9


@dataclass(frozen=True, kw_only=True)
class _VisibleKinds:
    """What an adversary sees and may ask.

    Attributes:
        sent: kinds of the messages that clients outside it sent.
        published: kinds of the other parties' messages.
        answers: the answers that its oracle gives.
        gigabytes: size of its view on disk.
    """

    sent: frozenset[str]
    published: frozenset[str]
    answers: frozenset[str]
    gigabytes: float

    @classmethod
    def by(cls, run: RunDirectory, adversary: str) -> _VisibleKinds:
        members = adversary.split("+")
        view = run.view(adversary)
        from_clients, from_others = set[str](), set[str]()
        for message in view.messages:
            if role(message.sender) != "client":
                from_others.add(message.kind)
            elif message.sender not in members:
                from_clients.add(message.kind)
        answers = list[str]()
        for kind in ("soft", "hard"):
            if run.answering.oracle(members, kind) is not None:
                answers.append(kind)
        return cls(
            sent=frozenset(from_clients),
            published=frozenset(from_others),
            answers=frozenset(answers),
            gigabytes=_on_disk(view.messages),
        )

    def suffices(self, attack: AttackPlan, case: Case) -> bool:
        """Return whether the attack may apply: its adversary sees a message that it needs, or may ask its oracle."""
        card = attack.card
        if case.dataset.task.name not in card.tasks or case.lacking(attack):
            return False
        published = self.published if card.control["on"] not in _FROM_VICTIMS else ()
        return card.oracle in self.answers or bool(set(card.needs) & {*self.sent, *published})

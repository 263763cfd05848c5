"""An estimate of the time and memory of the attack stage, made before its first cell.

An attack states its `work` in steps: the cost of one training step of the run's network on 8 images. A step is measured
here on the run's network, in a fraction of a second. Memory follows from the network's parameters, the values that it
keeps for a gradient, and the number of processes.

The estimate assumes that nothing else uses the processors. A cell whose adversary sees no message that
the attack needs is not counted. Other cells may still turn out not to apply, and then the stage takes less time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fdaudit.adversary.attack_plan import AttackPlan
from fdaudit.goals import GOALS
from fdaudit.planning.case import Case
from fdaudit.registry import AttackCard
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.storage.timings import read_timings
from fdaudit.transcript.messages import role

__all__ = ["Estimate", "Unit", "Work", "estimate"]

_BATCH = 8
"""Images of a step."""
_MEASURING = 0.15
"""Seconds for the measurement of a step."""
_WORTH_SAYING = 30.0
"""Seconds of a stage that is worth a line."""
_MAIN, _EACH = 0.8, 1.1
"""Gigabytes of the main process, and of the two processes of an attack, beside the data of a run (proportional set
sizes)."""
_RECORDS = 64
"""Most images that an attack handles at once: the most that a gradient attack tries to separate."""
_KEPT = 4
"""Copies of a network's intermediate values that a gradient of a gradient holds."""
_FROM_VICTIMS = ("gradients", "labels", "uploads")
"""Controls of attacks that read what a victim sends, never what a server publishes."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What an attack states of its work under its profile `quick`.

    Attributes:
        once: steps for the attack's controls, and for all that its cells share.
        each: steps for a cell.
        rehearsals: federations of the run's length that its cells share.
        grows: settings that the work is proportional to.
    """

    once: float = 0.0
    each: float = 0.0
    rehearsals: float = 0.0
    grows: tuple[str, ...] = ()

    @classmethod
    def of(cls, card: AttackCard) -> Work | None:
        """Return the work that an attack's card states; None if it states none, or something else."""
        stated = card.work
        if not isinstance(stated, Mapping) or not stated.keys() <= cls.__dataclass_fields__.keys():
            return None
        grows = stated.get("grows", ())
        amounts = {k: v for k, v in stated.items() if k != "grows"}
        if not (_texts(grows) and all(_amount(v) for v in amounts.values())):
            return None
        return cls(grows=tuple(grows), **{k: float(v) for k, v in amounts.items()})

    def growth(self, attack: AttackPlan) -> float:
        """Return how many times the work of the profile `quick` an attack's settings ask for."""
        quick, asked, found = attack.card.profiles["quick"], attack.params or {}, 1.0
        for name in self.grows:
            if _amount(quick.get(name)) and quick[name] and _amount(asked.get(name)):
                found *= asked[name] / quick[name]
        return found


def _texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(v, str) for v in value)


def _amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12


@dataclass(frozen=True, kw_only=True)
class Unit:
    """The cost of one step of a network, and its size.

    Attributes:
        seconds: time of a step on one thread.
        parameters: number of the network's parameters.
        kept: values that the network keeps of one image until the gradient is computed.
    """

    seconds: float
    parameters: int
    kept: int

    @classmethod
    def measured(cls, case: Case) -> Unit:
        """Measure a step of a case's network, in the caller's number of threads."""
        network = case.trainer().network(case.initial()).eval()
        weights = [p for p in network.parameters() if p.requires_grad]
        images = case.architecture.blank_inputs(_BATCH, weights[0].device)
        own, kept = {p.data_ptr() for p in network.parameters()}, dict[int, int]()

        def count(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in own:
                kept[tensor.data_ptr()] = tensor.numel()
            return tensor

        def step() -> None:
            loss = network(images).square().mean()
            sum(float(g.flatten()[0]) for g in torch.autograd.grad(loss, weights))

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            step()
        # The processor's time: another busy process makes no difference. An accelerator's time is none of it.
        clock = time.thread_time if images.device.type == "cpu" else time.perf_counter
        deadline, taken = time.perf_counter() + _MEASURING, list[float]()
        while not taken or time.perf_counter() < deadline:
            begun = clock()
            step()
            taken.append(clock() - begun)
        return cls(
            seconds=min(taken),  # others that share a core or its cache only add to it
            parameters=sum(p.numel() for p in network.parameters()),
            kept=sum(kept.values()) // _BATCH,
        )


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The time and memory that the cells of a run need.

    Attributes:
        cells: number of cells that may apply.
        processes: processes that run them.
        seconds: time for all of them.
        gigabytes: most memory of all processes together.
        longest: the attack that takes longest.
        shape: channels, height and width of an image.
        unstated: attacks that state no work, and are not counted in `seconds`.
    """

    cells: int
    processes: int
    seconds: float
    gigabytes: float
    longest: str
    shape: tuple[int, ...]
    unstated: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the estimate in words; empty for a stage of less than half a minute."""
        if self.seconds < _WORTH_SAYING:
            return ""
        run = f"{self.cells} cell{'s' if self.cells > 1 else ''}"
        where = f"on {self.processes} thread{'s' if self.processes > 1 else ''}"
        size = " x ".join(map(str, self.shape[1:]))
        line = (
            f"attacks  {run}, about {_duration(self.seconds)} {where} if nothing else runs; "
            f"at most about {self.gigabytes:.1f} GB (longest: {self.longest}; {size} pixels)"
        )
        return f"{line}; not counted: {', '.join(self.unstated)}" if self.unstated else line


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{round(seconds, -1):.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def estimate(run: RunDirectory, cells: Mapping[AttackPlan, Sequence[str]], processes: int) -> Estimate | None:
    """Estimate the time and memory of cells; None if none may apply, or the run's network is not known.

    Args:
        run: the run, with a finished federation.
        cells: the adversaries of each attack.
        processes: how many processes run them.
    """
    case = run.case
    seen = {x: _Seen.by(run, x) for names in cells.values() for x in names}
    asked = {a: n for a, names in cells.items() if (n := sum(seen[x].suffices(a, case) for x in names))}
    if not asked or case.networks is None:
        return None
    unit, federation = Unit.measured(case), read_timings(run.path).get("federation", 0.0)
    works = {a: Work.of(a.card) for a in asked}
    seconds = {a: _seconds(a, w, n, unit, federation) for a, n in asked.items() if (w := works[a])}
    members = any(GOALS[a.card.goal].challenged for a in asked)
    # All membership attacks share one rehearsal of the run: their power control.
    shared = federation if members and case.spec.rehearses and case.stand_in is not None else 0.0
    longest = max(seconds, key=lambda a: seconds[a], default=None)
    alone = seconds[longest] if longest else 0.0
    return Estimate(
        cells=sum(asked.values()),
        processes=processes,
        seconds=max((sum(seconds.values()) + shared) / processes, alone),
        gigabytes=_gigabytes(case, unit, processes),
        longest=longest.name if longest else "",
        shape=case.architecture.input_shape,
        unstated=tuple(a.name for a in asked if works[a] is None),
    )


def _seconds(attack: AttackPlan, work: Work, cells: int, unit: Unit, federation: float) -> float:
    steps = unit.seconds * (work.once + cells * work.each)
    return work.growth(attack) * (steps + work.rehearsals * federation)


def _gigabytes(case: Case, unit: Unit, processes: int) -> float:
    """Return the memory of all processes: each holds the records, and gradients of many records at once."""
    records = max((len(client.train) for client in case.splits.clients), default=_RECORDS)
    values = min(_RECORDS, max(1, records)) * (unit.parameters + _KEPT * unit.kept)
    data = 0 if case.missing("images") else case.dataset.x.nbytes
    return _MAIN + data / 1e9 + processes * (_EACH + (4 * values + data) / 1e9)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What an adversary sees and may ask.

    Attributes:
        sent: kinds of the messages that clients outside it sent.
        published: kinds of the other parties' messages.
        answers: the answers that its oracle gives.
    """

    sent: frozenset[str]
    published: frozenset[str]
    answers: frozenset[str]

    @classmethod
    def by(cls, run: RunDirectory, adversary: str) -> _Seen:
        members = adversary.split("+")
        view = run.view(adversary)
        sent, published = set[str](), set[str]()
        for message in view.messages:
            if role(message.sender) != "client":
                published.add(message.kind)
            elif message.sender not in members:
                sent.add(message.kind)
        return cls(
            sent=frozenset(sent),
            published=frozenset(published),
            answers=frozenset(a for a in ("soft", "hard") if run.answering.oracle(members, a) is not None),
        )

    def suffices(self, attack: AttackPlan, case: Case) -> bool:
        """Return whether the attack may apply: its adversary sees a message that it needs, or may ask its oracle."""
        card = attack.card
        if case.dataset.task.name not in card.tasks or case.lacking(attack):
            return False
        published = self.published if card.control["on"] not in _FROM_VICTIMS else ()
        return card.oracle in self.answers or bool(set(card.needs) & {*self.sent, *published})

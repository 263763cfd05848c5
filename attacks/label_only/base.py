"""Shared parts of label-only attacks: the queried model, the number of queries, and the budget's division.

Guarantees:
  * every candidate of every victim has the same number of queries;
  * an attack whose budget is too small for every candidate is refused before the first query;
  * queries are sent in batches of bounded size, for any number of candidates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.errors import UsageError
from fdaudit.goals.membership import Membership
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability, AttackTask, Challenge

from .._target_model import BlackBox, asked

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["Given", "LabelOnly", "LabelOnlyConfig", "Voter", "voter_for"]

_CHUNK = {"cpu": 128, "cuda": 4096}
"""Samples queried at a time: the fastest size for a small network's forward pass."""


class LabelOnlyConfig(Config):
    """Settings of every label-only attack."""

    repeats: int = Field(1, ge=1)
    """Number of times that each query is repeated; the most frequent answer counts. Repeats average out a defence with
    fresh noise in every answer, and reduce the number of different queries."""


class Voter:
    """A victim's model as a function from samples to classes, by majority of repeated answers.

    Args:
        target: the queried model.
        repeats: number of times that each query is repeated.
        chunk: samples queried at a time.
    """

    def __init__(self, target: BlackBox, *, repeats: int = 1, chunk: int = 128) -> None:
        self._target, self._repeats, self.chunk = target, repeats, chunk
        self.spent = 0

    def __call__(self, x: Tensor) -> Tensor:
        """Return classes (n,) of samples (n, c, h, w); ties go to the smaller class."""
        if not len(x):
            return torch.zeros(0, dtype=torch.int64)
        self.spent += len(x) * self._repeats
        votes = []
        for part in x.split(max(1, self.chunk // self._repeats)):
            if self._repeats > 1:
                part = part.repeat(self._repeats, 1, 1, 1)
            answers = self._target(part)
            votes.append(answers.view(self._repeats, -1).mode(0).values)
        return torch.cat(votes)


def voter_for(target: BlackBox, knowledge: Knowledge, repeats: int) -> Voter:
    """Return a voter with a batch size suited to the adversary's own device."""
    device = knowledge.device.type
    return Voter(target, repeats=repeats, chunk=_CHUNK.get(device, 4096))


@dataclass(frozen=True, eq=False)
class Given:
    """The inputs of an attack's run."""

    view: View
    knowledge: Knowledge
    task: AttackTask
    generator: torch.Generator


class LabelOnly(ABC):
    """The run of a label-only attack; a subclass defines its needs and its score of one victim's candidates."""

    card: ClassVar[AttackCard]

    def __init__(self, config: Any) -> None:
        self.config = config

    # -- what a subclass says -------------------------------------------------------------------------------

    def least(self) -> int:
        """Return the smallest number of different queries a candidate."""
        return 1

    def most(self) -> int:
        """Return the largest number of different queries a candidate."""
        return self.least()

    def missing(self, knowledge: Knowledge) -> str:
        """Return the missing knowledge of the adversary as a reason, or an empty string."""
        return ""

    @abstractmethod
    def score(self, ask: Voter, challenge: Challenge, questions: int, given: Given) -> tuple[Tensor, str]:
        """Return scores (n,) of one victim's candidates, higher for members, and a note for the reader.

        Args:
            ask: the victim's model.
            challenge: the candidates.
            questions: different queries allowed for each, between `least` and `most`.
            given: the inputs of the attack's run.
        """

    # -- what they share ------------------------------------------------------------------------------------

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a hard-label oracle or a model in view, and enough queries for every candidate."""
        if not task.challenges:
            return Applicability(False, "no challenge was issued for the victims")
        targets = self._targets(view, knowledge, task)
        if isinstance(targets, Applicability):
            return targets
        if missing := self.missing(knowledge):
            return Applicability(False, missing)
        candidates = sum(len(c.y) for c in task.challenges.values())
        each = self.least() * self.config.repeats
        allowed = min(target.remaining for target in targets.values())
        if each * candidates > allowed:
            reason = f"needs {each * candidates} queries, {each} a candidate; the budget allows {allowed}"
            return Applicability(False, reason)
        return Applicability(True)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """Return one `Membership` for each challenge."""
        targets = self._targets(view, knowledge, task)
        if isinstance(targets, Applicability):
            raise UsageError("view", view.name, f"does not do: {targets.reason}", "Ask `applicable` first.")
        candidates = sum(len(c.y) for c in task.challenges.values())
        allowed = min((t.remaining for t in targets.values()), default=0)
        questions = min(self.most(), allowed // max(1, candidates * self.config.repeats))
        inputs = Given(view, knowledge, task, generator)
        guesses = []
        for name, challenge in task.challenges.items():
            ask = voter_for(targets[name], knowledge, self.config.repeats)
            scores, note = self.score(ask, challenge, questions, inputs)
            guesses.append(Membership(target=name, scores=scores.double(), note=note))
        return tuple(guesses)

    def _targets(
        self, view: View, knowledge: Knowledge, task: AttackTask
    ) -> Mapping[str, BlackBox] | Applicability:
        """Return the queried model of each victim, or why there is none for some victim."""
        targets = {}
        for name in task.challenges:
            target, verdict = asked("hard", view, knowledge, task, name)
            if target is None:
                return verdict
            targets[name] = target
        return targets

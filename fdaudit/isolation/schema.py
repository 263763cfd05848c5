"""The data that pass between the auditor and an attack: trials to the attack, questions and guesses back.

`packed` and `unpacked` turn an attack's inputs into JSON values with tensors, and back. Guesses and questions may come
from untrusted code: `guesses_of` and `question_of` accept only plain values of the annotated types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.oracle import Oracle
from fdaudit.adversary.view import View
from fdaudit.federation.networks import Networks
from fdaudit.goals import GOALS, Guess, goal_of
from fdaudit.isolation.frames import MOST_BYTES, MalformedError, Tensors
from fdaudit.isolation.rehearsal import Rehearsal
from fdaudit.models import Architecture
from fdaudit.models.declared import GeneratorCard
from fdaudit.storage.codec import Codec, ReceivedTensors
from fdaudit.tasks import TASKS, Task
from fdaudit.training.encoder import TaskEncoder
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Buildable, Trainer
from fdaudit.types import AttackTask, OracleHandle

__all__ = [
    "Question",
    "Trial",
    "guesses_of",
    "packed",
    "packed_guesses",
    "packed_question",
    "question_of",
    "unpacked",
]

_LONGEST_REASON = 500

CODEC = Codec(
    names={
        "Architecture": Architecture,
        "Execution": Execution,
        "GeneratorCard": GeneratorCard,
        "Networks": Networks,
        "Tensor": Tensor,
        "Trainer": Trainer,
        "View": View,
        "torch": torch,
    },
    concrete={
        Buildable: Architecture,
        Callable[[Tensor], Tensor]: TaskEncoder,
        Callable[..., View]: Rehearsal,
        OracleHandle: Oracle,
    },
    listed={Task: TASKS},
)
"""An attack in a process of its own gets fdaudit's training core, encoder, rehearsal and oracle, and no others."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """The inputs of an attack, except the view, which is in a directory.

    Attributes:
        knowledge: the adversary's assumed knowledge; with fdaudit's own training core, encoder and rehearsal.
        task: victims, challenges, and the terms of an oracle.
        seed: seed of the attack's generator.
    """

    knowledge: Knowledge
    task: AttackTask
    seed: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """A question of an attack to its oracle.

    Attributes:
        samples: (n, c, h, w), or token numbers (n, L).
        of: the party whose model is asked; None for the released model.
    """

    samples: Tensor
    of: str | None


def packed(trial: Trial, tensors: Tensors) -> Any:
    """Return a trial as JSON values; its tensors are added to the others.

    Raises:
        TypeError: the knowledge holds an object that cannot be described.
    """
    return CODEC.pack(trial, Trial, tensors.name)


def unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Trial:
    """Return the trial that `packed` wrote, with new objects."""
    trial: Trial = CODEC.unpack(value, Trial, ReceivedTensors(tensors))
    return trial


def packed_question(question: Question, tensors: Tensors) -> Any:
    """Return a question as JSON values; its samples are added to the tensors."""
    return CODEC.pack(question, Question, tensors.name)


def question_of(value: Any, tensors: Mapping[str, Tensor]) -> Question:
    """Return the question that an attack's process sent.

    Raises:
        MalformedError: a field is missing or unknown, or has another type.
    """
    try:
        question: Question = CODEC.unpack(value, Question, ReceivedTensors(tensors, most=1), "question")
    except (TypeError, ValueError) as error:
        raise MalformedError(f"the attack's process asked no question: {_said(error)}") from None
    return question


def packed_guesses(guesses: Sequence[Guess], tensors: Tensors) -> list[dict[str, Any]]:
    """Return guesses as JSON values with tensors; `kind` is the name of their goal.

    Raises:
        TypeError: the attack returned something other than guesses, or a field has another type than its annotation.
    """
    rows = []
    for number, guess in enumerate(guesses):
        goal = goal_of(guess)
        rows.append({"kind": goal.name, **CODEC.pack(guess, goal.guess, tensors.name, f"guesses.{number}")})
    return rows


def guesses_of(value: Any, tensors: Mapping[str, Tensor], most: int) -> tuple[Guess, ...]:
    """Return the guesses that an attack's process sent.

    Args:
        value: their JSON values.
        tensors: the frame's tensors, by name.
        most: the most guesses that the trial can need; no tensor is used more often.

    Raises:
        MalformedError: a field is missing or unknown or has another type, or the guesses are too many or too large.
    """
    try:
        if type(value) is not list:
            raise TypeError(f"a {type(value).__name__} is no list")
        if len(value) > most:
            raise ValueError(f"{len(value)} guesses are more than the trial's {most}")
        received = ReceivedTensors(tensors, most, MOST_BYTES)
        guesses = list[Guess]()
        for number, row in enumerate(value):
            at = f"guesses.{number}"
            if type(row) is not dict:
                raise TypeError(f"{at}: a {type(row).__name__} is no dict")
            fields = dict(row)
            kind = fields.pop("kind", None)
            if type(kind) is not str or kind not in GOALS:
                raise ValueError(f"{at}.kind: {kind!r:.60} is no goal")
            guesses.append(CODEC.unpack(fields, GOALS[kind].guess, received, at))
        return tuple(guesses)
    except (TypeError, ValueError) as error:
        raise MalformedError(f"the attack's process sent no guesses: {_said(error)}") from None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:_LONGEST_REASON]}"

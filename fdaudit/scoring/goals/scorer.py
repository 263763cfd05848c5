"""The contract of a goal's scorer: the check of guesses from untrusted attacks, and their figures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from torch import Tensor

from fdaudit.goals import Goal, Guess
from fdaudit.handout.auxiliary import Assumption
from fdaudit.handout.oracle_server import Answering
from fdaudit.result import Target
from fdaudit.scoring.evidence import EvidenceScores
from fdaudit.scoring.goals.submission import Submission
from fdaudit.scoring.ground_truth import Truth
from fdaudit.transcript.messages import SUM, role
from fdaudit.types import Challenge, Figure

if TYPE_CHECKING:
    from fdaudit.adversary.view import View

__all__ = [
    "CheckedTask",
    "GoalScorer",
    "Scores",
    "ScoringInputs",
    "refuse_other_senders",
    "refuse_two_of_a_victim",
]

Scores = tuple[tuple[Figure, ...], tuple[Target, ...]]
"""The figures over all victims, and each victim's own."""

G = TypeVar("G", bound=Guess)


@dataclass(frozen=True, kw_only=True)
class CheckedTask:
    """The task of an attack, as far as its guesses are checked against it.

    Attributes:
        victims: the parties that guesses may be about.
        candidates: number of candidates, by challenged victim.
        view: what the attack was given.
        classes: number of classes.
    """

    victims: Sequence[str]
    candidates: Mapping[str, int]
    view: View
    classes: int

    @classmethod
    def of(
        cls, victims: Sequence[str], challenges: Mapping[str, Challenge], view: View, classes: int
    ) -> CheckedTask:
        """Return the task with the number of candidates of each challenge."""
        candidates = {client: len(challenge.y) for client, challenge in challenges.items()}
        return cls(victims=victims, candidates=candidates, view=view, classes=classes)


@dataclass(frozen=True, kw_only=True)
class ScoringInputs:
    """The auditor's side of a run, as all its scorers share it.

    Attributes:
        truth: what guesses are compared with.
        run: the run directory, where pictures go.
        answering: the final models.
        encode: the task encoder, for distances between sets of images; None without auxiliary records, or for masks.
    """

    truth: Truth
    run: Path
    answering: Answering
    encode: Callable[[Tensor], Tensor] | None


class GoalScorer(ABC, Generic[G]):
    """Checks and scores the guesses of one goal.

    Args:
        inputs: the auditor's side of the run.
    """

    goal: ClassVar[Goal]
    submission: ClassVar[type[Submission] | None] = None
    """The form in which an external red team hands guesses in; None if it cannot."""

    def __init__(self, inputs: ScoringInputs) -> None:
        self.inputs, self.truth, self.case = inputs, inputs.truth, inputs.truth.case
        self.scores = EvidenceScores(self.case.seed)

    @classmethod
    def due(cls, asked: CheckedTask) -> Collection[str] | None:
        """Return the parties that need one guess each; None if an attack may leave some out."""
        return None

    @classmethod
    @abstractmethod
    def check(cls, guesses: Sequence[G], asked: CheckedTask) -> None:
        """Refuse guesses that cannot be scored: of other shapes, out of range or not finite.

        All are of this goal and about victims, as `check_guesses` has made sure.

        Raises:
            ValueError: a guess breaks a rule.
        """

    @classmethod
    def shown(cls, guess: G) -> int:
        """Return how many records a guess shows that it names messages for."""
        return 0

    def scorable(self, guess: G) -> bool:
        """Return whether the truth about a guess is on record."""
        return True

    @abstractmethod
    def score(self, cell: str, guesses: Sequence[G], assumed: Sequence[Assumption] = ()) -> Scores:
        """Return the figures over all victims, and each victim's own.

        Args:
            cell: the cell's id; names its directory.
            guesses: one a victim.
            assumed: the adversaries that guessed.
        """


def refuse_other_senders(guess: Guess, messages: Sequence[int], view: View) -> None:
    """Refuse a guess about messages of another client, or of none in the view; a sum is a message of each client in it.

    Raises:
        ValueError: it is one.
    """
    sender_of = dict[int, str]()
    for message in view.messages:
        sender_of[message.seq] = guess.target if message.fields.get(SUM) else message.sender
    senders, others = set[str](), set[str]()
    for seq in messages:
        sender = sender_of.get(seq, "nobody in this view")
        senders.add(sender)
        if sender != guess.target and role(sender) != "server":
            others.add(sender)
    if others or guess.target not in senders:
        named_parties = sorted(others) or "the server alone"
        raise ValueError(f"{guess.target}: its reconstruction names messages of {named_parties}, not its own")


def refuse_two_of_a_victim(guesses: Sequence[Guess]) -> None:
    """Refuse two reconstructions of one victim.

    Raises:
        ValueError: there are two.
    """
    answered = sorted(guess.target for guess in guesses)
    if len(set(answered)) < len(answered):
        raise ValueError(f"the attack answered for {answered}: give one reconstruction a victim")

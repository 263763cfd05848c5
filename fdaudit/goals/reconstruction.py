"""Reconstruction: what a client's images look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fdaudit.goals.goal import Gate, Goal
from fdaudit.goals.guess import Guess, Note, Real, Whole

if TYPE_CHECKING:
    pass

__all__ = ["GOAL", "Reconstruction"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Reconstruction(Guess):
    """Guessed private inputs behind some messages of one party; without messages, images of its records by class.

    Attributes:
        target: the party whose data was reconstructed.
        messages: `seq` of the messages inverted; empty: the guess is about no message, and each image shows the
            target's records of the class that `labels` names.
        images: (n, c, h, w) in [0, 1].
        labels: (n,) guessed labels, or None.
        objective: the attack's own final matching loss (lower is better); not a quality figure.
        evaluations: image-gradient evaluations spent.
        note: information needed to read its figures, such as the settings chosen, or empty.
    """

    messages: tuple[int, ...]
    images: Real
    labels: Whole | None = None
    objective: float | None = None
    evaluations: int = 0
    note: Note = ""

    @property
    def by_class(self) -> bool:
        """Return whether the guess is about classes, not about the records behind messages."""
        return not self.messages and self.labels is not None


GOAL = Goal(
    name="reconstruction",
    guess=Reconstruction,
    learnt="what records look like",
    scale="a gain of 0 dB (PSNR) is no better than a guess",
    impact=4,
    scored_with=("records", "images", "uses"),
    classes_scored_with=("records", "images", "test"),
    gates={
        "reconstruction_gain_db": Gate(
            figure="psnr_gain",
            explained="Largest mean PSNR gain over the prior baseline, in dB, for any cell and victim.",
        )
    },
    shows="images",
    at_sites=True,
)

"""Reconstruction: what a client's images look like."""

from __future__ import annotations

from dataclasses import dataclass

from fdaudit.goals.goal import Goal, Threshold
from fdaudit.goals.guess import Guess, Note, Real, Whole

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
    figures={
        "evaluator_accuracy": "Classes recognised by an evaluator",
        "evaluator_chance": "Classes recognised by chance",
        "evaluator_nearest": "Distance to the nearest record, in an evaluator's features",
        "evaluator_nearest_bystanders": "Distance to the nearest bystander, in an evaluator's features",
        "evaluator_nearest_gap": "How much nearer records are than bystanders, in an evaluator's features",
        "evaluator_prior": "Classes recognised in the prior's guesses",
        "identification": "Records picked out of their galleries",
        "identification_rank": "Rank in the gallery",
        "identity_identification": "Identities picked out of their galleries",
        "labelled_frechet": "Fréchet distance by class, in an evaluator's features",
        "labels_right": "Labels recovered",
        "lpips": "LPIPS distance",
        "mse": "Mean squared error",
        "psnr": "PSNR",
        "ssim": "SSIM",
    },
    impact=4,
    scored_with=("records", "images", "uses"),
    classes_scored_with=("records", "images", "test"),
    gates={
        "reconstruction_gain_db": Threshold(
            figure="psnr_gain",
            explained="Largest mean PSNR gain over the prior baseline, in dB, for any cell and victim.",
        )
    },
    shows="images",
    at_sites=True,
)

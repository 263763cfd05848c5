"""Text reconstruction: the words of a client's texts."""

from __future__ import annotations

from dataclasses import dataclass

from fdaudit.goals.goal import Goal
from fdaudit.goals.guess import Guess, Long

__all__ = ["GOAL", "TextReconstruction"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TextReconstruction(Guess):
    """Guessed words behind some messages of one party, and the texts that they make.

    Attributes:
        target: the party whose texts were recovered.
        messages: `seq` of the messages inverted.
        words: (m,) int64, the distinct words that occur.
        texts: (n, L) int64 token numbers; None if the attack guesses no order.
        objective: the attack's own final matching loss (lower is better); not a quality figure.
    """

    messages: tuple[int, ...]
    words: Long
    texts: Long | None = None
    objective: float | None = None


GOAL = Goal(
    name="text-reconstruction",
    guess=TextReconstruction,
    learnt="words of texts",
    scale="a gain of 0 is no better than a guess, and F1 of 1 is every word",
    figures={
        "positions_right": "Words recovered at their position",
        "rouge_1": "ROUGE-1",
        "rouge_2": "ROUGE-2",
        "rouge_l": "ROUGE-L",
        "token_f1": "F1 of recovered words",
        "token_gain": "F1 of recovered words, gain over guessing",
        "token_precision": "Recovered words that occur",
        "token_recall": "Occurring words that are recovered",
    },
    impact=4,
    scored_with=("records", "images", "uses"),
    shows="texts",
)

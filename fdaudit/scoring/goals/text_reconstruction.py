"""Score recovered words and texts against the texts behind a victim's messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from fdaudit.errors import FdauditError
from fdaudit.goals.text_reconstruction import GOAL, TextReconstruction
from fdaudit.handout.auxiliary import Assumption, others
from fdaudit.metrics.texts.overlap import bag
from fdaudit.metrics.texts.recovery import Recovered, score_texts
from fdaudit.result import Target, noted
from fdaudit.scoring.evidence import EvidenceScores
from fdaudit.scoring.galleries import bystanders_of
from fdaudit.scoring.goals.scorer import (
    CheckedTask,
    GoalScorer,
    Scores,
    refuse_other_senders,
    refuse_two_of_a_victim,
)
from fdaudit.scoring.ground_truth import Truth

__all__ = ["TextScorer"]

_MOST_SHOWN = 12
"""Recovered words that a figure's note lists."""


class TextScorer(GoalScorer[TextReconstruction]):
    """Scores recovered words and texts."""

    goal = GOAL

    @classmethod
    def check(cls, guesses: Sequence[TextReconstruction], asked: CheckedTask) -> None:
        """Refuse guesses about another client's messages, repeated words, and numbers that no word can have."""
        for guess in guesses:
            refuse_other_senders(guess, guess.messages, asked.view)
            words, texts = guess.words, guess.texts
            if words.ndim != 1 or bool((words < 0).any()) or len(words.unique()) < len(words):
                raise ValueError(f"{guess.target}: needs distinct numbers of words, got {tuple(words.shape)}")
            if texts is not None and (texts.ndim != 2 or bool((texts < 0).any())):
                raise ValueError(
                    f"{guess.target}: needs texts (n, L) of token numbers, got {tuple(texts.shape)}"
                )
        refuse_two_of_a_victim(guesses)

    @classmethod
    def shown(cls, guess: TextReconstruction) -> int:
        """Return the number of texts."""
        return 0 if guess.texts is None else len(guess.texts)

    def score(
        self, cell: str, guesses: Sequence[TextReconstruction], assumed: Sequence[Assumption] = ()
    ) -> Scores:
        """Return the figures of recovered words and texts, and each victim's own."""
        return _score_recovered(self.truth, self.scores, guesses)


def _score_recovered(truth: Truth, scores: EvidenceScores, guesses: Sequence[TextReconstruction]) -> Scores:
    """Return the figures of recovered words and texts over all victims, and each victim's own.

    Args:
        truth: the auditor's side.
        scores: the scores of evidence so far.
        guesses: one a victim.

    Raises:
        FdauditError: no record stands behind a victim's messages.
        ValueError: a guess is no number of a word, or texts have another length.
    """
    case, found = truth.case, list[Recovered]()
    for guess in guesses:
        x, y = truth.behind(guess.target, guess.messages)
        if not len(x):
            raise FdauditError(
                f"{guess.target}: no record stands behind its messages {list(guess.messages)}."
            )
        _refuse_no_words(guess, len(case.dataset.words), x.shape[1])
        texts = None if guess.texts is None else guess.texts.numpy()
        words = bag(guess.words.numpy())
        found.append(Recovered(words=words, texts=texts, truth=x.numpy(), labels=y.numpy()))
    victims = [guess.target for guess in guesses]
    auxiliary, beside = others(case).prior[0], bystanders_of(case, victims)
    empty = case.dataset.x[:0]
    rows = torch.zeros(0, dtype=torch.int64) if beside is None else torch.from_numpy(beside.rows)
    given = (
        (empty if auxiliary is None else auxiliary).numpy(),
        (case.dataset.x[rows].numpy(), case.dataset.y[rows].numpy()),
    )
    whole = scores.once("texts", guesses, partial(score_texts, found, *given), beside=victims)
    targets = []
    for guess, one in zip(guesses, found, strict=True):
        # Bystanders of all victims stand beside each victim's texts.
        figures = scores.once("texts", [guess], partial(score_texts, [one], *given), beside=victims)
        names = [
            case.dataset.words[w] for w in sorted(one.words & bag(one.truth), reverse=True)[:_MOST_SHOWN]
        ]
        note = f"rare words recovered: {', '.join(names)}" if names else ""
        told = tuple(noted(f, note, "token_f1") for f in figures.values())
        targets.append(Target(target=guess.target, messages=guess.messages, figures=told))
    return tuple(whole.values()), tuple(targets)


def _refuse_no_words(guess: TextReconstruction, words: int, length: int) -> None:
    """Refuse numbers that no word of the vocabulary has, and texts of another length."""
    told = guess.words if guess.texts is None else torch.cat([guess.words, guess.texts.flatten()])
    if bool((told >= words).any()):
        raise ValueError(f"{guess.target}: names the word {int(told.max())}; there are {words}")
    if guess.texts is not None and guess.texts.shape[1] != length:
        raise ValueError(f"{guess.target}: has texts of {guess.texts.shape[1]} tokens, not {length}")

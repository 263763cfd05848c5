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
from fdaudit.scoring.galleries import unused_records
from fdaudit.scoring.goals.scorer import (
    CheckedTask,
    GoalScorer,
    Scores,
    refuse_other_senders,
    refuse_two_of_a_victim,
)
from fdaudit.types import Figure

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
        """Return the figures of recovered words and texts, and each victim's own.

        Raises:
            FdauditError: no record stands behind a victim's messages.
            ValueError: a guess is no number of a word, or texts have another length.
        """
        case, data = self.case, self.case.dataset
        recovered = [self._recovered(guess) for guess in guesses]
        victims = [guess.target for guess in guesses]
        auxiliary = others(case).prior[0]
        if auxiliary is None:
            auxiliary = data.x[:0]
        bystanders = unused_records(case, victims)
        beside = (data.x[bystanders].numpy(), data.y[bystanders].numpy())

        def figures_of(guesses: Sequence[TextReconstruction], texts: Sequence[Recovered]) -> list[Figure]:
            # Bystanders of all victims stand beside each victim's texts.
            score = partial(score_texts, texts, auxiliary.numpy(), beside)
            return list(self.scores.once("texts", guesses, score, beside=victims).values())

        whole = figures_of(guesses, recovered)
        targets = []
        for guess, own in zip(guesses, recovered, strict=True):
            shared_words = sorted(own.words & bag(own.truth), reverse=True)
            names = [data.words[word] for word in shared_words[:_MOST_SHOWN]]
            note = f"rare words recovered: {', '.join(names)}" if names else ""
            figures = list[Figure]()
            for figure in figures_of([guess], [own]):
                figures.append(noted(figure, note, "token_f1"))
            targets.append(Target(target=guess.target, messages=guess.messages, figures=tuple(figures)))
        return tuple(whole), tuple(targets)

    def _recovered(self, guess: TextReconstruction) -> Recovered:
        x, y = self.truth.behind(guess.target, guess.messages)
        if not len(x):
            raise FdauditError(
                f"{guess.target}: no record stands behind its messages {list(guess.messages)}."
            )
        numbers, texts = guess.words, None
        if guess.texts is not None:
            numbers = torch.cat([numbers, guess.texts.flatten()])
            texts = guess.texts.numpy()
        words = len(self.case.dataset.words)
        if bool((numbers >= words).any()):
            raise ValueError(f"{guess.target}: names the word {int(numbers.max())}; there are {words}")
        if texts is not None and texts.shape[1] != x.shape[1]:
            raise ValueError(f"{guess.target}: has texts of {texts.shape[1]} tokens, not {x.shape[1]}")
        return Recovered(words=bag(guess.words.numpy()), texts=texts, truth=x.numpy(), labels=y.numpy())

"""Overlap of recovered and true texts: distinct words, runs of words, and positions.

Texts are token numbers. Padding and the unknown word count for nothing: they name no word.

Guarantees:
  * equal texts have 1 in every measure, and texts without a common word have 0;
  * the order of words changes neither `bag_f1` nor ROUGE-1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fdaudit.metrics._arrays import Integers
from fdaudit.types import PADDING, UNKNOWN

__all__ = ["bag", "bag_scores", "matched", "positions_right", "rouge", "rouge_l", "spoken"]

_NAMELESS = (PADDING, UNKNOWN)


def bag(tokens: Integers) -> frozenset[int]:
    """Return the distinct words of texts (n, L)."""
    return frozenset(np.unique(tokens).tolist()) - set(_NAMELESS)


def spoken(text: Integers) -> list[int]:
    """Return the words of a text (L,) in order."""
    return [t for t in text.tolist() if t not in _NAMELESS]


def bag_scores(guess: frozenset[int], truth: frozenset[int]) -> tuple[float, float, float]:
    """Return precision, recall and their harmonic mean F1 of guessed words; 0 where nothing was guessed."""
    both = len(guess & truth)
    precision, recall = both / max(len(guess), 1), both / max(len(truth), 1)
    return precision, recall, 2 * both / max(len(guess) + len(truth), 1)


def rouge(guess: Sequence[int], truth: Sequence[int], n: int) -> float:
    """Return ROUGE-n as F1 (Lin 2004): the common runs of n words, each counted as often as both texts have it.

    Of texts shorter than n words it is 1 if they are equal, else 0.
    """
    runs = []
    for text in (guess, truth):
        shifted = [text[i:] for i in range(n)]
        runs.append(Counter(zip(*shifted, strict=False)))
    total = sum(sum(r.values()) for r in runs)
    if not total:
        return float(list(guess) == list(truth))
    return 2 * sum((runs[0] & runs[1]).values()) / total


def rouge_l(guess: Sequence[int], truth: Sequence[int]) -> float:
    """Return ROUGE-L as F1 (Lin 2004): the longest common subsequence, over the mean of both lengths."""
    if not len(guess) + len(truth):
        return 1.0
    row = [0] * (len(truth) + 1)
    for a in guess:
        before = row
        row = [0]
        for j, b in enumerate(truth):
            row.append(before[j] + 1 if a == b else max(before[j + 1], row[j]))
    return 2 * row[-1] / (len(guess) + len(truth))


def positions_right(guess: Integers, truth: Integers) -> float:
    """Return the share of a true text's words (L,) that the guess (L,) has at the same position."""
    is_word = ~np.isin(truth, _NAMELESS)
    return float((guess[is_word] == truth[is_word]).mean()) if is_word.any() else 0.0


def matched(guess: Integers, truth: Integers) -> Integers:
    """Return for each true text (n, L) the number of its guess (m, L), one to one, or -1 if there are fewer guesses.

    The sum of ROUGE-1 over all pairs is the largest that there is.
    """
    from scipy.optimize import linear_sum_assignment

    numbers = np.full(len(truth), -1)
    if len(guess) and len(truth):
        guess_words = list(map(spoken, guess))
        score = np.empty((len(truth), len(guess)))
        for row, text in enumerate(truth):
            score[row] = [rouge(g, spoken(text), 1) for g in guess_words]
        rows, columns = linear_sum_assignment(-score)
        numbers[rows] = columns
    return numbers

"""Words of texts, and their numbers while a file is read."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import Tensor

from fdaudit.types import PADDING, UNKNOWN

__all__ = ["SPECIAL", "Numbering", "words_of"]

SPECIAL = ("<pad>", "<unknown>")
"""Names of the first two numbers: padding, and any word outside the vocabulary."""
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def words_of(text: str) -> list[str]:
    """Return a text's words in lower case: runs of letters and digits, apostrophes inside included."""
    return _WORD.findall(text.lower())


class Numbering:
    """Numbers words in the order in which they first occur, while a file is read.

    Args:
        length: number L of tokens of a record; longer texts are cut, shorter ones padded.
    """

    def __init__(self, length: int) -> None:
        self.length, self._number = length, dict(zip(SPECIAL, (PADDING, UNKNOWN), strict=True))

    @property
    def words(self) -> tuple[str, ...]:
        """Return every word met so far, by number."""
        return tuple(self._number)

    def rows(self, texts: Iterable[str]) -> Tensor:
        """Return token numbers (n, L), int64. A text without a word is one unknown word."""
        rows = []
        for text in texts:
            numbers = self._numbers(text) or [UNKNOWN]
            numbers = numbers + [PADDING] * (self.length - len(numbers))
            rows.append(torch.tensor(numbers, dtype=torch.int32))
        if not rows:
            return torch.zeros(0, self.length, dtype=torch.int64)
        return torch.stack(rows).long()

    def _numbers(self, text: str) -> list[int]:
        """Return the numbers of a text's first L words."""
        words = words_of(text)[: self.length]
        return [self._number.setdefault(word, len(self._number)) for word in words]

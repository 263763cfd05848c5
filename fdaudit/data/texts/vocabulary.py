"""The vocabulary that every party may know.

Guarantees:
  * it follows from public and auxiliary texts only: no other text adds, removes or renumbers a word;
  * a word outside the vocabulary has the number of the unknown word.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fdaudit.data.datasets import Dataset
from fdaudit.data.texts.words import SPECIAL
from fdaudit.errors import DataError
from fdaudit.types import PADDING, UNKNOWN

__all__ = ["known_words"]


def known_words(dataset: Dataset, public: Tensor, most: int) -> Dataset:
    """Return texts in the numbers of a vocabulary that everyone may know; other datasets as they are.

    Args:
        dataset: texts in the numbers of a file's own words.
        public: (m,) rows of the public and auxiliary texts.
        most: the largest vocabulary. The words that occur most often stay, equals in the order of the alphabet.

    Raises:
        DataError: there is no public or auxiliary text.
    """
    if not dataset.words:
        return dataset
    if not len(public):
        problem = "leave no text to take a vocabulary from"
        raise DataError("splits", "proxy and auxiliary", problem, "Raise splits.proxy or splits.auxiliary.")
    count = torch.bincount(dataset.x[public].flatten(), minlength=len(dataset.words)).tolist()
    present = list[int]()
    for n in range(len(SPECIAL), len(count)):
        if count[n]:
            present.append(n)
    present.sort(key=lambda n: (-count[n], dataset.words[n]))
    frequent = present[: most - len(SPECIAL)]
    number = torch.full((len(dataset.words),), UNKNOWN)
    number[PADDING] = PADDING
    number[frequent] = torch.arange(len(SPECIAL), len(SPECIAL) + len(frequent))
    words = (*SPECIAL, *(dataset.words[n] for n in frequent))
    test_x = dataset.test_x
    if test_x is not None:
        test_x = number[test_x]
    return replace(dataset, x=number[dataset.x], test_x=test_x, words=words)

"""Evidence: guesses by their content, which name the random draws of a score and find it again.

Guarantees:
  * the draws of a score depend on the run's seed, on what is computed and on the evidence. The adversary and the attack
    are no part of it, so the same evidence has the same figures and intervals in every cell;
  * a process scores the same evidence once, as long as it remembers it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from fdaudit.rng import child_numpy
from fdaudit.storage.digests import content_digest

__all__ = ["EvidenceScores", "draws_of", "evidence_of"]

S = TypeVar("S")

_MOST_KEPT = 512
"""Scores that one process remembers of one goal."""


def evidence_of(about: object, *tensors: Mapping[str, Tensor | None]) -> str:
    """Return the name of evidence.

    Args:
        about: a JSON value: what is guessed, and of whom.
        tensors: the guesses' tensors by name; None stands for a tensor that a guess lacks.
    """
    present = [{name: t for name, t in part.items() if t is not None} for part in tensors]
    return content_digest({"about": about}, *present)


def draws_of(seed: int, what: str, evidence: str) -> np.random.Generator:
    """Return the random draws of a score.

    Args:
        seed: the run's working seed.
        what: what is computed.
        evidence: the evidence's name.
    """
    return child_numpy(seed, "score", what, evidence)


class EvidenceScores:
    """The scores of one run's evidence; the least recently used are dropped.

    Args:
        seed: the run's working seed.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._scores = OrderedDict[tuple[str, str], Any]()

    def once(self, what: str, evidence: str, score: Callable[[np.random.Generator], S]) -> S:
        """Return what `score` computes with the draws of this evidence, computed once.

        Args:
            what: what is computed.
            evidence: the name of everything that it depends on, the run's truth excepted.
            score: computes a value that nobody changes.
        """
        key = (what, evidence)
        if key not in self._scores:
            self._scores[key] = score(draws_of(self._seed, what, evidence))
        self._scores.move_to_end(key)
        if len(self._scores) > _MOST_KEPT:
            self._scores.popitem(last=False)
        found: S = self._scores[key]
        return found

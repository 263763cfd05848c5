"""Scores of evidence: each is computed once, with draws that can be made again from a run's record.

Guarantees:
  * draws are named by what is measured and by the victims. Equal guesses therefore have equal figures and intervals in
    every cell, an attack cannot choose its draws, and everyone who holds the record can repeat them;
  * a score is remembered by a digest of every field of the guesses, and of all else that may differ between two scores
    of one scorer. The scorer's truth, settings and code are its own for life;
  * remembered scores are in this process's memory only. fdaudit's own attacks write to the cache of
    `fdaudit.storage.cache`, so no score is in it.

Cells share draws, which is sound: an interval or a p-value is a claim about one figure, and Holm's correction allows
p-values to depend on each other. Re-flipped coins have draws of their own (`fdaudit.scoring.family`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from fdaudit.goals import Guess
from fdaudit.rng import child_numpy
from fdaudit.storage.cache import digest_of

__all__ = ["EvidenceScores", "draws_of", "evidence_of"]

S = TypeVar("S")

_MOST_KEPT = 512
"""Scores that a scorer remembers; one has some kilobytes."""


def draws_of(seed: int, what: str, targets: Sequence[str]) -> np.random.Generator:
    """Return the random draws of a score.

    Args:
        seed: the run's working seed.
        what: the measurement; two of one cell have different names, or the same evidence.
        targets: the victims, in the order of the guesses.
    """
    return child_numpy(seed, "score", what, *targets)


def evidence_of(value: object) -> str:
    """Return the SHA-256 of a value, of the tensors in it, and of the versions of fdaudit and PyTorch.

    Args:
        value: a JSON value, a tensor, or a dataclass, mapping or sequence of such values.
    """
    tensors = list[Tensor]()
    return digest_of({"evidence": _plain(value, tensors)}, *tensors)


def _plain(value: Any, tensors: list[Tensor]) -> Any:
    """Return a value as JSON, and append its tensors, which stand there by number."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"tensor": len(tensors)}
    if isinstance(value, float):
        return {"float": value.hex()}  # JSON has no infinity
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(part, tensors) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part, tensors) for part in value]
    return value


class EvidenceScores:
    """The scores of one scorer; the least recently used are dropped.

    Args:
        seed: the run's working seed.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._scores = OrderedDict[str, Any]()

    def draws(self, what: str, guesses: Sequence[Guess]) -> np.random.Generator:
        """Return the random draws of a measurement of guesses."""
        return draws_of(self._seed, what, [guess.target for guess in guesses])

    def once(
        self,
        what: str,
        guesses: Sequence[Guess],
        score: Callable[[np.random.Generator], S],
        beside: object = None,
    ) -> S:
        """Return what `score` computes with its draws; of evidence that was scored before, the value then.

        Args:
            what: the measurement; it names the draws with the guesses' targets.
            guesses: the guesses.
            score: computes a value that no one changes, from draws.
            beside: all else that `score` depends on, the scorer's own truth and settings excepted.
        """
        evidence = evidence_of([what, guesses, beside])
        if evidence not in self._scores:
            self._scores[evidence] = score(self.draws(what, guesses))
        self._scores.move_to_end(evidence)
        if len(self._scores) > _MOST_KEPT:
            self._scores.popitem(last=False)
        remembered: S = self._scores[evidence]
        return remembered

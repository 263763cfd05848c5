"""The guesses that a one-run audit derives from scores, and the number of right ones.

Guarantees:
  * the tried numbers of guesses depend only on the number of coins, never on scores;
  * equal scores are ordered to the attack's disadvantage, so the order of the candidates reveals nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.events import Relation
from fdaudit.metrics._arrays import Flags, Floats, Integers, flags, vector
from fdaudit.metrics.ranking import checked_pairs

__all__ = ["CoinGuesses", "GuessNumber", "OneRunDesign", "counted", "evenly", "fixed", "known", "tried"]

OneRunDesign = Literal["coin-flips", "matched-pairs"]
"""The design by which membership in one run was decided."""


@dataclass(frozen=True, kw_only=True)
class GuessNumber:
    """One tried number of guesses.

    Attributes:
        guesses: number of guessed candidates or pairs.
        both: whether half of the guesses call the lowest scores non-members; never for pairs.
        share: its share of the level.
    """

    guesses: int
    both: bool
    share: float


@dataclass(frozen=True, kw_only=True)
class CoinGuesses:
    """The guesses of one attack about the coins of one run.

    Attributes:
        counts: (right, guesses, share of the level) for each tried number of guesses.
        coins: number of tossed coins, guessed or not.
        halved: whether each coin chose one of two records while the claim is for records added or removed.
    """

    counts: tuple[tuple[int, int, float], ...]
    coins: int
    halved: bool


def counted(correct: int, guesses: int, canaries: int) -> None:
    """Refuse impossible counts of right guesses, guesses and canaries.

    Raises:
        UsageError: not 0 <= correct <= guesses <= canaries, or no guess.
    """
    if not 0 <= correct <= guesses <= canaries or guesses < 1:
        problem = "are not right guesses among guesses among canaries"
        counts = (correct, guesses, canaries)
        raise UsageError(
            "correct, guesses, canaries", counts, problem, "Give 0 <= correct <= guesses <= canaries."
        )


def known(value: str, choices: Sequence[str], field: str) -> None:
    """Refuse a value that is not among the choices.

    Raises:
        UsageError: the value is not among them.
    """
    if value not in choices:
        raise UsageError(field, value, f"is no known {field}", f"Choose from {', '.join(choices)}.")


def tried(
    scores: ArrayLike,
    member: ArrayLike,
    design: OneRunDesign,
    relation: Relation,
    pair: ArrayLike | None,
    asked: Callable[[int], Sequence[GuessNumber]],
) -> CoinGuesses:
    """Return the guesses that follow from scores.

    Args:
        scores: (n,), higher for "member".
        member: (n,) booleans.
        design: the design by which membership was decided.
        relation: relation of the bound.
        pair: (n,) number of each candidate's pair; for `matched-pairs` only.
        asked: maps a number of coins to the tried numbers of guesses.

    Raises:
        UsageError: shapes do not match, a number is out of range, or the design does not support the relation.
    """
    values = vector(scores, "scores")
    truth = flags(member, "member", len(values))
    known(design, get_args(OneRunDesign), "design")
    known(relation, get_args(Relation), "relation")
    if (pair is not None) != (design == "matched-pairs"):
        problem = "is missing" if pair is None else f"has no meaning under {design}"
        raise UsageError("pair", pair, problem, "Give it with design 'matched-pairs', and there only.")
    if design == "coin-flips":
        if relation == "replace-one":
            problem = "is not what coins of single candidates test: they add or remove a record"
            raise UsageError(
                "relation", relation, problem, "Use matched pairs for records that are replaced."
            )
        coins, halved = len(values), False
        counts = _of_candidates(values, truth, asked(coins))
    else:
        units = checked_pairs(pair, truth)
        coins, halved = len(values) // 2, relation == "add-or-remove"
        counts = _of_pairs(values, truth, units, asked(coins))
    return CoinGuesses(counts=tuple(counts), coins=coins, halved=halved)


def evenly(numbers: Iterable[int], design: OneRunDesign) -> list[GuessNumber]:
    """Return each number of guesses with equal shares; for candidates, also a version that guesses half from below."""
    kinds = []
    for r in numbers:
        kinds.append((r, False))
        if design == "coin-flips" and r > 1:
            kinds.append((r, True))
    return [GuessNumber(guesses=r, both=both, share=1 / len(kinds)) for r, both in kinds]


def fixed(guesses: int, coins: int) -> int:
    """Return a number of guesses that was fixed in advance.

    Raises:
        UsageError: the number is below 1 or above the number of coins.
    """
    if not 1 <= guesses <= coins:
        raise UsageError(
            "guesses", guesses, f"is no number of guesses about {coins} coins", f"Give 1 to {coins}."
        )
    return guesses


def _of_candidates(
    scores: Floats, member: Flags, asked: Sequence[GuessNumber]
) -> Iterator[tuple[int, int, float]]:
    """Yield (right, guesses, share) for each number: all guesses say member, or half say non-member."""
    # Equal scores: non-members come first from above, members from below.
    above = member[np.lexsort((member, -scores))].cumsum()
    below = (~member)[np.lexsort((~member, scores))].cumsum()
    for one in asked:
        r = one.guesses
        low = r // 2 if one.both else 0
        right = int(above[r - low - 1])
        if low:
            right += int(below[low - 1])
        yield right, r, one.share


def _of_pairs(
    scores: Floats, member: Flags, units: Integers, asked: Sequence[GuessNumber]
) -> Iterator[tuple[int, int, float]]:
    """Yield (right, guesses, share) for each number of decided pairs."""
    inside, outside = np.empty(len(scores) // 2), np.empty(len(scores) // 2)
    inside[units[member]], outside[units[~member]] = scores[member], scores[~member]
    equal = inside == outside  # two infinities have no difference
    gap = np.where(equal, 0.0, np.abs(np.subtract(inside, outside, where=~equal, out=np.zeros_like(inside))))
    right = inside > outside
    ranked = right[np.lexsort((right, -gap))].cumsum()
    for one in asked:
        yield int(ranked[one.guesses - 1]), one.guesses, one.share

"""The guesses that a one-run audit derives from scores, and the number of right ones.

Guarantees:
  * the tried numbers of guesses depend only on the number of coins, never on scores;
  * equal scores are ordered to the attack's disadvantage, so the order of the candidates reveals nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.events import Relation
from fdaudit.metrics._arrays import Flags, Floats, Integers, flags, vector
from fdaudit.metrics.ranking import checked_pairs, halves

__all__ = [
    "CoinGuesses",
    "GuessNumber",
    "OneRunDesign",
    "check_choice",
    "check_claim",
    "check_counts",
    "evenly",
    "guesses_about_coins",
]

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


def check_counts(correct: int, guesses: int, canaries: int) -> None:
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


def check_claim(value: float, field: str) -> None:
    """Refuse a claimed ε or μ that is negative or infinite.

    Raises:
        UsageError: it is.
    """
    if not 0 <= value < math.inf:
        raise UsageError(field, value, "is no finite claim", "Give a number of at least 0.")


def check_choice(value: str, choices: Sequence[str], field: str) -> None:
    """Refuse a value that is not among the choices.

    Raises:
        UsageError: the value is not among them.
    """
    if value not in choices:
        raise UsageError(field, value, f"is no known {field}", f"Choose from {', '.join(choices)}.")


def guesses_about_coins(
    scores: ArrayLike,
    member: ArrayLike,
    design: OneRunDesign,
    relation: Relation,
    pair: ArrayLike | None,
    guesses: int | None,
    family: Callable[[OneRunDesign, int], Sequence[GuessNumber]],
) -> CoinGuesses:
    """Return the guesses that follow from scores.

    Args:
        scores: (n,), higher for "member".
        member: (n,) booleans.
        design: the design by which membership was decided.
        relation: relation of the bound.
        pair: (n,) number of each candidate's pair; for `matched-pairs` only.
        guesses: a number of guesses that was fixed in advance, or None.
        family: maps a design and a number of coins to the tried numbers of guesses, if none was fixed.

    Raises:
        UsageError: shapes do not match, a number is out of range, or the design does not support the relation.
    """
    values = vector(scores, "scores")
    truth = flags(member, "member", len(values))
    check_choice(design, get_args(OneRunDesign), "design")
    check_choice(relation, get_args(Relation), "relation")
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
        above, below = _right_candidates(values, truth)
    else:
        units = checked_pairs(pair, truth)
        coins, halved = len(values) // 2, relation == "add-or-remove"
        above = below = _right_pairs(values, truth, units)
    if guesses is None:
        numbers = family(design, coins)
    elif 1 <= guesses <= coins:
        numbers = evenly([guesses], design)
    else:
        problem = f"is no number of guesses about {coins} coins"
        raise UsageError("guesses", guesses, problem, f"Give 1 to {coins}.")
    counts = []
    for number in numbers:
        low = number.guesses // 2 if number.both else 0
        right = above[number.guesses - low] + below[low]
        counts.append((int(right), number.guesses, number.share))
    return CoinGuesses(counts=tuple(counts), coins=coins, halved=halved)


def evenly(numbers: Iterable[int], design: OneRunDesign) -> list[GuessNumber]:
    """Return each number of guesses with equal shares; for candidates, also a version that guesses half from below."""
    ways = []
    for r in numbers:
        ways.append((r, False))
        if design == "coin-flips" and r > 1:
            ways.append((r, True))
    return [GuessNumber(guesses=r, both=both, share=1 / len(ways)) for r, both in ways]


def _right_candidates(scores: Floats, member: Flags) -> tuple[Integers, Integers]:
    """Return how many of the k highest scores are members', and of the k lowest non-members', for k = 0 ... n."""
    # Equal scores: non-members come first from above, members from below.
    above = member[np.lexsort((member, -scores))].cumsum()
    below = (~member)[np.lexsort((~member, scores))].cumsum()
    return np.append(0, above), np.append(0, below)


def _right_pairs(scores: Floats, member: Flags, units: Integers) -> Integers:
    """Return how many of the k pairs with the largest differences are decided rightly, for k = 0 ... pairs."""
    inside, outside = halves(scores, member, units)
    differ = inside != outside  # two infinities have no difference
    gap = np.abs(np.subtract(inside, outside, where=differ, out=np.zeros_like(inside)))
    right = inside > outside
    return np.append(0, right[np.lexsort((right, -gap))].cumsum())

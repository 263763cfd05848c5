"""Rule for reconstructions that identify records, and the caution if no rule fires.

Guarantees:
  * a rate alone never identifies a record: the p-value is compared with the run's level as well;
  * pictures in which no test found anything always carry the caution to look at them.
"""

from __future__ import annotations

from collections.abc import Sequence

from fdaudit.types import Figure

from ..text import amount, p_value
from .rule import significant

__all__ = ["LOOK", "RATE_STRONG", "RULE", "identified", "identifies", "rates"]

RATE_STRONG = 0.25
"""Share of records picked out of their galleries above which identification counts as a leak, not a partial one."""

CHANCE_MARGIN = 2.0
"""The lower end of that share's interval must exceed this multiple of chance."""

LOOK = "No test fired. A person may still recognise what the pictures show: look at them."
"""The caution beside pictures in which no test found anything."""

RULE = (
    "Records are also identified where more of them are picked out of a gallery, of other records of their class, than "
    "by chance, with a p-value that is corrected like those of membership. That is a leak where the share reaches "
    f"{RATE_STRONG:.0%} and the lower end of its interval lies above {CHANCE_MARGIN:.0f} times chance, "
    "else a partial leak."
)

_NAMES = {"identification": "records", "identity_identification": "identities"}


def rates(figures: Sequence[Figure]) -> tuple[Figure, ...]:
    """Return the figures with p-values that a judgement of identification uses."""
    shares: list[Figure] = []
    for figure in figures:
        if figure.name in _NAMES and figure.value is not None and figure.p is not None:
            shares.append(figure)
    return tuple(shares)


def identified(figures: Sequence[Figure], level: float) -> str:
    """Return a clause that says how figures identify records; empty if they do not.

    Args:
        figures: of one victim, or of all together.
        level: the p-value up to which a figure counts.
    """
    for figure in rates(figures):
        chance = _chance(figures, figure)
        if significant(figure, level) and (figure.value or 0.0) > chance:
            share, by_chance = amount(figure.value or 0.0, "fraction"), amount(chance, "fraction")
            return (
                f"{share} of {figure.n} {_NAMES[figure.name]} are picked out of their galleries, by chance "
                f"{by_chance}; {p_value(figure.p or 0.0, level)} (limit {level:g})"
            )
    return ""


def identifies(figures: Sequence[Figure], level: float) -> bool:
    """Return whether figures show that many records are identified, far beyond chance."""
    for figure in rates(figures):
        many = (figure.value or 0.0) >= RATE_STRONG
        far_beyond = (figure.low or 0.0) > CHANCE_MARGIN * _chance(figures, figure)
        if many and far_beyond and significant(figure, level):
            return True
    return False


def _chance(figures: Sequence[Figure], rate: Figure) -> float:
    """Return the share that chance picks out; 1 if unknown, so that a rate without it shows nothing."""
    for figure in figures:
        if figure.name == f"{rate.name}_chance" and figure.value is not None:
            return figure.value
    return 1.0

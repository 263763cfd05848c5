"""Verdicts and remedies where rows of a table were recovered."""

from __future__ import annotations

from fdaudit.goals.row_reconstruction import GOAL
from fdaudit.result import Remedy

from ..text import amount
from .remedy import HIDE_CLIENTS
from .rule import Rule, RuleInput, against_guessing, by_name, significant, surely, tested, value_of

__all__ = ["RULE"]

CELLS_CLEAR = 0.9
"""Share of recovered cells from which a row counts as read, if the prior stays `CELLS_GAP` below: no test is needed."""

CELLS_GAP = 0.4
"""Least distance of such a share to the prior's."""

GAIN_LEAST = 0.05
"""Gain in recovered cells below which a better choice of prior would explain them."""

CELLS_CERTAIN = 0.9
"""Lower end of the interval of cells recovered from which rows are all but known."""


def _signal(evidence: RuleInput) -> str:
    right, gain = value_of(evidence.figures, "cells_right"), by_name(evidence.figures, "cells_gain")
    if right is None or gain is None or gain.value is None:
        return ""
    floor = right - gain.value
    clause = (
        f"{amount(right, 'fraction')} of the cells are recovered, and {amount(floor, 'fraction')} by guessing"
    )
    if right >= CELLS_CLEAR and gain.value >= CELLS_GAP:
        return clause
    if gain.value < GAIN_LEAST or not significant(gain, evidence.level):
        return ""
    return f"{clause}; of other rows of the same classes the same guess shows fewer{against_guessing(gain, evidence)}"


def _strong(evidence: RuleInput) -> bool:
    right, gain = (value_of(evidence.figures, name) for name in ("cells_right", "cells_gain"))
    return right is not None and gain is not None and 1 - right <= (1 - (right - gain)) / 2


RULE = Rule(
    goal=GOAL,
    figure="cells_gain",
    chance=0.0,
    higher=True,
    leaked="could read private rows of the table",
    frame="cells recovered {} above guessing",
    signal=_signal,
    strong=_strong,
    certain=surely("cells_right", CELLS_CERTAIN),
    telling=tested("cells_gain"),
    text="More cells are recovered than the most common auxiliary values give, and more than the same guess "
    "recovers of other rows of the same classes, significantly after correction and by "
    f"{GAIN_LEAST:.0%} or more. Or the cells recovered reach "
    f"{CELLS_CLEAR:.0%} and stand {CELLS_GAP:.0%} above guessing. A category is recovered if it is the true one, a "
    "number if it is within a hundredth of the column's scale. It is a leak where half of what guessing misses or more "
    "is recovered, else a partial leak.",
    tabled="cells_right",
    beside_worst="cells_right",
    remedies={
        "updates": Remedy(
            do=HIDE_CLIENTS,
            why="Larger batches and more local steps make the attack harder, and guarantee nothing.",
        ),
    },
    general=Remedy(
        do="Keep {kinds} from this adversary, or add noise before they are sent.",
        why="Rows were recovered from its view.",
    ),
)

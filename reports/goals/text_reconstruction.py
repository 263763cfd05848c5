"""Verdicts and remedies where words of texts were recovered."""

from __future__ import annotations

from fdaudit.goals.text_reconstruction import GOAL
from fdaudit.result import Remedy

from ..text import amount
from .remedy import HIDE_CLIENTS
from .rule import Rule, RuleInput, against_guessing, by_name, significant, surely, tested, value_of

__all__ = ["RULE"]

TOKENS_CLEAR = 0.9
"""F1 of recovered words from which a text counts as read, if the prior stays `TOKENS_GAP` below: no test is needed."""

TOKENS_GAP = 0.4
"""Least distance of such an F1 to the prior's."""

F1_CERTAIN = 0.9
"""Lower end of the interval of F1 from which texts are all but known."""


def _signal(evidence: RuleInput) -> str:
    f1, prior = value_of(evidence.figures, "token_f1"), value_of(evidence.figures, "token_f1_prior")
    if f1 is None or prior is None:
        return ""
    clause = (
        f"the words recovered have an F1 of {amount(f1, 'fraction')}, the prior's {amount(prior, 'fraction')}"
    )
    if f1 >= TOKENS_CLEAR and f1 - prior >= TOKENS_GAP:
        return clause
    gain = by_name(evidence.figures, "token_gain")
    if gain is None or (gain.value or 0.0) <= 0 or not significant(gain, evidence.level):
        return ""
    return f"{clause}; on other texts of the same classes the same guess does worse{against_guessing(gain, evidence)}"


def _strong(evidence: RuleInput) -> bool:
    f1, prior = value_of(evidence.figures, "token_f1"), value_of(evidence.figures, "token_f1_prior")
    return f1 is not None and prior is not None and 1 - f1 <= (1 - prior) / 2


RULE = Rule(
    goal=GOAL,
    figure="token_gain",
    chance=0.0,
    higher=True,
    leaked="could recover words of private texts",
    frame="F1 of recovered words {} above guessing",
    signal=_signal,
    strong=_strong,
    certain=surely("token_f1", F1_CERTAIN),
    telling=tested("token_gain"),
    text="Distinct words recovered fit the true texts better, by F1, than the most frequent auxiliary "
    "words do, and better than they fit as many other texts of the same classes, significantly after "
    f"correction. Or their F1 reaches {TOKENS_CLEAR:.0%} and stands {TOKENS_GAP:.0%} above the prior's. It is "
    "a leak where F1 closes half of the prior's distance to 100 % or more, else a partial leak.",
    remedies={
        "updates": Remedy(
            do=HIDE_CLIENTS,
            why="Every word that occurs changes its row of the embedding, in batches of any size.",
        ),
    },
    general=Remedy(
        do="Keep {kinds} from this adversary, or add noise before they are sent.",
        why="Words of texts were recovered from its view.",
    ),
)

"""Verdicts and remedies where class shares were guessed."""

from __future__ import annotations

import math

from fdaudit.goals.label_distribution import GOAL
from fdaudit.result import Remedy

from ..text import amount, corrected
from .remedy import HIDE_CLIENTS, NOT_BY_THE_RECEIVER
from .rule import FAMILY_LEVEL, PublicRounding, Rule, RuleInput, by_name, value_of

__all__ = ["RULE"]

TV_STRONG = 0.1
"""Total variation distance below which a guessed label distribution counts as a leak."""

TV_CERTAIN = 0.05
"""Upper end of the distance's interval up to which the shares are all but known."""


EXACT_PRIOR = 1e-6
"""Total variation distance up to which a prior is exact: nothing is left that an attack could tell."""


def _signal(evidence: RuleInput) -> str:
    distance, prior = value_of(evidence.figures, "label_tv"), value_of(evidence.figures, "label_tv_prior")
    if distance is not None and prior is not None and distance <= prior / 2 and prior > EXACT_PRIOR:
        return f"the distance left, {amount(distance)}, is at most half the prior's, {amount(prior)}"
    # Guessing sets of the right sizes names all classes that clients hold with a chance of Π 1 / binomial(C, k), which
    # is corrected by Bonferroni.
    chance = 1.0
    for shares in evidence.shares:
        true_classes = [share > 0 for share in shares.truth]
        if true_classes != [share > 0 for share in shares.guess]:
            return ""
        chance /= math.comb(len(true_classes), sum(true_classes))
    if not evidence.shares or chance * evidence.tests > evidence.level:
        return ""
    by_luck = min(1.0, chance * evidence.tests)
    return f"the classes held are named exactly; {corrected(by_luck, evidence.level, evidence.tests)}"


def _strong(evidence: RuleInput) -> bool:
    distance = value_of(evidence.figures, "label_tv")
    return distance is not None and distance <= TV_STRONG


def _certain(evidence: RuleInput) -> bool:
    distance = by_name(evidence.figures, "label_tv")
    return distance is not None and distance.high is not None and distance.high <= TV_CERTAIN


def _telling(evidence: RuleInput) -> bool:
    distance, prior = value_of(evidence.figures, "label_tv"), value_of(evidence.figures, "label_tv_prior")
    return distance is not None and prior is not None and prior > EXACT_PRIOR


RULE = Rule(
    goal=GOAL,
    figure="label_tv",
    chance=None,
    higher=False,
    leaked="could tell how clients' data divide among the classes",
    frame="class shares guessed to within a total variation of {}",
    signal=_signal,
    strong=_strong,
    certain=_certain,
    telling=_telling,
    text="The total variation distance to the true class shares is at most half the prior's; it is "
    "exact for a client, so it has no interval. Or the classes held are named exactly, where guessing sets of "
    f"their sizes would do so, in as many tests, with a chance of at most {FAMILY_LEVEL:.0%}. It is a leak "
    f"where the distance is at most {TV_STRONG:.1f}, else a partial leak. An exact prior leaves nothing to tell.",
    exact="the class shares were recovered exactly",
    public=PublicRounding(names=("label_tv", "label_tv_prior"), least=2, steps=(0.1,)),
    remedies={
        "counts": Remedy(
            do="Do not send {kinds} to a single party: sum them securely, or leave them out.",
            why="They are the class shares.",
            tries=("secure-sum", "left-out"),
        ),
        "labels": Remedy(
            do="Do not send {kinds}: draw the labels that the generator is given without looking at records.",
            why="They are the labels of single records, in clear.",
        ),
        "declined": Remedy(
            do="Answer every public sample, or choose those to answer without looking at private records.",
            why="Which samples a client declines shows which classes it holds.",
            tries=("left-out",),
        ),
        "updates": Remedy(
            do=HIDE_CLIENTS,
            why="Noise that hides one record does not hide a client's class shares.",
            tries=("client-noise", "secure-sum"),
        ),
        "model": Remedy(
            do="Add noise for whole clients before the model is summed: `dp-fedavg`.",
            why="An ε for clients covers their class shares; an ε for records does not.",
            tries=("client-noise",),
        ),
        "answers": Remedy(
            do="Let a secure aggregation count votes and publish noisy ones (`gnmax`): nobody gets a client's {kinds}.",
            why=f"A client is surest about the classes that it holds. {NOT_BY_THE_RECEIVER}",
            tries=("client-noise",),
        ),
        "ensemble": Remedy(
            do="Publish noisy votes (`gnmax`) instead of {kinds}.",
            why="Whoever knows the other clients can take their part away.",
            tries=("client-noise",),
        ),
        "prototypes": Remedy(
            do="Send {kinds} for every class, or sum them securely.",
            why="A missing class, or a noisy one, shows how many records a client has of it.",
            tries=("secure-sum",),
        ),
        "generator": Remedy(
            do="Draw as many generated samples of each class, whatever a client holds.",
            why="Their shares follow the client's own.",
        ),
        "oracle": Remedy(
            do="Limit and log the questions that are answered.",
            why="Answers on public samples show the classes that were learnt.",
            tries=("no-questions",),
        ),
    },
    general=Remedy(
        do="Keep {kinds} from single parties: sum them securely.",
        why="Class shares were guessed from them.",
        tries=("secure-sum",),
    ),
)

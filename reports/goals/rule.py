"""The rule by which a report calls something a leak: what each goal states, and what the goals' rules share.

Guarantees:
  * a signal is a test that is significant after correction, an interval above chance or above the prior, a single image
    that no prior guess comes near, or an exact distance of at most half the prior's: never a bare mean;
  * figures are found by the names that `fdaudit.metrics` gives them, including a mean over clients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fdaudit.goals import Goal
from fdaudit.result import Cell, Image, Remedy, Shares
from fdaudit.types import Figure

from ..text import corrected, measure, p_value, with_interval

__all__ = [
    "FAMILY_LEVEL",
    "PublicRounding",
    "Rule",
    "RuleInput",
    "WorstRecord",
    "above",
    "against_guessing",
    "beats",
    "beside",
    "bounded",
    "by_name",
    "decided_by",
    "framed",
    "lower_end",
    "significant",
    "single_rates",
    "surely",
    "tested",
    "true_positive_rates",
    "value_of",
    "worth",
]

FAMILY_LEVEL = 0.05
"""Probability that any test of a run is significant if nothing leaks."""

_EXACT = 5e-4
"""Largest value that reads 0.000."""

_TPR = re.compile(r"tpr_at_(\d+(?:\.\d+)?)fpr")


@dataclass(frozen=True, kw_only=True)
class RuleInput:
    """Input of a rule: the figures of the mean or of one victim, that victim's images, and the class shares.

    The figures carry p-values after correction for all `tests` of the run, so each is compared with `level` itself.
    """

    who: str
    figures: Sequence[Figure]
    images: Sequence[Image] = ()
    shares: Sequence[Shares] = ()
    level: float = FAMILY_LEVEL
    tests: int = 1


@dataclass(frozen=True, kw_only=True)
class WorstRecord:
    """The worst result for a single record: a figure's value with its unit, and a short description."""

    value: float
    unit: str
    what: str


@dataclass(frozen=True, kw_only=True)
class PublicRounding:
    """The rounding of a goal's figures for the public page.

    Attributes:
        names: the figures that are public.
        least: the least number of items behind a public figure.
        steps: possible steps, the finest first.
        turn: the largest move of the figure by one item of n, times n; a step is at least as large.
    """

    names: tuple[str, ...]
    least: int
    steps: tuple[float, ...]
    turn: float = 0.0

    def step(self, n: int | None) -> float | None:
        """Return the step for figures of n items; None if they are too few."""
        if n is None or n < self.least:
            return None
        for step in self.steps:
            if step * n >= self.turn:
                return step
        return None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The rule for the cells of one goal: when they show a leak, the words for it, and the remedies.

    Attributes:
        goal: the goal.
        figure: the deciding figure.
        chance: its value if nothing leaks, if that is one number.
        higher: whether a higher value means a larger leak.
        leaked: what the adversary could do, as a clause that follows its name.
        likely: the same for a leak that is not certain; empty if `leaked` serves.
        shown: the same if only classes were shown, no record; empty if the goal has no such finding.
        frame: the deciding figure in a sentence, with a place for its value.
        below: the same for a value below 0, with a place for its size; empty if `frame` serves.
        exact: what to say where the deciding figure reads zero; empty if `frame` serves.
        counted: what the deciding figure counts, as a noun; empty if its number says little.
        signal: a clause that says how evidence shows a leak; empty if it shows none.
        strong: whether evidence with a signal shows a grave one.
        certain: whether evidence of a grave leak leaves little doubt about any record; None if it never does.
        telling: whether evidence without a signal is informative.
        decided_else: what decided in place of the deciding figure, in a clause, or None if the figure itself would
            have; None if nothing else ever does.
        text: the rule in words, as the report prints it.
        tabled: the figure of the attack matrix; default: the deciding one.
        baseline: what the matrix shows beside it: `chance`, or the `prior`'s figure.
        beside_worst: a figure that the worst victim's sentence adds; empty for none.
        in_all: a figure that a short sentence adds as "in all"; empty for none.
        also_deciding: the start of names of other figures whose intervals decide; empty for none.
        record: the worst result for a single record; None if the goal has none.
        public: how figures are rounded for the public page; None if none is public.
        remedies: by the way on which data reached the adversary (`fdaudit.kinds.WAYS`).
        general: the remedy for other ways, such as a recorded system's own kinds of messages.
    """

    goal: Goal
    figure: str
    chance: float | None
    higher: bool
    leaked: str
    likely: str = ""
    shown: str = ""
    frame: str
    below: str = ""
    exact: str = ""
    counted: str = ""
    signal: Callable[[RuleInput], str]
    strong: Callable[[RuleInput], bool]
    certain: Callable[[RuleInput], bool] | None = None
    telling: Callable[[RuleInput], bool]
    decided_else: Callable[[RuleInput, Figure], str | None] | None = None
    text: str
    tabled: str = ""
    baseline: Literal["chance", "prior"] = "prior"
    beside_worst: str = ""
    in_all: str = ""
    also_deciding: str = ""
    record: Callable[[Cell], WorstRecord | None] | None = None
    public: PublicRounding | None = None
    remedies: Mapping[str, Remedy] = field(default_factory=dict)
    general: Remedy


def by_name(figures: Sequence[Figure], name: str) -> Figure | None:
    """Return the figure of that name, or its mean over clients, if it has a value; else None."""
    for figure in figures:
        if figure.name in (name, f"{name}_mean") and figure.value is not None:
            return figure
    return None


def single_rates(figures: Sequence[Figure]) -> tuple[float, ...]:
    """Return the false-positive rates at which figures have a measured true-positive rate."""
    return tuple(rate for _, rate in true_positive_rates(figures))


def framed(rule: Rule, figure: Figure) -> str:
    """Return a deciding figure with its interval in a clause."""
    value = figure.value or 0.0
    if rule.below and value < 0:
        turned = replace(figure, value=-value, low=_minus(figure.high), high=_minus(figure.low))
        return rule.below.format(with_interval(turned))
    if rule.exact and value < _EXACT:
        return rule.exact
    return rule.frame.format(with_interval(figure))


def _minus(value: float | None) -> float | None:
    return None if value is None else -value


def beside(rule: Rule, figure: Figure, first: Figure) -> str:
    """Return a deciding figure after one that was framed: its value and interval, or in words where one is negative."""
    negative = min(figure.value or 0.0, first.value or 0.0) < 0
    if rule.below and negative:
        return framed(rule, figure)
    return with_interval(figure)


def decided_by(rule: Rule, evidence: RuleInput) -> str:
    """Return what decided, in a clause, if the rule's own figure alone would not have; else an empty text."""
    key = by_name(evidence.figures, rule.figure)
    chance = rule.chance
    if key is None or chance is None:
        return ""
    clause = rule.decided_else and rule.decided_else(evidence, key)
    if clause is not None:
        return clause
    if key.p is not None and key.low is not None and key.high is not None and key.low <= chance <= key.high:
        return f"decided by {p_value(key.p, evidence.level)} after correction"
    return ""


def worth(rule: Rule, figure: Figure | None) -> float:
    """Return the size of the leak in a deciding figure, for ordering; minus infinity if there is none."""
    if figure is None or figure.value is None:
        return float("-inf")
    return figure.value if rule.higher else -figure.value


def value_of(figures: Sequence[Figure], name: str) -> float | None:
    """Return the value of the figure of that name, or of its mean over clients; None if it has none."""
    figure = by_name(figures, name)
    return None if figure is None else figure.value


def above(figure: Figure | None, bound: float) -> bool:
    """Return whether the lower end of a figure's interval is above a bound."""
    return figure is not None and figure.low is not None and figure.low > bound


def bounded(name: str) -> Callable[[RuleInput], bool]:
    """Return a rule's `telling`: whether a figure has an interval or a p-value."""

    def telling(evidence: RuleInput) -> bool:
        figure = by_name(evidence.figures, name)
        return figure is not None and (figure.low is not None or figure.p is not None)

    return telling


def tested(name: str) -> Callable[[RuleInput], bool]:
    """Return a rule's `telling`: whether a figure has a p-value."""

    def telling(evidence: RuleInput) -> bool:
        figure = by_name(evidence.figures, name)
        return figure is not None and figure.p is not None

    return telling


def surely(name: str, bound: float) -> Callable[[RuleInput], bool]:
    """Return a rule's `certain`: whether the lower end of a figure's interval is above a bound."""
    return lambda evidence: above(by_name(evidence.figures, name), bound)


def lower_end(figure: Figure, bound: str) -> str:
    """Return a clause that says how an interval is above a bound."""
    low = measure(figure, figure.low or 0.0)
    return f"the lower end of the interval, {low}, lies above {bound}"


def beats(figure: Figure, chance: float, bound: float, evidence: RuleInput) -> bool:
    """Return whether a figure is significantly above chance, or without a p-value its interval above `bound`."""
    if figure.p is None:
        return above(figure, bound)
    return (figure.value or 0.0) > chance and significant(figure, evidence.level)


def significant(figure: Figure, level: float) -> bool:
    """Return whether a figure has a p-value, and chance alone would rarely do as well."""
    return figure.p is not None and figure.p <= level


def against_guessing(figure: Figure, evidence: RuleInput) -> str:
    """Return how rarely guessing would do as well, as a clause that follows; empty if unknown."""
    if figure.p is None:
        return ""
    return f"; {corrected(figure.p, evidence.level, evidence.tests)}"


def true_positive_rates(figures: Sequence[Figure]) -> Iterator[tuple[Figure, float]]:
    """Yield the measured true-positive rates, each with its false-positive rate."""
    for figure in figures:
        match = _TPR.fullmatch(figure.name.removesuffix("_mean"))
        if match and figure.value is not None:
            yield figure, float(match[1]) / 100

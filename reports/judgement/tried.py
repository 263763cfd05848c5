"""Remedies that were tried, in words: what each changed for a finding, before and after.

Guarantees:
  * a figure after stands beside a figure before only if the same attack gave both;
  * a leak is not called closed if the attack that found it had no time, or gave no figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from fdaudit.result import Effect, Remedy, Result, TriedRemedy, in_words
from fdaudit.types import Figure

from ..text import NBSP, amount, label, measure, party, sentence
from .verdict import LEVELS

__all__ = [
    "HOW_TO_TRY",
    "TOGETHER",
    "Outcome",
    "effect",
    "effect_words",
    "effects_on",
    "outcome",
    "utility_words",
]

TOGETHER = "together"
"""Name of the remedies that serve alone, tried together."""
HOW_TO_TRY = (
    "Effects and costs of remedies were not measured: `fdaudit remedy RUN` tries those of high findings."
)
"""Said once, where no remedy was tried."""

Outcome = Literal["worked", "untried", "stays", "useless"]
"""What came of a finding's remedies: one left less than a leak and a useful model; none was tried; a leak stays or may
stay; none leaves a useful model."""

_LEFT: Mapping[str, int] = MappingProxyType(
    {"leak": 1, "partial": 2, "possible": 3, "none-seen": 4, "not-applicable": 5}
)
"""How much a level leaves to learn, from most to least. A level without an answer shows nothing, and counts 0."""


def effect(result: Result, what: Remedy, adversaries: Sequence[str], goals: Sequence[str]) -> str:
    """Return what trying a remedy changed for a finding, in a sentence; empty if no remedy of the run was tried.

    Of several, the one is named that leaves least to learn among those that keep utility above clients alone, and then
    the one that leaves least without keeping it.

    Args:
        result: the result.
        what: the remedy.
        adversaries: of the finding.
        goals: of the finding.
    """
    if not result.auditor_only or not result.remedies:
        return ""  # a public page names no single figure
    run = effects_on(result, what, adversaries, goals)
    if not run:
        reasons = [one.reason for one in result.remedies if one.name in what.tries and one.state != "run"]
        if not any(reasons):
            return "Not tried."
        return f"Not tried: {reasons[0]}."
    useful = [pair for pair in run if pair[0].kept]
    others = [pair for pair in run if not pair[0].kept]
    if not useful:
        most, _ = max(others, key=_least_left)
        return (
            "No remedy tried against this leak leaves a useful model "
            f"({_short(most)}: {_utility(most)}; clients alone {_alone(most)})."
        )
    best, on = max(useful, key=_least_left)
    clauses = [_change(best, on, adversaries[0])]
    if others:
        most, at_any_cost = max(others, key=_least_left)
        if _left(at_any_cost) > _LEFT["leak"] >= _left(on):
            clauses.append(
                f"{_change(most, at_any_cost, adversaries[0])}, not above clients alone ({_alone(most)})"
            )
        else:
            ruined = f"{_utility(most)}; clients alone {_alone(most)}"
            clauses.append(f"{_short(most)} leaves no useful model ({ruined})")
    head = "Tried"
    if len(goals) > 1:
        head += ", on the kind of leak that it closes least"
    return f"{head}: {'; '.join(clauses)}."


def _least_left(trial: tuple[TriedRemedy, Effect]) -> tuple[int, float]:
    """Return the rank of a trial: of what it leaves to learn, then of its utility."""
    tried, on = trial
    return _left(on), tried.utility_value


def outcome(result: Result, what: Remedy, adversaries: Sequence[str], goals: Sequence[str]) -> Outcome:
    """Return what came of a finding's remedies; the arguments are those of `effect`."""
    run = effects_on(result, what, adversaries, goals)
    if not run:
        return "untried"
    ranks = [_left(on) for tried, on in run if tried.kept]
    if not ranks:
        return "useless"
    return "worked" if max(ranks) > _LEFT["leak"] else "stays"


def _alone(tried: TriedRemedy) -> str:
    return amount(tried.alone or 0.0, "fraction")


def effects_on(
    result: Result, what: Remedy, adversaries: Sequence[str], goals: Sequence[str]
) -> list[tuple[TriedRemedy, Effect]]:
    """Return each trial of a remedy on all goals of a finding, with the effect that leaves most to learn.

    Of equal effects it is that on the adversary that is named first.
    """
    trials = []
    for tried in result.remedies:
        if tried.name not in (*what.tries, TOGETHER):
            continue
        effects = list[Effect]()
        for one in tried.effects:
            if one.adversary in adversaries and one.goal in goals:
                effects.append(one)
        if effects and {one.goal for one in effects} == set(goals):
            gravest = min(effects, key=lambda on: (_left(on), adversaries.index(on.adversary)))
            trials.append((tried, gravest))
    return trials


def _change(tried: TriedRemedy, on: Effect, first: str) -> str:
    """Return what a remedy changed for a finding, in a clause; for whom, if not for its first adversary."""
    costs = []
    if tried.utility != tried.utility_before:
        costs.append(_utility(tried))
    if on.epsilon is not None:
        costs.append(_stated(on))
    head = _short(tried)
    if costs:
        head += f" ({', '.join(costs)})"
    if on.adversary != first:
        head += f": for {party(on.adversary)}, "
    else:
        head += ": "
    if on.level == "not-applicable":
        return f"{head}no attack applies after"
    return f"{head}{_before_and_after(on)}"


def _short(tried: TriedRemedy) -> str:
    if tried.name == TOGETHER:
        return "several together"
    return tried.name.replace("-", " ")


def _utility(tried: TriedRemedy) -> str:
    """Return utility before and after a remedy, in a clause."""
    name = "utility"
    if tried.utility is not None:
        name = _inside(label(tried.utility.name))
    return f"{name} {_value(tried.utility_before)} to {_value(tried.utility)}"


def _inside(name: str) -> str:
    """Return a figure's name as it stands inside a sentence: an abbreviation keeps its capitals."""
    if name[:2].isupper():
        return name
    return name[:1].lower() + name[1:]


def _left(on: Effect) -> int:
    if not on.settled and on.level not in ("leak", "not-applicable"):
        return 0
    return _LEFT.get(on.level, 0)


def effect_words(on: Effect) -> str:
    """Return a deciding figure before and after a remedy, and the ε of the adversary's view, in a clause."""
    words = f"{sentence(party(on.adversary))}: {_before_and_after(on)}"
    return words if on.epsilon is None else f"{words}, {_stated(on)}"


def _before_and_after(on: Effect) -> str:
    """Return the deciding figure of the attack that found the leak, before and after, in a clause."""
    name, before = on.goal.replace("-", " "), _value(on.before)
    if on.before is not None and on.before.name == "auc":
        name = "AUC"
    elif on.before is not None:
        name = _inside(label(on.before.name))
    if on.same_attack:
        return f"{name} {before} to {_value(on.after)} ({_level(on)})"
    if on.level == "not-applicable":
        return f"{name} {before} before, and no attack applies after"
    others = ""
    if on.after is not None and on.after.value is not None:
        others = f"{on.attack_after} reaches {_value(on.after)} ({_level(on)})"
    if on.again == "not-applicable":
        if not others:
            others = "no other attack gave an answer"
            if on.level == "not-tested":
                others = "whether another succeeds was not tested"
        return f"{on.attack} ({name} {before}) no longer applies; {others}"
    if on.settled and on.again_figure is not None:
        change = f"{name} {before} to {_value(on.again_figure)} by {on.attack}"
        return f"{change}; {others}" if others else change
    silent = f"{on.attack}, which found it ({name} {before}), {_why_silent(on)}"
    if on.level == "leak":
        return f"a leak stays: {others}; {silent}"
    unknown = f"whether the leak closed is not known: {silent}"
    return f"{unknown}; {on.attack_after} reaches {_value(on.after)}" if others else unknown


def _why_silent(on: Effect) -> str:
    """Return why the attack that found a leak gave no figure after, in a clause."""
    if on.again == "failed":
        return "failed"
    if on.again != "not-tested":
        return "did not run again"
    if on.needed is None:
        return "had no time"
    step = 10 if on.needed < 120 else 60  # in tens of seconds, or from two minutes on in minutes
    needed = in_words(step * math.ceil(on.needed / step))
    return f"had no time (a budget of {needed} for this remedy holds it)"


def _stated(on: Effect) -> str:
    return f"ε{NBSP}={NBSP}{on.epsilon:.3g} per {on.unit}"


def _level(on: Effect) -> str:
    if on.level == "not-tested":
        return "other attacks had no time"
    for level, words in LEVELS.items():
        if level == on.level:
            return words.lower()
    return on.level


def utility_words(tried: TriedRemedy) -> str:
    """Return utility before and after a remedy, as the start of a sentence."""
    return sentence(_utility(tried))


def _value(figure: Figure | None) -> str:
    if figure is None or figure.value is None:
        return "not measured"
    return measure(figure, figure.value)
